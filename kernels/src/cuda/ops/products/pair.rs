use super::super::{byte_span, kernel_count};
use super::launches::{
    MAX_MATRICES, Product, ProductsByLayout, Targets, WARPS, group_by_layout, product_argument,
};
use super::quantise::InputVectors;
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

kernel_arguments! {
    // Layouts as in `products.cuh`.

    struct Pair {
        first: Product,
        second: Product,
        meeting: DeviceSpan,
    }
}

/// The arrival counters of the quantising block are per group of vectors.
const MAX_VECTORS: usize = 4;

/// Arrived blocks and completed barriers.
pub(super) const BARRIER_WORDS: usize = 2;

/// Multiplies `first` and then `second`, which reads its outputs, in one launch. Returns false
/// without launching unless all matrices are blocks of one format, at most four per stage, with few
/// vectors, on a device that reports its resident blocks. The vectors of `second` must be quantised
/// by `first` or be read as floats.
///
/// The grid does not exceed the number of resident blocks, so that every block at the barrier runs,
/// unless other programs occupy the device.
pub(super) fn multiply_pair<D: Device>(
    device: &D,
    meeting: &D::Memory,
    first: &[(InputVectors, Targets<'_, D>)],
    second: &[(InputVectors, Targets<'_, D>)],
    rounded: bool,
) -> Result<bool, DeviceError> {
    let (before, behind) = (group_by_layout(first)?, group_by_layout(second)?);
    let Some(&(some, vectors, ..)) = before.in_blocks.first() else {
        return Ok(false);
    };
    let format = some.format;
    let fits = |terms: &ProductsByLayout<'_, D>| {
        let mut same = terms.in_blocks.iter();
        terms.in_bands.is_empty()
            && (1..=MAX_MATRICES).contains(&terms.in_blocks.len())
            && same.all(|(blocks, ..)| blocks.format.kernel_names() == format.kernel_names())
    };
    let n = vectors.n;
    let reads = rounded || format.reads_floats();
    let few = (1..=MAX_VECTORS).contains(&n) && second.iter().all(|(vectors, _)| vectors.n == n);
    if !fits(&before) || !fits(&behind) || !reads || !few {
        return Ok(false);
    }
    let [one, four] = format.kernel_names().pairs;
    let name = if n == 1 { one } else { four };
    let kernel = Kernel::<Pair>::new(name, WARPS * 32);
    let resident = device.max_resident_blocks(&kernel, 0)?;
    let (first, second) = (
        product_argument(n, false, &before.in_blocks)?,
        product_argument(n, false, &behind.in_blocks)?,
    );
    let blocks = first.blocks().max(second.blocks());
    if resident == 0 || blocks == 0 {
        return Ok(false);
    }
    let arguments = Pair {
        first,
        second,
        meeting: byte_span(meeting, "a meeting", 0, &[BARRIER_WORDS], 4)?,
    };
    let grid = [kernel_count("blocks", blocks.min(resident))?, 1, 1];
    // SAFETY: as for each product separately; blocks of the second stage run after all of the first
    // have finished and their writes are visible. All blocks of the grid are resident, so the
    // barrier completes.
    unsafe { device.launch(&kernel, grid, 0, &arguments)? };
    Ok(true)
}

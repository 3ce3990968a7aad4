//! Both products of slots behind a factor in one launch, whose blocks meet between them.

use super::super::{bytes, count};
use super::launches::{Product, SLOTS, Targets, Terms, Vectors, WARPS, product_of, terms};
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Span};

#[derive(Clone, Copy)]
#[repr(C)]
struct Pair {
    first: Product,
    second: Product,
    meeting: Span,
}

// SAFETY: as `products.cuh` declares it, without padding.
unsafe impl Arguments for Pair {}

/// Vectors at most, which are one group: a block that rounds what others have computed counts those of one.
const MOST: usize = 4;

/// Words by which blocks meet: how many have arrived, and how often they have met.
pub(super) const MEETING: usize = 2;

/// Multiplies what reads the input and then what reads its products, and says whether it did: where all matrices are blocks
/// of one format, at most four each time, with few vectors, on a device that says how many blocks it has at a time. Integers
/// of the second time's vectors are made by the first, or they are read as floats.
///
/// The grid has no more blocks than that, so that each that is waited for runs. It is launched like others: of this device's
/// stream, what is in front ends by itself and what is behind begins when all of its blocks have; what other programs run is not
/// known here.
pub(super) fn multiply_pair<D: Device>(
    device: &D,
    meeting: &D::Memory,
    first: &[(Vectors, Targets<'_, D>)],
    second: &[(Vectors, Targets<'_, D>)],
    rounded: bool,
) -> Result<bool, DeviceError> {
    let (before, behind) = (terms(first)?, terms(second)?);
    let Some(&(some, vectors, ..)) = before.in_blocks.first() else {
        return Ok(false);
    };
    let format = some.format;
    let fits = |terms: &Terms<'_, D>| {
        let mut same = terms.in_blocks.iter();
        terms.in_bands.is_empty()
            && (1..=SLOTS).contains(&terms.in_blocks.len())
            && same.all(|(blocks, ..)| blocks.format.kernels() == format.kernels())
    };
    let n = vectors.n();
    let reads = rounded || format.reads_floats();
    let few = (1..=MOST).contains(&n) && second.iter().all(|(vectors, _)| vectors.n() == n);
    if !fits(&before) || !fits(&behind) || !reads || !few {
        return Ok(false);
    }
    let name = match (format.pairs(), n) {
        ([one, _], 1) => one,
        ([_, four], _) => four,
    };
    let kernel = Kernel::<Pair>::new(name, WARPS * 32);
    let resident = device.resident(&kernel, 0)?;
    let (first, second) = (
        product_of(n, false, &before.in_blocks)?,
        product_of(n, false, &behind.in_blocks)?,
    );
    let blocks = first.blocks().max(second.blocks());
    if resident == 0 || blocks == 0 {
        return Ok(false);
    }
    let arguments = Pair {
        first,
        second,
        meeting: bytes(meeting, "a meeting", 0, &[MEETING], 4)?,
    };
    let grid = [count("blocks", blocks.min(resident))?, 1, 1];
    // SAFETY: as for each product by itself; blocks take turns, those of the second when all of the first are done and what
    // they wrote is there. All blocks of the grid run at a time, so that none waits in vain.
    unsafe { device.launch(&kernel, grid, 0, &arguments)? };
    Ok(true)
}

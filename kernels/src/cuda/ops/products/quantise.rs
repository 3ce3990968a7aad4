//! Quantisation of the vectors that products read: once for all matrices, and once more for each
//! part of a column-group matrix that has a rotation or scales of its own.

use super::super::matrix::{ColumnGroupPart, DeviceLayout, DeviceMatrix};
use super::super::{F32_BYTES, byte_span, kernel_count};
use super::launches::{MAX_MATRICES, MAX_VECTORS_PER_READ, ProductOutput};
use super::producer::PendingOperation;
use super::{ALIGNMENT, GrowingBuffer};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Elements per quantisation step of a vector.
pub(super) const BLOCK: usize = 32;

/// Quantised vectors that a product writes.
#[derive(Clone, Copy)]
pub(super) struct QuantisedOutput {
    /// Zeroed arrival counters, one per 32 rows.
    pub arrived: DeviceSpan,
    pub to: QuantisedVectors,
}

/// Vectors that products read.
pub(super) struct InputVectors {
    pub n: usize,
    pub width: usize,
    pub x: DeviceSpan,
    /// Quantised forms: first the plain one, if needed, then one for each column-group matrix with
    /// its own rotation or scales, in order.
    quantised: Vec<QuantisedVectors>,
    has_plain_form: bool,
}

impl InputVectors {
    pub fn new(n: usize, width: usize, x: DeviceSpan) -> Self {
        InputVectors {
            n,
            width,
            x,
            quantised: Vec::new(),
            has_plain_form: false,
        }
    }

    /// Returns the quantised output for `matrix`, if it can produce the plain form and this is
    /// needed. It requires a zeroed counter per 32 rows.
    pub fn quantised_output<D: Device>(
        &self,
        matrix: &DeviceMatrix<D>,
        arrived: DeviceSpan,
    ) -> Option<QuantisedOutput> {
        let computes =
            matches!(matrix.layout(), DeviceLayout::Blocks(_)) && self.n <= MAX_VECTORS_PER_READ;
        let to = *self.quantised.first()?;
        (computes && self.has_plain_form).then_some(QuantisedOutput { arrived, to })
    }

    /// Returns the plain form and those of single matrices.
    pub fn split(&self) -> (QuantisedVectors, &[QuantisedVectors]) {
        match self.quantised.split_first() {
            Some((&first, own)) if self.has_plain_form => (first, own),
            _ => (QuantisedVectors::default(), &self.quantised),
        }
    }
}

kernel_arguments! {
    // Layouts as in `vectors.cu`.

    /// Codes, steps and sums of quantised vectors, and the transform that a column-group matrix applies
    /// first.
    #[derive(Default)]
    pub(super) struct QuantisedVectors {
        pub codes: DeviceSpan,
        pub steps: DeviceSpan,
        pub sums: DeviceSpan,
        columns: DeviceSpan,
        rotated: u32,
        unused: u32,
    }

    struct Quantise {
        x: DeviceSpan,
        n: u32,
        width: u32,
        to: [QuantisedVectors; MAX_MATRICES],
    }
}

/// Returns whether a part reads vectors that are rotated or scaled first.
pub(super) fn needs_own_quantisation<D: Device>(part: &ColumnGroupPart<D>) -> bool {
    part.scaled || part.rotated
}

fn column_group_parts<D: Device>(matrix: &DeviceMatrix<D>) -> &[ColumnGroupPart<D>] {
    match matrix.layout() {
        DeviceLayout::Blocks(_) => &[],
        DeviceLayout::ColumnGroups(bands) => &bands.parts,
    }
}

/// Allocates the forms of the vectors that the matrices read.
pub(super) fn allocate_quantised<D: Device>(
    device: &D,
    vectors: &mut InputVectors,
    matrices: &[(&DeviceMatrix<D>, ProductOutput)],
    buffer: &mut GrowingBuffer<D>,
) -> Result<(), DeviceError> {
    let reads_integers = |&(matrix, _): &(&DeviceMatrix<D>, ProductOutput)| match matrix.layout() {
        DeviceLayout::Blocks(blocks) => !blocks.format.reads_floats(),
        DeviceLayout::ColumnGroups(bands) => {
            bands.parts.iter().any(|part| !needs_own_quantisation(part))
        }
    };
    let plain = matrices.iter().any(reads_integers);
    let own = matrices
        .iter()
        .flat_map(|&(matrix, _)| column_group_parts(matrix));
    let own = own.filter(|part| needs_own_quantisation(*part)).map(Some);
    let wanted: Vec<_> = plain.then_some(None).into_iter().chain(own).collect();
    vectors.quantised = allocate_forms(device, vectors, &wanted, buffer)?;
    vectors.has_plain_form = plain;
    Ok(())
}

/// Quantises vectors into the [allocated](allocate_quantised) forms, fused with the pending
/// operation if it fits. With `done`, the plain form was already written by the preceding product.
pub(super) fn quantise_inputs<D: Device>(
    device: &D,
    mut before: Option<PendingOperation<'_, D>>,
    vectors: &InputVectors,
    done: bool,
) -> Result<(), DeviceError> {
    let places = &vectors.quantised;
    let places = if done { vectors.split().1 } else { places };
    for places in places.chunks(MAX_MATRICES) {
        match before.take() {
            Some(before) if before.can_fuse(vectors.x, [vectors.n, vectors.width]) => {
                before.launch_fused(device, [vectors.n, vectors.width], places)?;
            }
            before => {
                before.map_or(Ok(()), |before| before.finish(device))?;
                quantise(device, vectors, places)?;
            }
        }
    }
    before.map_or(Ok(()), |before| before.finish(device))
}

fn allocate_forms<D: Device>(
    device: &D,
    vectors: &InputVectors,
    parts: &[Option<&ColumnGroupPart<D>>],
    buffer: &mut GrowingBuffer<D>,
) -> Result<Vec<QuantisedVectors>, DeviceError> {
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    // Both are 32-bit indices on the GPU, and so are the derived sizes.
    let (n, width) = (vectors.n, vectors.width);
    kernel_count("vectors", n)?;
    kernel_count("columns", width)?;
    let blocks = n * width.div_ceil(BLOCK);
    let codes = (blocks * BLOCK).next_multiple_of(ALIGNMENT);
    let numbers = (blocks * F32_BYTES).next_multiple_of(ALIGNMENT);
    let each = codes + 2 * numbers;
    let memory = buffer.reserve(device, each * parts.len())?;
    let place = |(index, part): (usize, &Option<&ColumnGroupPart<D>>)| {
        let start = index * each;
        Ok(QuantisedVectors {
            codes: byte_span(memory, "codes", start, &[blocks], BLOCK)?,
            steps: byte_span(memory, "steps", start + codes, &[blocks], F32_BYTES)?,
            sums: byte_span(
                memory,
                "sums",
                start + codes + numbers,
                &[blocks],
                F32_BYTES,
            )?,
            columns: part.map_or(Ok(DeviceSpan::NULL), ColumnGroupPart::column_scales)?,
            rotated: part.is_some_and(|part| part.rotated).into(),
            unused: 0,
        })
    };
    parts.iter().enumerate().map(place).collect()
}

fn quantise<D: Device>(
    device: &D,
    vectors: &InputVectors,
    places: &[QuantisedVectors],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Quantise> = Kernel::new("quantise", 256);
    let (n, width) = (vectors.n, vectors.width);
    let arguments = Quantise {
        x: vectors.x,
        n: kernel_count("vectors", n)?,
        width: kernel_count("columns", width)?,
        to: forms_argument(places),
    };
    let blocks = n * width.div_ceil(BLOCK);
    let grid = kernel_count("blocks of vectors", (8 * blocks).div_ceil(256))?;
    let grid = [grid, places.len().min(MAX_MATRICES) as u32, 1];
    // SAFETY: eight threads read a block of `n` vectors of `width` elements and write its codes,
    // step and sums, which the spans cover; column scales belong to a matrix with as many columns.
    unsafe { device.launch(&KERNEL, grid, 0, &arguments) }
}

/// Returns the forms as a kernel argument.
pub(super) fn forms_argument(places: &[QuantisedVectors]) -> [QuantisedVectors; MAX_MATRICES] {
    std::array::from_fn(|i| places.get(i).copied().unwrap_or_default())
}

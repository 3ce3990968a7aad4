//! Launches of products: up to four matrices of one format that read the same vectors.

use super::super::matrix::{
    BlockArrays, BlockMatrix, ColumnGroupPart, DeviceLayout, DeviceMatrix, Format, TilesArgument,
};
use super::super::{F32_BYTES, byte_span, kernel_count, shape_mismatch};
use super::producer::PendingOperation;
use super::{ALIGNMENT, GrowingBuffer};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, KernelArguments};

/// Elements per quantisation step.
pub(super) const BLOCK: usize = 32;

const MAX_VECTORS_PER_READ: usize = 8;

/// Minimum number of vectors for tensor cores, whose tiles hold twice as many: estimated, not
/// measured.
const MIN_TILED_VECTORS: usize = 32;

/// As in `tiles.cuh` and `float_tiles.cu`.
const TILE: usize = 64;
const TILE_THREADS: u32 = 256;

pub(super) const WARPS: u32 = 4;

/// As in `bands.cu`.
const COLUMN_GROUP_SUMS: usize = 32;

pub(super) const MAX_MATRICES: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct ProductOutput {
    /// `[n, rows]`
    pub y: DeviceSpan,
    pub rows: usize,
    /// The rest are zero.
    pub computed_rows: usize,
    pub quantised: Option<QuantisedOutput>,
    pub accumulate: bool,
}

#[derive(Clone, Copy)]
pub(super) struct QuantisedOutput {
    /// One per 32 rows.
    arrived: DeviceSpan,
    to: QuantisedVectors,
}

pub(super) type Targets<'a, D> = Vec<(&'a DeviceMatrix<D>, ProductOutput)>;

pub(super) struct InputVectors {
    n: usize,
    width: usize,
    x: DeviceSpan,
    /// First the plain form, if needed, then one for each column-group matrix with its own rotation
    /// or scales.
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

    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the quantised output for `matrix`, if it can produce the plain form and this is
    /// needed.
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

    fn split(&self) -> (QuantisedVectors, &[QuantisedVectors]) {
        match self.quantised.split_first() {
            Some((&first, own)) if self.has_plain_form => (first, own),
            _ => (QuantisedVectors::NONE, &self.quantised),
        }
    }
}

/// Codes, steps and sums, and the transform that a column-group matrix applies first.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct QuantisedVectors {
    codes: DeviceSpan,
    steps: DeviceSpan,
    sums: DeviceSpan,
    columns: DeviceSpan,
    rotated: u32,
    unused: u32,
}

impl QuantisedVectors {
    const NONE: QuantisedVectors = QuantisedVectors {
        codes: DeviceSpan::NULL,
        steps: DeviceSpan::NULL,
        sums: DeviceSpan::NULL,
        columns: DeviceSpan::NULL,
        rotated: 0,
        unused: 0,
    };
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Quantise {
    x: DeviceSpan,
    n: u32,
    width: u32,
    to: [QuantisedVectors; MAX_MATRICES],
}

// SAFETY: layout as in `vectors.cu`, without padding.
unsafe impl KernelArguments for Quantise {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Slot {
    x: DeviceSpan,
    codes: DeviceSpan,
    steps: DeviceSpan,
    sums: DeviceSpan,
    n: u32,
    width: u32,
    w: BlockArrays,
    y: DeviceSpan,
    arrived: DeviceSpan,
    to: QuantisedVectors,
    rows: u32,
    live: u32,
    y_width: u32,
    split: u32,
    blocks: u32,
    adds: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Product {
    count: u32,
    unused: u32,
    slots: [Slot; MAX_MATRICES],
}

impl Product {
    pub fn blocks(&self) -> usize {
        let slots = self.slots.iter().take(self.count as usize);
        slots.map(|slot| slot.blocks as usize).sum()
    }
}

// SAFETY: layout as in `blocks.cuh`, without padding.
unsafe impl KernelArguments for Product {}

#[derive(Clone, Copy)]
#[repr(C)]
struct BandsSlot {
    w: TilesArgument,
    codes: DeviceSpan,
    steps: DeviceSpan,
    sums: DeviceSpan,
    y: DeviceSpan,
    rows: u32,
    live: u32,
    y_width: u32,
    blocks: u32,
    adds: u32,
    unused: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct BandsProduct {
    n: u32,
    count: u32,
    slots: [BandsSlot; MAX_MATRICES],
}

// SAFETY: layout as `Product` in `bands.cu`, without padding.
unsafe impl KernelArguments for BandsProduct {}

fn needs_own_quantisation<D: Device>(part: &ColumnGroupPart<D>) -> bool {
    part.scaled || part.rotated
}

fn column_group_parts<D: Device>(matrix: &DeviceMatrix<D>) -> &[ColumnGroupPart<D>] {
    match matrix.layout() {
        DeviceLayout::Blocks(_) => &[],
        DeviceLayout::ColumnGroups(bands) => &bands.parts,
    }
}

pub(super) fn allocate_quantised<D: Device>(
    device: &D,
    vectors: &mut InputVectors,
    matrices: &[(&DeviceMatrix<D>, ProductOutput)],
    room: &mut GrowingBuffer<D>,
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
    vectors.quantised = allocate_forms(device, vectors, &wanted, room)?;
    vectors.has_plain_form = plain;
    Ok(())
}

/// Quantises vectors into the [allocated](lay) forms, fused with the pending operation if it fits.
/// With `done`, the plain form was already written.
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
    room: &mut GrowingBuffer<D>,
) -> Result<Vec<QuantisedVectors>, DeviceError> {
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    // 32-bit indices on the GPU.
    let (n, width) = (vectors.n, vectors.width);
    kernel_count("vectors", n)?;
    kernel_count("columns", width)?;
    let blocks = n * width.div_ceil(BLOCK);
    let codes = (blocks * BLOCK).next_multiple_of(ALIGNMENT);
    let numbers = (blocks * F32_BYTES).next_multiple_of(ALIGNMENT);
    let each = codes + 2 * numbers;
    let memory = room.reserve(device, each * parts.len())?;
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

pub(super) fn forms_argument(places: &[QuantisedVectors]) -> [QuantisedVectors; MAX_MATRICES] {
    std::array::from_fn(|i| places.get(i).copied().unwrap_or(QuantisedVectors::NONE))
}

pub(super) struct ProductsByLayout<'a, D: Device> {
    pub in_blocks: Vec<BlockProduct<'a, D>>,
    pub in_bands: Vec<(&'a ColumnGroupPart<D>, QuantisedVectors, ProductOutput)>,
}

pub(super) fn group_by_layout<'a, D: Device>(
    groups: &'a [(InputVectors, Targets<'_, D>)],
) -> Result<ProductsByLayout<'a, D>, DeviceError> {
    let mut in_blocks = Vec::new();
    let mut in_bands = Vec::new();
    for (vectors, matrices) in groups {
        let (plain, own) = vectors.split();
        let mut own = own.iter();
        for &(matrix, to) in matrices {
            let (width, found) = (vectors.width, matrix.cols());
            match matrix.layout() {
                DeviceLayout::Blocks(blocks) => {
                    let block = blocks.format.block_len();
                    if width > found || !width.is_multiple_of(block) {
                        let what = "columns in use (whole blocks)";
                        return Err(shape_mismatch(what, width, found / block * block));
                    }
                    let split = warps_per_row(matrix, blocks.format);
                    in_blocks.push((blocks, vectors, split, to));
                }
                DeviceLayout::ColumnGroups(bands) => {
                    if width != found {
                        return Err(shape_mismatch("columns of a matrix in bands", width, found));
                    }
                    for part in &bands.parts {
                        let integers = if needs_own_quantisation(part) {
                            *own.next().unwrap_or(&QuantisedVectors::NONE)
                        } else {
                            plain
                        };
                        in_bands.push((part, integers, to));
                    }
                }
            }
        }
    }
    Ok(ProductsByLayout {
        in_blocks,
        in_bands,
    })
}

/// Multiplies the leading rows and columns of matrices with vectors of that width.
pub(super) fn multiply<D: Device>(
    device: &D,
    order: SummationOrder,
    groups: &[(InputVectors, Targets<'_, D>)],
) -> Result<(), DeviceError> {
    let ProductsByLayout {
        mut in_blocks,
        in_bands,
    } = group_by_layout(groups)?;
    let n = groups.first().map_or(0, |(vectors, _)| vectors.n);
    if n == 0 || groups.iter().any(|(vectors, _)| vectors.n != n) {
        return Ok(());
    }
    let tiled = order == SummationOrder::Tiled && n >= MIN_TILED_VECTORS;
    while let Some(&(first, ..)) = in_blocks.first() {
        let of_format = |&(blocks, ..): &BlockProduct<'_, D>| {
            blocks.format.kernel_names() == first.format.kernel_names()
        };
        let (same, others): (Vec<_>, Vec<_>) = in_blocks.into_iter().partition(of_format);
        for same in same.chunks(MAX_MATRICES) {
            multiply_blocks(device, n, tiled, same)?;
        }
        in_blocks = others;
    }
    for parts in in_bands.chunks(MAX_MATRICES) {
        multiply_column_groups(device, n, tiled, parts)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SummationOrder {
    /// Single-row order for small batches, tiled otherwise.
    #[default]
    Tiled,
    /// Single-row order for any batch.
    SingleRow,
}

pub(super) type BlockProduct<'a, D> = (&'a BlockMatrix<D>, &'a InputVectors, u32, ProductOutput);

fn vectors_per_read(n: usize) -> (usize, usize) {
    match n {
        0 | 1 => (0, 1),
        2 => (1, 2),
        3 | 4 => (2, 4),
        _ => (3, MAX_VECTORS_PER_READ),
    }
}

/// Returns the number of groups of vectors, limited to 65535 by the grid.
fn vector_groups(n: usize, together: usize) -> Result<u32, DeviceError> {
    let groups = n.div_ceil(together);
    match u32::try_from(groups) {
        Ok(groups) if groups <= 65535 => Ok(groups),
        _ => Err(shape_mismatch("vectors of a product", n, 65535 * together)),
    }
}

/// Returns the warps per row, so that few rows still occupy a GPU. Depends on the matrix only,
/// because it determines the summation order.
fn warps_per_row<D: Device>(matrix: &DeviceMatrix<D>, format: Format) -> u32 {
    const LANES: usize = 32;
    match matrix.cols() / format.lane_elements() / LANES {
        4.. if matrix.rows() < 4096 => 4,
        2.. if matrix.rows() < 8192 => 2,
        _ => 1,
    }
}

pub(super) fn product_argument<D: Device>(
    n: usize,
    tiled: bool,
    matrices: &[BlockProduct<'_, D>],
) -> Result<Product, DeviceError> {
    let slot = |&(blocks, vectors, split, to): &BlockProduct<'_, D>| {
        let rows = kernel_count("rows", to.rows)?;
        let (integers, _) = vectors.split();
        Ok(Slot {
            x: vectors.x,
            codes: integers.codes,
            steps: integers.steps,
            sums: integers.sums,
            n: kernel_count("vectors", n)?,
            width: kernel_count("columns", vectors.width)?,
            w: blocks.kernel_argument()?,
            y: to.y,
            arrived: to
                .quantised
                .map_or(DeviceSpan::NULL, |rounded| rounded.arrived),
            to: to
                .quantised
                .map_or(QuantisedVectors::NONE, |rounded| rounded.to),
            rows,
            live: kernel_count("rows", to.computed_rows)?,
            y_width: rows,
            split,
            blocks: match (tiled, n) {
                (true, _) => rows.div_ceil(blocks.format.tile_rows()),
                (false, 1) => rows.div_ceil(WARPS / split * blocks.format.rows_per_warp()),
                (false, _) => rows.div_ceil(WARPS / split),
            },
            adds: to.accumulate.into(),
        })
    };
    let slots: Result<Vec<Slot>, DeviceError> =
        matrices.iter().take(MAX_MATRICES).map(slot).collect();
    let mut slots = slots?;
    let of_slots = slots.len() as u32;
    let Some(&last) = slots.last() else {
        return Err(shape_mismatch("matrices of a product", 1, 0));
    };
    slots.resize(MAX_MATRICES, last);
    Ok(Product {
        count: of_slots,
        unused: 0,
        slots: std::array::from_fn(|i| slots[i]),
    })
}

fn multiply_blocks<D: Device>(
    device: &D,
    n: usize,
    tiled: bool,
    matrices: &[BlockProduct<'_, D>],
) -> Result<(), DeviceError> {
    let Some(&(first, ..)) = matrices.first() else {
        return Ok(());
    };
    let arguments = product_argument(n, tiled, matrices)?;
    let blocks = arguments.blocks();
    let (index, together) = vectors_per_read(n);
    let (kernel, together) = if tiled {
        let kernel = Kernel::<Product>::new(first.format.tile_kernel_name(), TILE_THREADS);
        (kernel, TILE)
    } else {
        let name = first.format.kernel_names()[index];
        (Kernel::new(name, WARPS * 32), together)
    };
    let grid = [
        kernel_count("rows", blocks)?,
        vector_groups(n, together)?,
        1,
    ];
    // SAFETY: warps or tiles read `live` of the `rows` rows of each matrix, in blocks up to
    // `width`, which its columns cover, and `n` vectors of that width or their quantised form,
    // which exists if the format reads it. They write `rows` elements per vector, and the quantised
    // output if requested; the spans cover them.
    unsafe { device.launch(&kernel, grid, 0, &arguments) }
}

pub(in super::super) const COLUMN_GROUP_KERNELS: [&str; 4] =
    ["bands_1", "bands_2", "bands_4", "bands_8"];

/// Returns the shared memory of their blocks: lookup tables, and per vector two sums for each part
/// of each row.
pub(in super::super) fn column_group_shared_bytes(tables: usize, together: usize) -> usize {
    tables.next_multiple_of(16) + together * 2 * COLUMN_GROUP_SUMS * 32 * F32_BYTES
}

fn multiply_column_groups<D: Device>(
    device: &D,
    n: usize,
    tiled: bool,
    parts: &[(&ColumnGroupPart<D>, QuantisedVectors, ProductOutput)],
) -> Result<(), DeviceError> {
    const THREADS: u32 = 512;
    const EXCLUSIVE_THREADS: u32 = 1024;
    /// Each processes several tiles with the same tables.
    const MAX_RESIDENT_BLOCKS: usize = 2;
    let mut slots = Vec::with_capacity(MAX_MATRICES);
    let (mut blocks, mut shared) = (0, 0);
    for &(part, integers, to) in parts {
        let of_part = if tiled {
            part.rows.div_ceil(TILE)
        } else {
            (part.rows.div_ceil(32)).min(device.multiprocessors() * MAX_RESIDENT_BLOCKS)
        };
        let rows = kernel_count("rows", to.rows)?;
        slots.push(BandsSlot {
            w: part.kernel_argument()?,
            codes: integers.codes,
            steps: integers.steps,
            sums: integers.sums,
            y: to.y,
            rows,
            live: kernel_count("rows", to.computed_rows)?,
            y_width: rows,
            blocks: kernel_count("tiles", of_part)?,
            adds: to.accumulate.into(),
            unused: 0,
        });
        blocks += of_part;
        shared = part.table_bytes().max(shared);
    }
    let Some(&first) = slots.first() else {
        return Ok(());
    };
    slots.resize(MAX_MATRICES, first);
    let arguments = BandsProduct {
        n: kernel_count("vectors", n)?,
        count: parts.len().min(MAX_MATRICES) as u32,
        slots: std::array::from_fn(|i| slots[i]),
    };
    let (index, together) = vectors_per_read(n);
    let (kernel, together, shared) = if tiled {
        let kernel = Kernel::<BandsProduct>::new("bands_tiles", TILE_THREADS);
        (kernel, TILE, shared.next_multiple_of(16))
    } else {
        let kernel = if n == 1 && blocks <= device.multiprocessors() {
            Kernel::new("bands_1_alone", EXCLUSIVE_THREADS)
        } else {
            Kernel::new(COLUMN_GROUP_KERNELS[index], THREADS)
        };
        (
            kernel,
            together,
            column_group_shared_bytes(shared, together),
        )
    };
    let grid = [
        kernel_count("tiles", blocks)?,
        vector_groups(n, together)?,
        1,
    ];
    // SAFETY: warps read the tiles of matrices with `n` quantised vectors of whole column groups
    // and write the requested rows; the spans cover them. Shared memory holds the tables, which are
    // no longer than stated, and the sums of the vectors of a block, and is never empty.
    unsafe { device.launch(&kernel, grid, shared.max(16), &arguments) }
}

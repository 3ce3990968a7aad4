//! Launches of products: up to four matrices of one format that read the same vectors.

use super::super::matrix::{
    BlockArrays, BlockMatrix, ColumnGroupPart, DeviceLayout, DeviceMatrix, Format, TilesArgument,
};
use super::super::{F32_BYTES, kernel_count, shape_mismatch};
use super::quantise::{InputVectors, QuantisedOutput, QuantisedVectors, needs_own_quantisation};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Vectors that a warp multiplies with a row that it has read.
pub(super) const MAX_VECTORS_PER_READ: usize = 8;

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

/// Matrices and their outputs.
pub(super) type Targets<'a, D> = Vec<(&'a DeviceMatrix<D>, ProductOutput)>;

kernel_arguments! {
    /// `MatrixProduct` of `blocks.cuh`.
    struct MatrixProduct {
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

    /// `Product` of `blocks.cuh`.
    pub(super) struct Product {
        count: u32,
        unused: u32,
        matrices: [MatrixProduct; MAX_MATRICES],
    }

    /// `MatrixProduct` of `bands.cu`.
    struct ColumnGroupProduct {
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

    /// `Product` of `bands.cu`.
    struct BandsProduct {
        n: u32,
        count: u32,
        matrices: [ColumnGroupProduct; MAX_MATRICES],
    }
}

impl Product {
    pub fn blocks(&self) -> usize {
        let matrices = self.matrices.iter().take(self.count as usize);
        matrices.map(|matrix| matrix.blocks as usize).sum()
    }
}

/// Products grouped by matrix layout.
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
                            own.next().copied().unwrap_or_default()
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
    let argument = |&(blocks, vectors, split, to): &BlockProduct<'_, D>| {
        let rows = kernel_count("rows", to.rows)?;
        let (integers, _) = vectors.split();
        Ok(MatrixProduct {
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
                .map_or_else(Default::default, |rounded| rounded.to),
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
    let filled: Result<Vec<MatrixProduct>, DeviceError> =
        matrices.iter().take(MAX_MATRICES).map(argument).collect();
    let mut filled = filled?;
    let count = filled.len() as u32;
    let Some(&last) = filled.last() else {
        return Err(shape_mismatch("matrices of a product", 1, 0));
    };
    filled.resize(MAX_MATRICES, last);
    Ok(Product {
        count,
        unused: 0,
        matrices: std::array::from_fn(|i| filled[i]),
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
        let kernel = Kernel::<Product>::new(first.format.kernel_names().tiles, TILE_THREADS);
        (kernel, TILE)
    } else {
        let name = first.format.kernel_names().products[index];
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
    /// Blocks per multiprocessor; each processes several tiles with the same tables.
    const MAX_RESIDENT_BLOCKS: usize = 2;
    let mut filled = Vec::with_capacity(MAX_MATRICES);
    let (mut blocks, mut shared) = (0, 0);
    for &(part, integers, to) in parts {
        let of_part = if tiled {
            part.rows.div_ceil(TILE)
        } else {
            (part.rows.div_ceil(32)).min(device.multiprocessors() * MAX_RESIDENT_BLOCKS)
        };
        let rows = kernel_count("rows", to.rows)?;
        filled.push(ColumnGroupProduct {
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
    let Some(&first) = filled.first() else {
        return Ok(());
    };
    filled.resize(MAX_MATRICES, first);
    let arguments = BandsProduct {
        n: kernel_count("vectors", n)?,
        count: parts.len().min(MAX_MATRICES) as u32,
        matrices: std::array::from_fn(|i| filled[i]),
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

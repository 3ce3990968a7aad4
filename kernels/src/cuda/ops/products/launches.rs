//! Launches of products: up to four matrices of one format that read the same vectors.

use super::super::matrix::{BandsPart, Blocks, DeviceMatrix, Format, Held, Planes, Tiles};
use super::super::{F32, bytes, count, misfit};
use super::producer::Producer;
use super::{ALIGNED, Room};
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Span};

/// Elements per quantisation step of a vector.
pub(super) const BLOCK: usize = 32;

const TOGETHER: usize = 8;

/// Minimum number of vectors for tensor cores, whose tiles hold twice as many: weights are read and
/// unpacked once per 64 vectors instead of once per 8, which pays even if half of a tile is empty.
/// Drafted tokens and steps of several sequences stay below it and keep the bits of single steps.
/// Estimated, not measured.
const TILED: usize = 32;

/// Rows of a column-group tile, vectors of a tile, and threads of its block, as in `tiles.cuh` and
/// `float_tiles.cu`.
const TILE: usize = 64;
const TILE_THREADS: u32 = 256;

/// Warps of a block for few vectors.
pub(super) const WARPS: u32 = 4;

/// Partial sums per column-group row, as in `bands.cu`.
const BANDS_PARTS: usize = 32;

/// Maximum matrices per launch.
pub(super) const SLOTS: usize = 4;

/// Output of a product.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// Output `[n, rows]`.
    pub y: Span,
    pub rows: usize,
    /// Rows that are computed; the rest are zero.
    pub live: usize,
    /// Optional quantised output.
    pub rounded: Option<Rounded>,
    /// Accumulates into `y`.
    pub adds: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Rounded {
    /// Zeroed arrival counters, one per 32 rows.
    arrived: Span,
    to: Integers,
}

/// Matrices and their outputs.
pub(super) type Targets<'a, D> = Vec<(&'a DeviceMatrix<D>, Target)>;

pub(super) struct Vectors {
    n: usize,
    width: usize,
    x: Span,
    /// Quantised forms: first the plain one, if needed, then one for each column-group matrix with
    /// its own rotation or scales, in order.
    places: Vec<Integers>,
    plain: bool,
}

impl Vectors {
    pub fn new(n: usize, width: usize, x: Span) -> Self {
        Vectors {
            n,
            width,
            x,
            places: Vec::new(),
            plain: false,
        }
    }

    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the quantised output for `matrix`, if it can produce the plain form and this is
    /// needed. It requires a zeroed counter per 32 rows.
    pub fn rounded<D: Device>(&self, matrix: &DeviceMatrix<D>, arrived: Span) -> Option<Rounded> {
        let computes = matches!(matrix.held(), Held::Blocks(_)) && self.n <= TOGETHER;
        let to = *self.places.first()?;
        (computes && self.plain).then_some(Rounded { arrived, to })
    }

    fn split(&self) -> (Integers, &[Integers]) {
        match self.places.split_first() {
            Some((&first, own)) if self.plain => (first, own),
            _ => (Integers::NONE, &self.places),
        }
    }
}

/// Codes, steps and sums of quantised vectors, and the transform that a column-group matrix applies
/// first.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Integers {
    codes: Span,
    steps: Span,
    sums: Span,
    columns: Span,
    rotated: u32,
    unused: u32,
}

impl Integers {
    const NONE: Integers = Integers {
        codes: Span::NONE,
        steps: Span::NONE,
        sums: Span::NONE,
        columns: Span::NONE,
        rotated: 0,
        unused: 0,
    };
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Quantise {
    x: Span,
    n: u32,
    width: u32,
    to: [Integers; SLOTS],
}

// SAFETY: layout as in `vectors.cu`, without padding.
unsafe impl Arguments for Quantise {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Slot {
    x: Span,
    codes: Span,
    steps: Span,
    sums: Span,
    n: u32,
    width: u32,
    w: Planes,
    y: Span,
    arrived: Span,
    to: Integers,
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
    slots: [Slot; SLOTS],
}

impl Product {
    /// Returns the number of thread blocks.
    pub fn blocks(&self) -> usize {
        let slots = self.slots.iter().take(self.count as usize);
        slots.map(|slot| slot.blocks as usize).sum()
    }
}

// SAFETY: layout as in `blocks.cuh`, without padding.
unsafe impl Arguments for Product {}

#[derive(Clone, Copy)]
#[repr(C)]
struct BandsSlot {
    w: Tiles,
    codes: Span,
    steps: Span,
    sums: Span,
    y: Span,
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
    slots: [BandsSlot; SLOTS],
}

// SAFETY: layout as `Product` in `bands.cu`, without padding.
unsafe impl Arguments for BandsProduct {}

fn has_own<D: Device>(part: &BandsPart<D>) -> bool {
    part.scaled || part.rotated
}

fn parts_of<D: Device>(matrix: &DeviceMatrix<D>) -> &[BandsPart<D>] {
    match matrix.held() {
        Held::Blocks(_) => &[],
        Held::Bands(bands) => &bands.parts,
    }
}

pub(super) fn lay<D: Device>(
    device: &D,
    vectors: &mut Vectors,
    matrices: &[(&DeviceMatrix<D>, Target)],
    room: &mut Room<D>,
) -> Result<(), DeviceError> {
    let reads_integers = |&(matrix, _): &(&DeviceMatrix<D>, Target)| match matrix.held() {
        Held::Blocks(blocks) => !blocks.format.reads_floats(),
        Held::Bands(bands) => bands.parts.iter().any(|part| !has_own(part)),
    };
    let plain = matrices.iter().any(reads_integers);
    let own = matrices.iter().flat_map(|&(matrix, _)| parts_of(matrix));
    let own = own.filter(|part| has_own(*part)).map(Some);
    let wanted: Vec<_> = plain.then_some(None).into_iter().chain(own).collect();
    vectors.places = places(device, vectors, &wanted, room)?;
    vectors.plain = plain;
    Ok(())
}

/// Quantises vectors into the [allocated](lay) forms, fused with the pending operation if it fits.
/// With `done`, the plain form was already written by the preceding product.
pub(super) fn round<D: Device>(
    device: &D,
    mut before: Option<Producer<'_, D>>,
    vectors: &Vectors,
    done: bool,
) -> Result<(), DeviceError> {
    let places = &vectors.places;
    let places = if done { vectors.split().1 } else { places };
    for places in places.chunks(SLOTS) {
        match before.take() {
            Some(before) if before.fits(vectors.x, [vectors.n, vectors.width]) => {
                before.launch(device, [vectors.n, vectors.width], places)?;
            }
            before => {
                before.map_or(Ok(()), |before| before.finish(device))?;
                quantise(device, vectors, places)?;
            }
        }
    }
    before.map_or(Ok(()), |before| before.finish(device))
}

fn places<D: Device>(
    device: &D,
    vectors: &Vectors,
    parts: &[Option<&BandsPart<D>>],
    room: &mut Room<D>,
) -> Result<Vec<Integers>, DeviceError> {
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    // Both are 32-bit indices on the GPU, and so are the derived sizes.
    let (n, width) = (vectors.n, vectors.width);
    count("vectors", n)?;
    count("columns", width)?;
    let blocks = n * width.div_ceil(BLOCK);
    let codes = (blocks * BLOCK).next_multiple_of(ALIGNED);
    let numbers = (blocks * F32).next_multiple_of(ALIGNED);
    let each = codes + 2 * numbers;
    let memory = room.of(device, each * parts.len())?;
    let place = |(index, part): (usize, &Option<&BandsPart<D>>)| {
        let start = index * each;
        Ok(Integers {
            codes: bytes(memory, "codes", start, &[blocks], BLOCK)?,
            steps: bytes(memory, "steps", start + codes, &[blocks], F32)?,
            sums: bytes(memory, "sums", start + codes + numbers, &[blocks], F32)?,
            columns: part.map_or(Ok(Span::NONE), BandsPart::columns)?,
            rotated: part.is_some_and(|part| part.rotated).into(),
            unused: 0,
        })
    };
    parts.iter().enumerate().map(place).collect()
}

fn quantise<D: Device>(
    device: &D,
    vectors: &Vectors,
    places: &[Integers],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Quantise> = Kernel::new("quantise", 256);
    let (n, width) = (vectors.n, vectors.width);
    let arguments = Quantise {
        x: vectors.x,
        n: count("vectors", n)?,
        width: count("columns", width)?,
        to: slots_of(places),
    };
    let blocks = n * width.div_ceil(BLOCK);
    let grid = count("blocks of vectors", (8 * blocks).div_ceil(256))?;
    let grid = [grid, places.len().min(SLOTS) as u32, 1];
    // SAFETY: eight threads read a block of `n` vectors of `width` elements and write its codes,
    // step and sums, which the spans cover; column scales belong to a matrix with as many columns.
    unsafe { device.launch(&KERNEL, grid, 0, &arguments) }
}

/// Returns the forms as a kernel argument.
pub(super) fn slots_of(places: &[Integers]) -> [Integers; SLOTS] {
    std::array::from_fn(|i| places.get(i).copied().unwrap_or(Integers::NONE))
}

/// Products grouped by matrix layout.
pub(super) struct Terms<'a, D: Device> {
    pub in_blocks: Vec<Term<'a, D>>,
    pub in_bands: Vec<(&'a BandsPart<D>, Integers, Target)>,
}

pub(super) fn terms<'a, D: Device>(
    groups: &'a [(Vectors, Targets<'_, D>)],
) -> Result<Terms<'a, D>, DeviceError> {
    let mut in_blocks = Vec::new();
    let mut in_bands = Vec::new();
    for (vectors, matrices) in groups {
        let (plain, own) = vectors.split();
        let mut own = own.iter();
        for &(matrix, to) in matrices {
            let (width, found) = (vectors.width, matrix.cols());
            match matrix.held() {
                Held::Blocks(blocks) => {
                    let block = blocks.format.block();
                    if width > found || !width.is_multiple_of(block) {
                        let what = "columns in use (whole blocks)";
                        return Err(misfit(what, width, found / block * block));
                    }
                    let split = split_of(matrix, blocks.format);
                    in_blocks.push((blocks, vectors, split, to));
                }
                Held::Bands(bands) => {
                    if width != found {
                        return Err(misfit("columns of a matrix in bands", width, found));
                    }
                    for part in &bands.parts {
                        let integers = if has_own(part) {
                            *own.next().unwrap_or(&Integers::NONE)
                        } else {
                            plain
                        };
                        in_bands.push((part, integers, to));
                    }
                }
            }
        }
    }
    Ok(Terms {
        in_blocks,
        in_bands,
    })
}

/// Multiplies the leading rows and columns of matrices with vectors of that width, with the same
/// number of vectors for each. Results have the same bits as separate products, or those of tiles.
pub(super) fn multiply<D: Device>(
    device: &D,
    order: Order,
    groups: &[(Vectors, Targets<'_, D>)],
) -> Result<(), DeviceError> {
    let Terms {
        mut in_blocks,
        in_bands,
    } = terms(groups)?;
    let n = groups.first().map_or(0, |(vectors, _)| vectors.n);
    if n == 0 || groups.iter().any(|(vectors, _)| vectors.n != n) {
        return Ok(());
    }
    let tiled = order == Order::OfMany && n >= TILED;
    // Matrices of a format share launches.
    while let Some(&(first, ..)) = in_blocks.first() {
        let of_format =
            |&(blocks, ..): &Term<'_, D>| blocks.format.kernels() == first.format.kernels();
        let (same, others): (Vec<_>, Vec<_>) = in_blocks.into_iter().partition(of_format);
        for same in same.chunks(SLOTS) {
            multiply_blocks(device, n, tiled, same)?;
        }
        in_blocks = others;
    }
    for parts in in_bands.chunks(SLOTS) {
        multiply_bands(device, n, tiled, parts)?;
    }
    Ok(())
}

/// Summation order for batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// Single-row order for small batches, tiled otherwise.
    #[default]
    OfMany,
    /// Single-row order for any batch.
    OfOne,
}

pub(super) type Term<'a, D> = (&'a Blocks<D>, &'a Vectors, u32, Target);

fn together(n: usize) -> (usize, usize) {
    match n {
        0 | 1 => (0, 1),
        2 => (1, 2),
        3 | 4 => (2, 4),
        _ => (3, TOGETHER),
    }
}

/// Returns the number of groups of vectors, limited to 65535 by the grid.
fn groups(n: usize, together: usize) -> Result<u32, DeviceError> {
    let groups = n.div_ceil(together);
    match u32::try_from(groups) {
        Ok(groups) if groups <= 65535 => Ok(groups),
        _ => Err(misfit("vectors of a product", n, 65535 * together)),
    }
}

/// Returns the warps per row, so that few rows still occupy a GPU: four, two or one, with at least
/// one unit per lane. Determines the summation order, so it depends on the matrix only.
fn split_of<D: Device>(matrix: &DeviceMatrix<D>, format: Format) -> u32 {
    const LANES: usize = 32;
    match matrix.cols() / format.unit() / LANES {
        4.. if matrix.rows() < 4096 => 4,
        2.. if matrix.rows() < 8192 => 2,
        _ => 1,
    }
}

pub(super) fn product_of<D: Device>(
    n: usize,
    tiled: bool,
    matrices: &[Term<'_, D>],
) -> Result<Product, DeviceError> {
    let slot = |&(blocks, vectors, split, to): &Term<'_, D>| {
        let rows = count("rows", to.rows)?;
        let (integers, _) = vectors.split();
        Ok(Slot {
            x: vectors.x,
            codes: integers.codes,
            steps: integers.steps,
            sums: integers.sums,
            n: count("vectors", n)?,
            width: count("columns", vectors.width)?,
            w: blocks.planes()?,
            y: to.y,
            arrived: to.rounded.map_or(Span::NONE, |rounded| rounded.arrived),
            to: to.rounded.map_or(Integers::NONE, |rounded| rounded.to),
            rows,
            live: count("rows", to.live)?,
            y_width: rows,
            split,
            blocks: match (tiled, n) {
                (true, _) => rows.div_ceil(blocks.format.rows_of_tile()),
                (false, 1) => rows.div_ceil(WARPS / split * blocks.format.rows_of_one()),
                (false, _) => rows.div_ceil(WARPS / split),
            },
            adds: to.adds.into(),
        })
    };
    let slots: Result<Vec<Slot>, DeviceError> = matrices.iter().take(SLOTS).map(slot).collect();
    let mut slots = slots?;
    let of_slots = slots.len() as u32;
    let Some(&last) = slots.last() else {
        return Err(misfit("matrices of a product", 1, 0));
    };
    slots.resize(SLOTS, last);
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
    matrices: &[Term<'_, D>],
) -> Result<(), DeviceError> {
    let Some(&(first, ..)) = matrices.first() else {
        return Ok(());
    };
    let arguments = product_of(n, tiled, matrices)?;
    let blocks = arguments.blocks();
    let (index, together) = together(n);
    let (kernel, together) = if tiled {
        let kernel = Kernel::<Product>::new(first.format.tiles(), TILE_THREADS);
        (kernel, TILE)
    } else {
        let name = first.format.kernels()[index];
        (Kernel::new(name, WARPS * 32), together)
    };
    let grid = [count("rows", blocks)?, groups(n, together)?, 1];
    // SAFETY: warps or tiles read `live` of the `rows` rows of each matrix, in blocks up to
    // `width`, which its columns cover, and `n` vectors of that width or their quantised form,
    // which exists if the format reads it. They write `rows` elements per vector, and the quantised
    // output if requested; the spans cover them.
    unsafe { device.launch(&kernel, grid, 0, &arguments) }
}

pub(in super::super) const BANDS: [&str; 4] = ["bands_1", "bands_2", "bands_4", "bands_8"];

/// Returns the shared memory of their blocks: lookup tables, and per vector two sums for each part
/// of each row.
pub(in super::super) fn shared_of_bands(tables: usize, together: usize) -> usize {
    tables.next_multiple_of(16) + together * 2 * BANDS_PARTS * 32 * F32
}

fn multiply_bands<D: Device>(
    device: &D,
    n: usize,
    tiled: bool,
    parts: &[(&BandsPart<D>, Integers, Target)],
) -> Result<(), DeviceError> {
    /// Threads of a block, and of one that occupies its multiprocessor alone.
    const THREADS: u32 = 512;
    const ALONE: u32 = 1024;
    /// Maximum resident blocks per multiprocessor with one vector; each processes several tiles
    /// with the same tables.
    const AT_A_TIME: usize = 2;
    let mut slots = Vec::with_capacity(SLOTS);
    let (mut blocks, mut shared) = (0, 0);
    for &(part, integers, to) in parts {
        let of_part = if tiled {
            part.rows.div_ceil(TILE)
        } else {
            (part.rows.div_ceil(32)).min(device.multiprocessors() * AT_A_TIME)
        };
        let rows = count("rows", to.rows)?;
        slots.push(BandsSlot {
            w: part.tiles()?,
            codes: integers.codes,
            steps: integers.steps,
            sums: integers.sums,
            y: to.y,
            rows,
            live: count("rows", to.live)?,
            y_width: rows,
            blocks: count("tiles", of_part)?,
            adds: to.adds.into(),
            unused: 0,
        });
        blocks += of_part;
        shared = part.table_bytes().max(shared);
    }
    let Some(&first) = slots.first() else {
        return Ok(());
    };
    slots.resize(SLOTS, first);
    let arguments = BandsProduct {
        n: count("vectors", n)?,
        count: parts.len().min(SLOTS) as u32,
        slots: std::array::from_fn(|i| slots[i]),
    };
    let (index, together) = together(n);
    let (kernel, together, shared) = if tiled {
        let kernel = Kernel::<BandsProduct>::new("bands_tiles", TILE_THREADS);
        (kernel, TILE, shared.next_multiple_of(16))
    } else {
        let kernel = if n == 1 && blocks <= device.multiprocessors() {
            Kernel::new("bands_1_alone", ALONE)
        } else {
            Kernel::new(BANDS[index], THREADS)
        };
        (kernel, together, shared_of_bands(shared, together))
    };
    let grid = [count("tiles", blocks)?, groups(n, together)?, 1];
    // SAFETY: warps read the tiles of matrices with `n` quantised vectors of whole column groups
    // and write the requested rows; the spans cover them. Shared memory holds the tables, which are
    // no longer than stated, and the sums of the vectors of a block, and is never empty.
    unsafe { device.launch(&kernel, grid, shared.max(16), &arguments) }
}

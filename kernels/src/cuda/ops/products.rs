//! Products of matrices with vectors.
//!
//! A row of a batch has the same bits in a batch of any size: what a kernel adds up, and in which order, depends on the
//! matrix alone.

use std::ops::Range;

use super::matrix::{BandsPart, Blocks, DeviceMatrix, Held, Planes, Tiles};
use super::{F32, bytes, count};
use crate::cpu::Input;
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Memory, Span};

/// Numbers that share a step when a vector is rounded to integers.
const BLOCK: usize = 32;

/// Vectors that read the weights together at most.
const TOGETHER: usize = 8;

/// Memory of a device that operations need for themselves and keep for the next.
pub struct Workspace<D: Device> {
    /// The input as integers.
    input: Room<D>,
    /// Inner vectors.
    inner: Room<D>,
    /// One of them as integers.
    second: Room<D>,
    /// Integers of what a matrix in bands reads.
    prepared: Room<D>,
}

impl<D: Device> Default for Workspace<D> {
    fn default() -> Self {
        Workspace {
            input: Room(None),
            inner: Room(None),
            second: Room(None),
            prepared: Room(None),
        }
    }
}

/// An allocation that grows.
struct Room<D: Device>(Option<D::Memory>);

impl<D: Device> Room<D> {
    fn of(&mut self, device: &D, bytes: usize) -> Result<&D::Memory, DeviceError> {
        let kept = match self.0.take() {
            Some(memory) if memory.bytes() >= bytes => memory,
            other => {
                // What is given back may be what the next is made of.
                drop(other);
                device.allocate(bytes.checked_next_power_of_two().unwrap_or(bytes))?
            }
        };
        Ok(self.0.insert(kept))
    }
}

/// A matrix whose product with the input is an inner vector.
pub struct Factor<'a, D: Device> {
    /// The matrix.
    pub matrix: &'a DeviceMatrix<D>,
    /// Leading rows of it that are computed.
    pub rows: usize,
    /// Components of the inner vector that count; those from here to `rows` are zero.
    pub rank: usize,
}

/// A linear slot, `y = W x`, or `y = W A x` with the matrix `A` of a [`Factor`].
pub struct Slot<'a, D: Device> {
    /// `W`.
    pub matrix: &'a DeviceMatrix<D>,
    /// Leading rows of it: numbers in a row of `y`.
    pub rows: usize,
    /// Leading columns of it in use.
    pub cols: usize,
    /// What it is multiplied with.
    pub input: Input,
    /// `[n, rows]`.
    pub y: &'a D::Memory,
}

/// Vectors, `n` rows of `width` numbers, and what there is of them as integers.
#[derive(Clone, Copy)]
struct Vectors {
    n: usize,
    width: usize,
    x: Span,
    integers: Option<Integers>,
}

/// Codes, steps and sums of vectors, as `quantise` writes them.
#[derive(Clone, Copy)]
struct Integers {
    codes: Span,
    steps: Span,
    sums: Span,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Quantise {
    x: Span,
    codes: Span,
    steps: Span,
    sums: Span,
    columns: Span,
    n: u32,
    width: u32,
    rotated: u32,
    unused: u32,
}

// SAFETY: as `vectors.cu` declares it, without padding.
unsafe impl Arguments for Quantise {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Product {
    w: Planes,
    x: Span,
    codes: Span,
    steps: Span,
    sums: Span,
    y: Span,
    n: u32,
    width: u32,
    rows: u32,
    live: u32,
    y_width: u32,
    split: u32,
}

// SAFETY: as `products.cu` declares it, without padding.
unsafe impl Arguments for Product {}

#[derive(Clone, Copy)]
#[repr(C)]
struct BandsProduct {
    w: Tiles,
    codes: Span,
    steps: Span,
    y: Span,
    n: u32,
    rows: u32,
    live: u32,
    y_width: u32,
}

// SAFETY: as `bands.cu` declares its `Product`, without padding.
unsafe impl Arguments for BandsProduct {}

/// `y [rows.len(), matrix.rows()]`, the products of a matrix with some rows of `x [n, matrix.cols()]`.
///
/// # Errors
/// [`DeviceError::Range`] where an allocation is too short, or of the device.
pub fn product<D: Device>(
    device: &D,
    rows: Range<usize>,
    matrix: &DeviceMatrix<D>,
    x: &D::Memory,
    y: &D::Memory,
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    let (n, width) = (rows.len(), matrix.cols());
    let start = rows.start.saturating_mul(width).saturating_mul(F32);
    let x = bytes(x, "x", start, &[n, width], F32)?;
    let to = Target {
        y: bytes(y, "y", 0, &[n, matrix.rows()], F32)?,
        rows: matrix.rows(),
        live: matrix.rows(),
    };
    let mut vectors = Vectors {
        n,
        width,
        x,
        integers: None,
    };
    if reads_integers(matrix) {
        vectors.integers = Some(quantised(device, &vectors, None, &mut workspace.input)?);
    }
    multiply(device, matrix, &vectors, to, &mut workspace.prepared)
}

/// Every slot, applied to every row of `x [n, in]`: those of [`Input::Vector`] to the row itself, others to the inner vector
/// of their factor.
///
/// # Errors
/// [`DeviceError::Range`] where shapes do not fit or an allocation is too short, or of the device.
pub fn project<D: Device>(
    device: &D,
    n: usize,
    x: &D::Memory,
    factors: &[Factor<'_, D>],
    slots: &[Slot<'_, D>],
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    let Some(width) = width_of(factors, slots)? else {
        return Ok(());
    };
    let Workspace {
        input,
        inner,
        second,
        prepared,
    } = workspace;
    let mut vectors = Vectors {
        n,
        width,
        x: bytes(x, "x", 0, &[n, width], F32)?,
        integers: None,
    };
    let of_input = || slots.iter().filter(|slot| slot.input == Input::Vector);
    let mut readers = factors.iter().map(|factor| factor.matrix);
    if readers.any(reads_integers) || of_input().any(|slot| reads_integers(slot.matrix)) {
        vectors.integers = Some(quantised(device, &vectors, None, input)?);
    }
    for slot in of_input() {
        multiply(device, slot.matrix, &vectors, slot.target(n)?, prepared)?;
    }
    // A vector of each factor behind the other, each where an allocation may begin.
    let mut end = 0;
    let places: Vec<usize> = factors
        .iter()
        .map(|factor| {
            let start = end;
            end += (n * factor.rows * F32).next_multiple_of(ALIGNED);
            start
        })
        .collect();
    let room = inner.of(device, end)?;
    for (index, (factor, start)) in factors.iter().zip(places).enumerate() {
        let x = bytes(room, "an inner vector", start, &[n, factor.rows], F32)?;
        let to = Target {
            y: x,
            rows: factor.rows,
            live: factor.rank,
        };
        multiply(device, factor.matrix, &vectors, to, prepared)?;
        let mut vectors = Vectors {
            n,
            width: factor.rows,
            x,
            integers: None,
        };
        let readers = || {
            slots
                .iter()
                .filter(|slot| slot.input == Input::Inner(index))
        };
        if readers().any(|slot| reads_integers(slot.matrix)) {
            vectors.integers = Some(quantised(device, &vectors, None, second)?);
        }
        for slot in readers() {
            multiply(device, slot.matrix, &vectors, slot.target(n)?, prepared)?;
        }
    }
    Ok(())
}

/// What allocations are aligned to.
const ALIGNED: usize = 256;

/// Where products go.
#[derive(Clone, Copy)]
struct Target {
    /// `[n, rows]`.
    y: Span,
    rows: usize,
    /// Rows that are computed; those behind them are zero.
    live: usize,
}

impl<D: Device> Slot<'_, D> {
    fn target(&self, n: usize) -> Result<Target, DeviceError> {
        Ok(Target {
            y: bytes(self.y, "y", 0, &[n, self.rows], F32)?,
            rows: self.rows,
            live: self.rows,
        })
    }
}

/// What does not fit: counts that should be one another.
fn misfit(what: &'static str, needed: usize, found: usize) -> DeviceError {
    DeviceError::Range {
        what,
        start: 0,
        needed,
        found,
    }
}

/// The width of the input, once all shapes are known to fit; nothing where nobody reads it.
fn width_of<D: Device>(
    factors: &[Factor<'_, D>],
    slots: &[Slot<'_, D>],
) -> Result<Option<usize>, DeviceError> {
    let mut width = None;
    let mut reads = |cols: usize| match width.replace(cols) {
        Some(other) if other != cols => Err(misfit("columns of the input", cols, other)),
        _ => Ok(()),
    };
    for factor in factors {
        reads(factor.matrix.cols())?;
        if factor.rows > factor.matrix.rows() || factor.rank > factor.rows {
            let rows = factor.matrix.rows().min(factor.rows);
            return Err(misfit(
                "rows of a factor",
                factor.rows.max(factor.rank),
                rows,
            ));
        }
    }
    for slot in slots {
        match slot.input {
            Input::Vector => reads(slot.cols)?,
            Input::Inner(index) => {
                let rows = factors.get(index).map_or(0, |factor| factor.rows);
                if index >= factors.len() || rows != slot.cols {
                    return Err(misfit("numbers of an inner vector", slot.cols, rows));
                }
            }
        }
        if slot.rows > slot.matrix.rows() {
            return Err(misfit("rows of a slot", slot.rows, slot.matrix.rows()));
        }
    }
    Ok(width)
}

/// Whether its products read vectors as integers, all in the same way.
fn reads_integers<D: Device>(matrix: &DeviceMatrix<D>) -> bool {
    match matrix.held() {
        Held::Blocks(blocks) => !blocks.format.reads_floats(),
        Held::Bands(bands) => bands.parts.iter().any(|part| !prepares(part)),
    }
}

/// Whether a matrix reads vectors otherwise than all others do.
fn prepares<D: Device>(part: &BandsPart<D>) -> bool {
    part.scaled || part.rotated
}

/// Vectors as integers, as blocks read them or as a matrix in bands does.
fn quantised<D: Device>(
    device: &D,
    vectors: &Vectors,
    part: Option<&BandsPart<D>>,
    room: &mut Room<D>,
) -> Result<Integers, DeviceError> {
    const KERNEL: Kernel<Quantise> = Kernel::new("quantise", 256);
    let Vectors { n, width, x, .. } = *vectors;
    let blocks = n.saturating_mul(width.div_ceil(BLOCK));
    let codes = blocks.saturating_mul(BLOCK).next_multiple_of(ALIGNED);
    let numbers = blocks.saturating_mul(F32).next_multiple_of(ALIGNED);
    let memory = room.of(device, codes + 2 * numbers)?;
    let integers = Integers {
        codes: bytes(memory, "codes", 0, &[blocks], BLOCK)?,
        steps: bytes(memory, "steps", codes, &[blocks], F32)?,
        sums: bytes(memory, "sums", codes + numbers, &[blocks], F32)?,
    };
    let columns = part.map_or(Ok(Span::NONE), BandsPart::columns)?;
    let arguments = Quantise {
        x,
        codes: integers.codes,
        steps: integers.steps,
        sums: integers.sums,
        columns,
        n: count("vectors", n)?,
        width: count("columns", width)?,
        rotated: part.is_some_and(|part| part.rotated).into(),
        unused: 0,
    };
    let grid = count(
        "blocks of vectors",
        (8 * blocks).div_ceil(KERNEL.threads as usize),
    )?;
    // SAFETY: eight threads read a block of `n` vectors of `width` numbers and write its codes, its step and its sums, for
    // which the spans have room; factors of columns are those of a matrix of as many columns.
    unsafe { device.launch(&KERNEL, [grid, 1, 1], 0, &arguments)? };
    Ok(integers)
}

/// The products of the leading rows of a matrix with vectors of as many numbers as leading columns are in use.
fn multiply<D: Device>(
    device: &D,
    matrix: &DeviceMatrix<D>,
    vectors: &Vectors,
    to: Target,
    prepared: &mut Room<D>,
) -> Result<(), DeviceError> {
    if vectors.n == 0 || to.rows == 0 {
        return Ok(());
    }
    match matrix.held() {
        Held::Blocks(blocks) => {
            let block = blocks.format.block();
            if vectors.width > matrix.cols() || !vectors.width.is_multiple_of(block) {
                let what = "columns in use (whole blocks)";
                return Err(misfit(what, vectors.width, matrix.cols() / block * block));
            }
            multiply_blocks(device, blocks, matrix, vectors, to)
        }
        Held::Bands(bands) => {
            if vectors.width != matrix.cols() {
                return Err(misfit(
                    "columns of a matrix in bands",
                    vectors.width,
                    matrix.cols(),
                ));
            }
            for part in &bands.parts {
                let integers = match vectors.integers {
                    Some(integers) if !prepares(part) => integers,
                    _ => quantised(device, vectors, Some(part), prepared)?,
                };
                multiply_bands(device, part, integers, vectors.n, to)?;
            }
            Ok(())
        }
    }
}

/// Vectors that are taken together, one, two, four or eight, as an index and as a number.
fn together(n: usize) -> (usize, usize) {
    match n {
        0 | 1 => (0, 1),
        2 => (1, 2),
        3 | 4 => (2, 4),
        _ => (3, TOGETHER),
    }
}

/// Groups of vectors, of which a grid has no more than 65535.
fn groups(n: usize, together: usize) -> Result<u32, DeviceError> {
    let groups = n.div_ceil(together);
    match u32::try_from(groups) {
        Ok(groups) if groups <= 65535 => Ok(groups),
        _ => Err(misfit("vectors of a product", n, 65535 * together)),
    }
}

/// Warps for a row, so that few rows keep a GPU busy, too: four, two or one, with a unit at least for each lane.
fn split(rows: usize, units: usize) -> u32 {
    const LANES: usize = 32;
    match units / LANES {
        4.. if rows < 4096 => 4,
        2.. if rows < 8192 => 2,
        _ => 1,
    }
}

fn multiply_blocks<D: Device>(
    device: &D,
    blocks: &Blocks<D>,
    matrix: &DeviceMatrix<D>,
    vectors: &Vectors,
    to: Target,
) -> Result<(), DeviceError> {
    const WARPS: u32 = 4;
    let none = Integers {
        codes: Span::NONE,
        steps: Span::NONE,
        sums: Span::NONE,
    };
    let integers = match vectors.integers {
        Some(integers) => integers,
        None if blocks.format.reads_floats() => none,
        None => return Err(misfit("integers of vectors", 1, 0)),
    };
    let split = split(matrix.rows(), matrix.cols().div_ceil(blocks.format.unit()));
    let arguments = Product {
        w: blocks.planes()?,
        x: vectors.x,
        codes: integers.codes,
        steps: integers.steps,
        sums: integers.sums,
        y: to.y,
        n: count("vectors", vectors.n)?,
        width: count("columns", vectors.width)?,
        rows: count("rows", to.rows)?,
        live: count("rows", to.live)?,
        y_width: count("rows", to.rows)?,
        split,
    };
    let (index, together) = together(vectors.n);
    let kernel = Kernel::<Product>::new(blocks.format.kernels()[index], WARPS * 32);
    let grid = [
        arguments.rows.div_ceil(WARPS / split),
        groups(vectors.n, together)?,
        1,
    ];
    // SAFETY: warps read `live` rows of a matrix that has `rows` of them, in blocks up to `width`, which its columns cover, and
    // `n` vectors of so many numbers, or their integers, and write `rows` numbers for each, for which the spans have room.
    unsafe { device.launch(&kernel, grid, 0, &arguments) }
}

fn multiply_bands<D: Device>(
    device: &D,
    part: &BandsPart<D>,
    integers: Integers,
    n: usize,
    to: Target,
) -> Result<(), DeviceError> {
    const NAMES: [&str; 4] = ["bands_1", "bands_2", "bands_4", "bands_8"];
    /// Blocks that a multiprocessor runs at a time at most; each takes tile after tile.
    const AT_A_TIME: usize = 8;
    let arguments = BandsProduct {
        w: part.tiles()?,
        codes: integers.codes,
        steps: integers.steps,
        y: to.y,
        n: count("vectors", n)?,
        rows: count("rows", to.rows)?,
        live: count("rows", to.live)?,
        y_width: count("rows", to.rows)?,
    };
    let (index, together) = together(n);
    let kernel = Kernel::<BandsProduct>::new(NAMES[index], 256);
    let tiles = part.rows.div_ceil(32);
    let blocks = tiles.min(device.multiprocessors() * AT_A_TIME);
    let grid = [count("tiles", blocks)?, groups(n, together)?, 1];
    // Room for nothing is no room.
    let shared = part.table_bytes().max(16);
    // SAFETY: warps read the tiles of a matrix with the integers of `n` vectors of its columns, whole bands, and write those of its rows
    // that are wanted, for which the span has room; tables are as long as the launch says.
    unsafe { device.launch(&kernel, grid, shared, &arguments) }
}

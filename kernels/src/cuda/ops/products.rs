//! Products of matrices with vectors.
//!
//! A row of a batch of fewer than 32 has the same bits in each of these, also alone: what a kernel adds up, and in which
//! order, depends on the matrix alone. Larger batches are multiplied by tensor cores, but where a [`Workspace`] was told to
//! [keep rows apart](Workspace::keep_apart); a row has the same bits in each of these, too, wherever it stands, though others than
//! in small ones.

use std::ops::Range;

mod launches;
mod pair;
mod producer;

#[cfg(test)]
pub(super) use launches::BANDS;
pub(super) use launches::shared_of_bands;
use launches::{Order, Target, Targets, Vectors, lay, multiply, round};
use pair::{MEETING, multiply_pair};
pub use producer::{Gated, Norm, Producer};

use super::matrix::DeviceMatrix;
use super::{F32, bytes, misfit};
use crate::cpu::Input;
use crate::cuda::device::{Device, DeviceError, Memory, Span};

/// Memory of a device that operations need for themselves and keep for the next.
#[derive(Debug)]
pub struct Workspace<D: Device> {
    /// The input as integers.
    input: Room<D>,
    /// Inner vectors.
    inner: Room<D>,
    /// Each of them as integers.
    second: Vec<Room<D>>,
    /// Zeros, by which launches count who has arrived.
    arrived: Option<D::Memory>,
    /// Zeros, by which blocks of a launch meet.
    meeting: Option<D::Memory>,
    /// How products of factors and of slots are launched.
    launches: Launches,
    /// How rows of a batch are added up.
    order: Order,
}

/// How products of factors and of slots are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Launches {
    /// Those of factors, and then those of slots.
    #[default]
    Two,
    /// All in one, where that is possible.
    One,
    /// One for each, as operations have it.
    Apart,
}

impl<D: Device> Default for Workspace<D> {
    fn default() -> Self {
        Workspace {
            input: Room(None),
            inner: Room(None),
            second: Vec::new(),
            arrived: None,
            meeting: None,
            launches: Launches::default(),
            order: Order::default(),
        }
    }
}

impl<D: Device> Workspace<D> {
    /// One for products that are computed launch by launch, for tests: the numbers are the same.
    pub fn one_by_one() -> Self {
        Workspace {
            launches: Launches::Apart,
            ..Workspace::default()
        }
    }

    /// One for products with the factors of slots and with the slots themselves in one launch, whose blocks meet in between, where
    /// all are blocks of one format, at most four each time, of at most four vectors: the numbers are the same. Whether that is
    /// faster than two is for a device to say.
    pub fn in_one_launch() -> Self {
        Workspace {
            launches: Launches::One,
            ..Workspace::default()
        }
    }

    /// Whether every row of the batches to come has the bits that it has in a batch of its own, however many there are.
    pub fn keep_apart(&mut self, apart: bool) {
        self.order = match apart {
            true => Order::OfOne,
            false => Order::OfMany,
        };
    }
}

/// So many zeros, and as many behind every launch that counts with them.
fn zeros<'a, D: Device>(
    device: &D,
    memory: &'a mut Option<D::Memory>,
    count: usize,
) -> Result<&'a D::Memory, DeviceError> {
    const LEAST: usize = 4096;
    let kept = match memory.take() {
        Some(memory) if memory.bytes() >= count * size_of::<u32>() => memory,
        _ => {
            let zeros = vec![0; count.next_multiple_of(LEAST).max(LEAST) * size_of::<u32>()];
            let memory = device.allocate(zeros.len())?;
            device.upload(&zeros, &memory, 0)?;
            memory
        }
    };
    Ok(memory.insert(kept))
}

/// An allocation that grows.
#[derive(Debug)]
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
    /// Whether products are added to what is there, with the bits of a sum of both.
    pub adds: bool,
}

/// Rows that a launch counts together where it rounds what it computes.
const COUNTED: usize = 32;

/// What allocations are aligned to.
const ALIGNED: usize = 256;

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
    product_behind(device, None, rows, matrix, [x, y], workspace)
}

/// As [`product`], behind what has yet to be done to the rows, all of them.
///
/// # Errors
/// As [`product`].
pub fn product_behind<D: Device>(
    device: &D,
    before: Option<Producer<'_, D>>,
    rows: Range<usize>,
    matrix: &DeviceMatrix<D>,
    [x, y]: [&D::Memory; 2],
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    let (n, width) = (rows.len(), matrix.cols());
    let start = rows.start.saturating_mul(width).saturating_mul(F32);
    let x = bytes(x, "x", start, &[n, width], F32)?;
    let to = Target {
        y: bytes(y, "y", 0, &[n, matrix.rows()], F32)?,
        rows: matrix.rows(),
        live: matrix.rows(),
        rounded: None,
        adds: false,
    };
    let all = vec![(matrix, to)];
    let mut vectors = Vectors::new(n, width, x);
    lay(device, &mut vectors, &all, &mut workspace.input)?;
    round(device, before, &vectors, false)?;
    multiply(device, workspace.order, &[(vectors, all)])
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
    project_behind(device, None, (n, x), factors, slots, workspace)
}

/// As [`project`], behind what has yet to be done to `x`.
///
/// # Errors
/// As [`project`].
pub fn project_behind<D: Device>(
    device: &D,
    before: Option<Producer<'_, D>>,
    (n, x): (usize, &D::Memory),
    factors: &[Factor<'_, D>],
    slots: &[Slot<'_, D>],
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    let Some(width) = width_of(factors, slots)? else {
        return before.map_or(Ok(()), |before| before.finish(device));
    };
    let x = bytes(x, "x", 0, &[n, width], F32)?;
    // A vector of each factor behind the other, each where an allocation may begin.
    let mut end = 0_usize;
    let places: Vec<usize> = factors
        .iter()
        .map(|factor| {
            let numbers = n.saturating_mul(factor.rows).saturating_mul(F32);
            end = end.saturating_add(numbers.div_ceil(ALIGNED).saturating_mul(ALIGNED));
            end - numbers.div_ceil(ALIGNED) * ALIGNED
        })
        .collect();
    let room = workspace.inner.of(device, end)?;
    while workspace.second.len() < factors.len() {
        workspace.second.push(Room(None));
    }
    let counts = factors.iter().map(|factor| factor.rows.div_ceil(COUNTED));
    let arrived = match counts.clone().sum() {
        0 => None,
        count => Some(zeros(device, &mut workspace.arrived, count)?),
    };
    let mut counted = 0;
    let mut inner = Vec::with_capacity(factors.len());
    let mut done = Vec::with_capacity(factors.len());
    // What reads the input: slots, and factors.
    let mut first = targets(n, slots, Input::Vector)?;
    let of_factors = factors
        .iter()
        .zip(places)
        .zip(counts)
        .zip(&mut workspace.second);
    for (index, (((factor, start), count), of_inner)) in of_factors.enumerate() {
        let x = bytes(room, "an inner vector", start, &[n, factor.rows], F32)?;
        let mut vectors = Vectors::new(n, factor.rows, x);
        let second = targets(n, slots, Input::Inner(index))?;
        lay(device, &mut vectors, &second, of_inner)?;
        let arrived = arrived.map_or(Ok(Span::NONE), |memory| {
            bytes(memory, "counts", 4 * counted, &[count], 4)
        })?;
        counted += count;
        let rounded = match workspace.launches {
            Launches::Apart => None,
            Launches::Two | Launches::One => vectors.rounded(factor.matrix, arrived),
        };
        let to = Target {
            y: x,
            rows: factor.rows,
            live: factor.rank,
            rounded,
            adds: false,
        };
        first.push((factor.matrix, to));
        inner.push((vectors, second));
        done.push(rounded.is_some());
    }
    let mut vectors = Vectors::new(n, width, x);
    lay(device, &mut vectors, &first, &mut workspace.input)?;
    round(device, before, &vectors, false)?;
    let first = [(vectors, first)];
    if workspace.launches == Launches::One {
        let meeting = zeros(device, &mut workspace.meeting, MEETING)?;
        let rounded = done.iter().all(|&done| done);
        if multiply_pair(device, meeting, &first, &inner, rounded)? {
            return Ok(());
        }
    }
    multiply(device, workspace.order, &first)?;
    for ((vectors, _), &done) in inner.iter().zip(&done) {
        round(device, None, vectors, done)?;
    }
    let together = match workspace.launches {
        Launches::Apart => 1,
        Launches::Two | Launches::One => inner.len().max(1),
    };
    let mut of_launches = inner.chunks(together);
    of_launches.try_for_each(|groups| multiply(device, workspace.order, groups))
}

/// The matrices of slots that read `input`, and where their products go.
fn targets<'a, D: Device>(
    n: usize,
    slots: &[Slot<'a, D>],
    input: Input,
) -> Result<Targets<'a, D>, DeviceError> {
    let of_input = slots.iter().filter(|slot| slot.input == input);
    let targets = of_input.map(|slot| {
        let to = Target {
            y: bytes(slot.y, "y", 0, &[n, slot.rows], F32)?,
            rows: slot.rows,
            live: slot.rows,
            rounded: None,
            adds: slot.adds,
        };
        Ok((slot.matrix, to))
    });
    targets.collect()
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

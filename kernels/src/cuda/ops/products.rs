//! Matrix-vector and matrix-matrix products.
//!
//! In a batch of fewer than 32 rows, each row has the same bits as alone: the order of summation
//! depends on the matrix only. Larger batches use tensor cores, unless [batch
//! invariance](Workspace::keep_apart) is set on the [`Workspace`]; there a row has the same bits at
//! any index of any such batch, which differ from those in small batches.

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

/// Scratch memory, reused between operations.
#[derive(Debug)]
pub struct Workspace<D: Device> {
    /// Quantised input.
    input: Room<D>,
    /// Outputs of factors.
    inner: Room<D>,
    /// Quantised outputs of factors.
    second: Vec<Room<D>>,
    /// Zeroed arrival counters.
    arrived: Option<D::Memory>,
    /// Zeroed counters of the grid barrier.
    meeting: Option<D::Memory>,
    /// Launch strategy for factors and projections.
    launches: Launches,
    /// Summation order for batches.
    order: Order,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Launches {
    /// One for factors, then one for projections.
    #[default]
    Two,
    /// A single launch, if possible.
    One,
    /// One launch per product.
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
    /// Returns a workspace that launches each product separately, for tests. Results are identical.
    pub fn one_by_one() -> Self {
        Workspace {
            launches: Launches::Apart,
            ..Workspace::default()
        }
    }

    /// Returns a workspace that runs factors and projections in a single launch with a grid barrier
    /// in between, if all matrices are blocks of one format, with at most four factors, four
    /// projections and four vectors. Results are identical; whether it is faster depends on the
    /// device.
    pub fn in_one_launch() -> Self {
        Workspace {
            launches: Launches::One,
            ..Workspace::default()
        }
    }

    /// Sets batch invariance: each row of later batches gets the same bits as alone, regardless of
    /// the batch size.
    pub fn keep_apart(&mut self, apart: bool) {
        self.order = if apart { Order::OfOne } else { Order::OfMany };
    }
}

/// Returns `count` zeroed counters; every launch that uses them resets them.
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

#[derive(Debug)]
struct Room<D: Device>(Option<D::Memory>);

impl<D: Device> Room<D> {
    fn of(&mut self, device: &D, bytes: usize) -> Result<&D::Memory, DeviceError> {
        let kept = match self.0.take() {
            Some(memory) if memory.bytes() >= bytes => memory,
            other => {
                // Freed first, so that its memory can be reused.
                drop(other);
                device.allocate(bytes.checked_next_power_of_two().unwrap_or(bytes))?
            }
        };
        Ok(self.0.insert(kept))
    }
}

/// First matrix of a low-rank factorisation; its product with the input is an inner vector.
pub struct Factor<'a, D: Device> {
    /// The matrix.
    pub matrix: &'a DeviceMatrix<D>,
    /// Number of leading rows computed.
    pub rows: usize,
    /// Rank: components of the inner vector in use; the rest up to `rows` are zero.
    pub rank: usize,
}

/// A linear projection, `y = W x`, or `y = W A x` with the matrix `A` of a [`Factor`].
pub struct Slot<'a, D: Device> {
    /// `W`.
    pub matrix: &'a DeviceMatrix<D>,
    /// Leading rows in use: elements per row of `y`.
    pub rows: usize,
    /// Leading columns in use.
    pub cols: usize,
    /// Operand: the input or the output of a factor.
    pub input: Input,
    /// Output `[n, rows]`.
    pub y: &'a D::Memory,
    /// Accumulates into `y`, with the bits of a separate sum.
    pub adds: bool,
}

/// Rows per arrival counter in a launch that quantises its output.
const COUNTED: usize = 32;

const ALIGNED: usize = 256;

/// Computes `y [rows.len(), matrix.rows()]`, the products of a matrix with a range of rows of `x
/// [n, matrix.cols()]`.
///
/// # Errors
/// [`DeviceError::Range`] for a short allocation, or a device error.
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

/// As [`product`], after a pending operation that produces all the rows.
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

/// Applies every projection to each row of `x [n, in]`: those with [`Input::Vector`] to the row,
/// others to the inner vector of their factor.
///
/// # Errors
/// [`DeviceError::Range`] for mismatched shapes or a short allocation, or a device error.
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

/// As [`project`], after a pending operation that produces `x`.
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
    // Products of the input: projections and factors.
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

/// Checks all shapes and returns the width of the input, or `None` if nothing reads it.
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

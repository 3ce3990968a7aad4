//! Products of matrices with vectors.
//!
//! A row of a batch has the same bits in a batch of any size: what a kernel adds up, and in which order, depends on the
//! matrix alone.

use std::ops::Range;

mod launches;
mod producer;

use launches::{Target, Vectors, multiply, prepare};
pub use producer::{Gated, Norm, Producer};

use super::matrix::DeviceMatrix;
use super::{F32, bytes};
use crate::cpu::Input;
use crate::cuda::device::{Device, DeviceError, Memory};

/// Memory of a device that operations need for themselves and keep for the next.
#[derive(Debug)]
pub struct Workspace<D: Device> {
    /// The input as integers.
    input: Room<D>,
    /// Inner vectors.
    inner: Room<D>,
    /// One of them as integers.
    second: Room<D>,
}

impl<D: Device> Default for Workspace<D> {
    fn default() -> Self {
        Workspace {
            input: Room(None),
            inner: Room(None),
            second: Room(None),
        }
    }
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
}

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
    };
    let all = [(matrix, to)];
    let mut vectors = Vectors::new(n, width, x);
    prepare(device, before, &mut vectors, &all, &mut workspace.input)?;
    multiply(device, &vectors, &all)
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
    let mut inner = Vec::with_capacity(factors.len());
    // What reads the input: slots, and factors.
    let mut first = targets(n, slots, Input::Vector)?;
    for (factor, start) in factors.iter().zip(places) {
        let x = bytes(room, "an inner vector", start, &[n, factor.rows], F32)?;
        let to = Target {
            y: x,
            rows: factor.rows,
            live: factor.rank,
        };
        first.push((factor.matrix, to));
        inner.push(Vectors::new(n, factor.rows, x));
    }
    let mut vectors = Vectors::new(n, width, x);
    prepare(device, before, &mut vectors, &first, &mut workspace.input)?;
    multiply(device, &vectors, &first)?;
    for (index, mut vectors) in inner.into_iter().enumerate() {
        let second = targets(n, slots, Input::Inner(index))?;
        prepare(device, None, &mut vectors, &second, &mut workspace.second)?;
        multiply(device, &vectors, &second)?;
    }
    Ok(())
}

/// The matrices of slots that read `input`, and where their products go.
fn targets<'a, D: Device>(
    n: usize,
    slots: &[Slot<'a, D>],
    input: Input,
) -> Result<Vec<(&'a DeviceMatrix<D>, Target)>, DeviceError> {
    let of_input = slots.iter().filter(|slot| slot.input == input);
    let targets = of_input.map(|slot| {
        let to = Target {
            y: bytes(slot.y, "y", 0, &[n, slot.rows], F32)?,
            rows: slot.rows,
            live: slot.rows,
        };
        Ok((slot.matrix, to))
    });
    targets.collect()
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

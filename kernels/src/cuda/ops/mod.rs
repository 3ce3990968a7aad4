//! Operations on device memory, with size checks and launch configuration.
//!
//! Elements are `f32` unless stated otherwise, contiguous from the beginning of an allocation,
//! which may be longer.

mod asked;
mod attention;
#[cfg(all(test, feature = "emulated"))]
mod attention_tests;
mod draw;
mod elementwise;
mod embed;
mod faults;
mod heads;
mod kv;
mod largest;
mod matrix;
#[cfg(all(test, feature = "emulated"))]
mod matrix_tests;
mod products;

pub use asked::asked;
pub use attention::{
    AttentionRoom, Held, HeldLow, Joined, Queries, attend, attention, importance, partial_numbers,
};
pub use draw::{Draw, Drawing, MOST_DRAWN};
pub use elementwise::{
    Gate, RopeShape, RowsShape, activate, add, add_rows, hadamard, rms_norm, rope, rotate_to,
    softcap,
};
pub use embed::embed;
pub use faults::{Fault, Faults};
pub use heads::{AppendTo, HEADS_PARTS, HeadsPart, HeadsShape, Turn, heads_ready};
pub use kv::{Coordinates, KvHeads, KvNumbers, KvRows, append, expand, map, widen};
pub use largest::{Largest, MOST_LARGEST};
pub use matrix::{DeviceMatrix, Source};
pub use products::{
    Factor, Gated, Norm, Producer, Slot, Workspace, product, product_behind, project,
    project_behind,
};

use crate::error::ShapeError;

use super::device::{Arguments, Device, DeviceError, Kernel, Memory, Span};

const F32: usize = size_of::<f32>();

/// Allocates memory and uploads numbers.
///
/// # Errors
/// A device error.
pub fn put<D: Device>(device: &D, numbers: &[f32]) -> Result<D::Memory, DeviceError> {
    let memory = device.allocate(size_of_val(numbers))?;
    overwrite(device, numbers, &memory)?;
    Ok(memory)
}

/// Copies numbers to the beginning of an allocation.
///
/// # Errors
/// A device error; [`DeviceError::Range`] if it is too short.
pub fn overwrite<D: Device>(
    device: &D,
    numbers: &[f32],
    to: &D::Memory,
) -> Result<(), DeviceError> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    device.upload(&bytes, to, 0)
}

/// Reads the first numbers of an allocation after all earlier operations.
///
/// # Errors
/// The error of an earlier operation; [`DeviceError::Range`] if it is too short.
pub fn read<D: Device>(device: &D, from: &D::Memory, to: &mut [f32]) -> Result<(), DeviceError> {
    let mut bytes = vec![0; size_of_val(to)];
    device.download(from, 0, &mut bytes)?;
    for (to, &bytes) in to.iter_mut().zip(bytes.as_chunks::<F32>().0) {
        *to = f32::from_le_bytes(bytes);
    }
    Ok(())
}

/// Returns the first `count` numbers of an allocation, as [`read`].
///
/// # Errors
/// As [`read`].
pub fn get<D: Device>(device: &D, from: &D::Memory, count: usize) -> Result<Vec<f32>, DeviceError> {
    let mut numbers = vec![0.0; count];
    read(device, from, &mut numbers)?;
    Ok(numbers)
}

fn floats(
    memory: &impl Memory,
    what: &'static str,
    numbers: &[usize],
) -> Result<Span, DeviceError> {
    bytes(memory, what, 0, numbers, F32)
}

fn bytes(
    memory: &impl Memory,
    what: &'static str,
    start: usize,
    counts: &[usize],
    unit: usize,
) -> Result<Span, DeviceError> {
    let total = counts.iter().try_fold(unit, |n, &c| n.checked_mul(c));
    memory.span(what, start, total.unwrap_or(usize::MAX))
}

fn misfit(what: &'static str, expected: usize, found: usize) -> DeviceError {
    DeviceError::Shape(ShapeError {
        what,
        expected,
        found,
    })
}

fn count(what: &'static str, n: usize) -> Result<u32, DeviceError> {
    // Keeps twice the count a valid index.
    u32::try_from(n)
        .ok()
        .filter(|&n| n <= 1 << 30)
        .ok_or(DeviceError::Range {
            what,
            start: 0,
            needed: n,
            found: 1 << 30,
        })
}

/// Launches a kernel with one thread per element.
///
/// # Safety
/// As [`Device::launch`].
unsafe fn each<D: Device, A: Arguments>(
    device: &D,
    kernel: &Kernel<A>,
    numbers: usize,
    arguments: &A,
) -> Result<(), DeviceError> {
    // Thread indices are 32-bit.
    let blocks = count(kernel.name, numbers)?.div_ceil(kernel.threads);
    // SAFETY: guaranteed by the caller.
    unsafe { device.launch(kernel, [blocks, 1, 1], 0, arguments) }
}

//! Operations on device memory. Elements are contiguous `f32` from the beginning of an allocation
//! unless stated otherwise.

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

pub use asked::dynamic_shared_bytes;
pub use attention::{
    AttentionScratch, DeviceLayerCache, DeviceLowRankCache, PartialAttention, QueryShape,
    attend_splits, attention, attention_importance, partial_sum_len,
};
pub use draw::{MAX_SAMPLED_LOGITS, SamplingParameters, TokenSampler};
pub use elementwise::{
    GateActivation, RopeShape, RowsShape, add, add_rows, gated_activation, hadamard, rms_norm,
    rope, rope_tables, softcap,
};
pub use embed::dequantise_rows;
pub use faults::{Fault, FaultEntries};
pub use heads::{AppendTarget, HeadsPart, HeadsShape, MAX_HEADS_PARTS, RopeRows, prepare_heads};
pub use kv::{
    AppendedRows, DeviceLowRankRows, KvElement, KvHeads, KvRows, KvRowsFrom, append_rows,
    expand_low_rank, map_rows, rows_to_f32,
};
pub use largest::{MAX_TOP_K, TopK};
pub use matrix::{DeviceMatrix, MatrixSource};
pub use products::{
    Factor, PendingGate, PendingNorm, PendingOperation, Projection, Workspace, product,
    product_after, project, project_after,
};

use crate::error::ShapeError;

use super::device::{Device, DeviceError, DeviceMemory, DeviceSpan, Kernel, KernelArguments};

const F32_BYTES: usize = size_of::<f32>();

/// Allocates memory and uploads numbers.
pub fn upload_floats<D: Device>(device: &D, numbers: &[f32]) -> Result<D::Memory, DeviceError> {
    let memory = device.allocate(size_of_val(numbers))?;
    write_floats(device, numbers, &memory)?;
    Ok(memory)
}

/// Copies numbers to the beginning of an allocation.
pub fn write_floats<D: Device>(
    device: &D,
    numbers: &[f32],
    to: &D::Memory,
) -> Result<(), DeviceError> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    device.upload(&bytes, to, 0)
}

/// Reads the first numbers of an allocation after all earlier operations.
pub fn read_floats<D: Device>(
    device: &D,
    from: &D::Memory,
    to: &mut [f32],
) -> Result<(), DeviceError> {
    let mut bytes = vec![0; size_of_val(to)];
    device.download(from, 0, &mut bytes)?;
    for (to, &bytes) in to.iter_mut().zip(bytes.as_chunks::<F32_BYTES>().0) {
        *to = f32::from_le_bytes(bytes);
    }
    Ok(())
}

/// Returns the first `count` numbers of an allocation, as [`read_floats`].
pub fn download_floats<D: Device>(
    device: &D,
    from: &D::Memory,
    count: usize,
) -> Result<Vec<f32>, DeviceError> {
    let mut numbers = vec![0.0; count];
    read_floats(device, from, &mut numbers)?;
    Ok(numbers)
}

/// Memory that grows to the largest request.
#[derive(Debug)]
struct GrowingBuffer<D: Device>(Option<D::Memory>);

impl<D: Device> GrowingBuffer<D> {
    fn reserve(&mut self, device: &D, bytes: usize) -> Result<&D::Memory, DeviceError> {
        let kept = match self.0.take() {
            Some(memory) if memory.len() >= bytes => memory,
            other => {
                drop(other);
                device.allocate(bytes.checked_next_power_of_two().unwrap_or(bytes))?
            }
        };
        Ok(self.0.insert(kept))
    }
}

impl<D: Device> Default for GrowingBuffer<D> {
    fn default() -> Self {
        GrowingBuffer(None)
    }
}

fn float_span(
    memory: &impl DeviceMemory,
    what: &'static str,
    numbers: &[usize],
) -> Result<DeviceSpan, DeviceError> {
    byte_span(memory, what, 0, numbers, F32_BYTES)
}

fn byte_span(
    memory: &impl DeviceMemory,
    what: &'static str,
    start: usize,
    counts: &[usize],
    unit: usize,
) -> Result<DeviceSpan, DeviceError> {
    let total = counts.iter().try_fold(unit, |n, &c| n.checked_mul(c));
    memory.span(what, start, total.unwrap_or(usize::MAX))
}

fn shape_mismatch(what: &'static str, expected: usize, found: usize) -> DeviceError {
    DeviceError::Shape(ShapeError::new(what, expected, found))
}

fn kernel_count(what: &'static str, n: usize) -> Result<u32, DeviceError> {
    u32::try_from(n)
        .ok()
        .filter(|&n| n <= 1 << 30)
        .ok_or(DeviceError::OutOfBounds {
            operand: what,
            start: 0,
            needed: n,
            available: 1 << 30,
        })
}

/// # Safety
/// As [`Device::launch`].
unsafe fn launch_per_element<D: Device, A: KernelArguments>(
    device: &D,
    kernel: &Kernel<A>,
    numbers: usize,
    arguments: &A,
) -> Result<(), DeviceError> {
    let blocks = kernel_count(kernel.name, numbers)?.div_ceil(kernel.threads);
    // SAFETY: guaranteed by the caller.
    unsafe { device.launch(kernel, [blocks, 1, 1], 0, arguments) }
}

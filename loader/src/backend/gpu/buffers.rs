//! Buffers in device memory.

use std::ops::Range;
use std::sync::Arc;

use htc_kernels::cuda::Device;

use crate::error::ExecError;
use crate::kv::missing;

/// Activations on a device.
#[derive(Debug)]
pub struct GpuBuffer<D: Device> {
    pub(super) memory: Option<Arc<D::Memory>>,
}

impl<D: Device> Default for GpuBuffer<D> {
    fn default() -> Self {
        GpuBuffer { memory: None }
    }
}

impl<D: Device> GpuBuffer<D> {
    pub(super) fn memory(&self) -> Result<&Arc<D::Memory>, ExecError> {
        self.memory.as_ref().ok_or_else(|| missing("a buffer"))
    }
}

/// The weight of a norm, or a bias, on a device.
#[derive(Debug)]
pub struct GpuVector<D: Device> {
    pub(super) memory: Arc<D::Memory>,
    pub(super) numbers: usize,
}

/// Cosines and sines `[n, pairs]` of the positions of a batch, on a device.
#[derive(Debug)]
pub struct GpuRotation<D: Device> {
    /// Radians per position, float64.
    pub(super) frequencies: Option<D::Memory>,
    pub(super) sides: [GpuBuffer<D>; 2],
    pub(super) positions: Vec<Range<usize>>,
    pub(super) pairs: usize,
}

impl<D: Device> Default for GpuRotation<D> {
    fn default() -> Self {
        GpuRotation {
            frequencies: None,
            sides: Default::default(),
            positions: Vec::new(),
            pairs: 0,
        }
    }
}

//! Estimates of the device memory that a model needs.

use htc_formats::model::HyperParameters;
use htc_kernels::cuda::{Device, DeviceError, ops};

use crate::exec::BATCH;
use crate::kv::{KvKind, KvShape};
use crate::model::Model;

/// Estimated device memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuMemoryEstimate {
    /// Weights in the device layout.
    pub weights: u64,
    /// KV cache of all positions in full precision, with spare capacity.
    pub kv: u64,
    /// Activations of a batch and logits of a position.
    pub activations: u64,
}

/// A planned session.
#[derive(Clone, Copy)]
pub struct PlannedSession<'a> {
    /// Model of the session.
    pub model: &'a Model,
    /// Largest number of positions.
    pub positions: usize,
    /// KV cache kind.
    pub kind: KvKind,
}

impl GpuMemoryEstimate {
    /// Returns the memory of one session for each entry. Matrices that do not decode are skipped;
    /// loading refuses them by name.
    pub fn for_sessions<D: Device>(planned: &[PlannedSession<'_>]) -> GpuMemoryEstimate {
        let mut all = GpuMemoryEstimate::default();
        for &PlannedSession {
            model,
            positions,
            kind,
        } in planned
        {
            for tensor in model.tensors() {
                let source = match tensor.column_groups() {
                    Ok(Some(bands)) => Some(ops::MatrixSource::ColumnGroups(bands)),
                    Ok(None) => tensor.matrix().ok().map(ops::MatrixSource::Blocks),
                    Err(_) => None,
                };
                let bytes = source.map_or(0, ops::DeviceMatrix::<D>::estimated_bytes);
                all.weights = all.weights.saturating_add(bytes as u64);
            }
            let hyper = model.hyper();
            let position = KvShape::from(hyper).position_bytes(kind.stored_type()) as u64;
            let kv = position.saturating_mul(super::kv::max_capacity(positions) as u64);
            all.kv = all.kv.saturating_add(kv);
            let activations = activations(hyper, positions.min(BATCH));
            all.activations = all.activations.saturating_add(activations);
        }
        all
    }

    /// Returns the total.
    pub fn bytes(self) -> u64 {
        let sum = self.weights.saturating_add(self.kv);
        sum.saturating_add(self.activations)
    }

    /// Checks that the device has enough free memory.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn check(self, device: &impl Device) -> Result<(), DeviceError> {
        self.fits(device.memory_info()?)
    }

    fn fits(self, [free, total]: [usize; 2]) -> Result<(), DeviceError> {
        let needed = usize::try_from(self.bytes()).unwrap_or(usize::MAX);
        if needed > free {
            Err(DeviceError::OutOfMemory {
                needed,
                free,
                total,
            })
        } else {
            Ok(())
        }
    }
}

/// Buffers of a batch: three residual streams, queries and attention outputs, keys and values, gate
/// and up; quantised inputs of products, a quarter of the widest plus scales; and partial attention
/// results of context splits.
fn activations(hyper: &HyperParameters, rows: usize) -> u64 {
    let heads = 2 * (hyper.heads + hyper.kv_heads) * hyper.head_size;
    let ffn = hyper.widest_ffn();
    // Rows that an expert reads and writes, and scores.
    let experts = match hyper.experts() {
        0 => 0,
        experts => 2 * hyper.width + experts,
    };
    let row = 3 * hyper.width + heads + 2 * ffn + ffn.max(hyper.width) / 2 + experts;
    let partial = ops::partial_sum_len(rows, hyper.heads, hyper.head_size);
    let numbers = (row as u64).saturating_mul(rows as u64);
    let numbers = numbers.saturating_add(partial as u64);
    4 * numbers.saturating_add(hyper.vocabulary as u64)
}

#[cfg(test)]
mod tests;

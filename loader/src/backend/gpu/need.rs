//! What a model will need of a device's memory, before any of it is asked for.

use htc_formats::model::HyperParameters;
use htc_kernels::cuda::{Device, DeviceError, ops};

use crate::error::ExecError;
use crate::exec::BATCH;
use crate::kv::{KvKind, KvShape};
use crate::model::Model;

/// Bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Weights, as they are laid out there.
    pub weights: u64,
    /// Keys and values of all positions, in full.
    pub kv: u64,
    /// Activations of a batch and logits of a position.
    pub activations: u64,
}

impl Need {
    /// What sessions of one model need together that have `positions` at most.
    ///
    /// # Errors
    /// [`ExecError`] for a matrix that does not decode.
    pub fn of<D: Device>(model: &Model, positions: usize, kind: KvKind) -> Result<Need, ExecError> {
        let mut weights = 0;
        for tensor in model.tensors() {
            let source = match tensor.bands()? {
                Some(bands) => ops::Source::Bands(bands),
                None => ops::Source::Blocks(tensor.matrix()?),
            };
            weights += ops::DeviceMatrix::<D>::bytes_of(source) as u64;
        }
        let hyper = model.hyper();
        let position = KvShape::from(hyper).position_bytes(kind.stored());
        Ok(Need {
            weights,
            kv: (position as u64).saturating_mul(positions as u64),
            activations: activations(hyper, positions.min(BATCH)),
        })
    }

    /// All of it.
    pub fn bytes(self) -> u64 {
        let sum = self.weights.saturating_add(self.kv);
        sum.saturating_add(self.activations)
    }

    /// Whether a device has room for it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where it has not, with the numbers.
    pub fn check(self, device: &impl Device) -> Result<(), DeviceError> {
        let [free, total] = device.room()?;
        let needed = usize::try_from(self.bytes()).unwrap_or(usize::MAX);
        match needed > free {
            true => Err(DeviceError::OutOfMemory {
                needed,
                free,
                total,
            }),
            false => Ok(()),
        }
    }
}

/// Buffers of a batch: the residual stream thrice, queries and what they attend to, keys and values, gate and up; and the
/// integers that products read, a quarter of the widest and its scales.
fn activations(hyper: &HyperParameters, rows: usize) -> u64 {
    let heads = 2 * (hyper.heads + hyper.kv_heads) * hyper.head_size;
    let row = 3 * hyper.width + heads + 2 * hyper.ffn + hyper.ffn.max(hyper.width) / 2;
    let numbers = (row as u64).saturating_mul(rows as u64);
    4 * numbers.saturating_add(hyper.vocabulary as u64)
}

//! The bases that an adaptive KV cache begins with, from the statistics of a layer to stored tensors.

use htc_formats::DType;
use htc_formats::block;
use htc_formats::model::{HyperParameters, KvSide, MatrixId, Role, Slot, StoredTensor};

use super::UnitError;
use crate::calibrate::{Moment, StoredLayer};
use crate::math::{Algebra, SecondMoment, principal_basis};
use crate::order::{Order, reordered_moment};

/// How bases are stored. Of rows of unit length f16 loses less than a thousandth of the orthonormality and has half the
/// bytes of f32; what is projected on them is no more exact in the cache.
const BASIS: DType = DType::F16;

/// How energies are stored.
const ENERGIES: DType = DType::F32;

/// Square matrices of f64 that a decomposition takes, the moment and the result among them.
const SQUARES: u64 = 8;

/// What is stored of a layer, in the order of an artifact.
pub fn stored(hyper: &HyperParameters, layer: usize) -> [StoredTensor; 4] {
    let (heads, size) = (hyper.kv_heads, hyper.head_size);
    let tensor = |role, dtype, rows| StoredTensor {
        role,
        dtype,
        rows,
        cols: size,
        codes: None,
    };
    let basis = |side| tensor(Role::KvBasis { layer, side }, BASIS, heads * size);
    let energies = |side| tensor(Role::KvEnergies { layer, side }, ENERGIES, heads);
    let [keys, values] = KvSide::ALL;
    [basis(keys), energies(keys), basis(values), energies(values)]
}

/// The roles of a layer, in the order of an artifact.
pub fn roles(layer: usize) -> Vec<Role> {
    let of_side = |side| {
        [
            Role::KvBasis { layer, side },
            Role::KvEnergies { layer, side },
        ]
    };
    KvSide::ALL.into_iter().flat_map(of_side).collect()
}

/// Bytes that are stored of a layer, without the alignment between tensors.
pub fn bytes(hyper: &HyperParameters) -> u64 {
    let tensors = stored(hyper, 0);
    tensors.iter().map(StoredTensor::bytes).sum()
}

/// Bytes of memory that a layer takes while it is made, on one thread.
pub(crate) fn working(hyper: &HyperParameters) -> u64 {
    let square = 8 * (hyper.head_size as u64).pow(2);
    // The numbers in front of their bytes are float32.
    SQUARES * square + 3 * bytes(hyper)
}

/// Cubes of the orders of the matrices that are decomposed for all layers.
pub(crate) fn cubes(hyper: &HyperParameters) -> f64 {
    let decompositions = KvSide::ALL.len() * hyper.layers * hyper.kv_heads;
    decompositions as f64 * (hyper.head_size as f64).powi(3)
}

/// The tensors of a layer with their bytes, on the calling thread: of keys the principal components of queries and keys
/// together, each vector once, of values those of values, in the order in which the model is stored.
///
/// # Errors
/// [`UnitError::Factorise`] for statistics that no activations have, which names the tensor.
pub fn of_layer(
    calibrated: &StoredLayer,
    (hyper, layer): (&HyperParameters, usize),
    order: Option<&Order>,
    algebra: &dyn Algebra,
) -> Result<Vec<(Role, Vec<u8>)>, UnitError> {
    let slot = Slot::V;
    let of_values = order.and_then(|order| order.outputs(MatrixId::Slot { layer, slot }));
    let [mut keys, mut values] = KvSide::ALL.map(|side| Made::new(side, layer));
    for head in 0..hyper.kv_heads {
        let [queries, of_keys, of_head] = calibrated.head(head);
        keys.add(&together(&queries, &of_keys), algebra)?;
        let of_head = match of_values {
            None => of_head,
            Some(order) => {
                let first = head * hyper.head_size;
                let within = order[first..first + hyper.head_size].iter();
                let within: Vec<u32> = within.map(|&place| place - first as u32).collect();
                reordered_moment(&of_head, &within)
            }
        };
        values.add(&of_head.lower(), algebra)?;
    }
    let [keys, values] = [keys.finish()?, values.finish()?];
    Ok([keys, values].concat())
}

/// `E[x xᵀ] [n, n]` of the vectors of two streams together, row by row; above the diagonal zero.
fn together(one: &Moment, other: &Moment) -> Vec<f64> {
    let total = (one.count + other.count).max(1) as f64;
    let parts = [one, other].map(|of| of.count as f64 / total);
    let mut sum = one.lower();
    for (sum, more) in sum.iter_mut().zip(other.lower()) {
        *sum = parts[0] * *sum + parts[1] * more;
    }
    sum
}

/// Bases of one side of a layer, head by head.
struct Made {
    basis: Role,
    energies: Role,
    components: Vec<f32>,
    parts: Vec<f32>,
}

impl Made {
    fn new(side: KvSide, layer: usize) -> Made {
        Made {
            basis: Role::KvBasis { layer, side },
            energies: Role::KvEnergies { layer, side },
            components: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// The next head, of the second moment `[n, n]` of its vectors.
    fn add(&mut self, lower: &[f64], algebra: &dyn Algebra) -> Result<(), UnitError> {
        let moment = SecondMoment {
            order: lower.len().isqrt(),
            values: lower,
        };
        let found = principal_basis(moment, as_stored, algebra);
        let found = found.map_err(|source| UnitError::Factorise {
            tensor: self.basis.to_string(),
            source,
        })?;
        let components = found.components.iter().map(|&x| x as f32);
        self.components.extend(components);
        self.parts.extend(found.energies.iter().map(|&x| x as f32));
        Ok(())
    }

    /// Both tensors.
    fn finish(self) -> Result<[(Role, Vec<u8>); 2], UnitError> {
        Ok([
            (self.basis, encoded(self.basis, BASIS, &self.components)?),
            (
                self.energies,
                encoded(self.energies, ENERGIES, &self.parts)?,
            ),
        ])
    }
}

fn encoded(role: Role, dtype: DType, values: &[f32]) -> Result<Vec<u8>, UnitError> {
    let mut bytes = vec![0; values.len() * dtype.block_bytes()];
    block::encode(dtype, values, &mut bytes).map_err(|source| UnitError::Block {
        tensor: role.to_string(),
        source,
    })?;
    Ok(bytes)
}

/// A number as it is read of what is stored, of magnitudes that f16 has all eleven bits for, such as the largest entry of
/// a row of unit length: rounded to these, half to even.
fn as_stored(number: f64) -> f32 {
    const DROPPED: u32 = f32::MANTISSA_DIGITS - 11;
    let bits = (number as f32).to_bits();
    let is_odd = (bits >> DROPPED) & 1;
    let rounded = bits + (1 << (DROPPED - 1)) - 1 + is_odd;
    f32::from_bits(rounded & !((1 << DROPPED) - 1))
}

#[cfg(test)]
mod tests;

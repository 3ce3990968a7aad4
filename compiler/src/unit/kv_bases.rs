//! Initial bases of an adaptive KV cache, from the statistics of a layer.

use htc_formats::DType;
use htc_formats::block;
use htc_formats::model::{HyperParameters, KvSide, MatrixId, ProjectionKind, Role, StoredTensor};

use super::MakeError;
use crate::calibrate::{StoredLayer, StoredMoment};
use crate::math::{Algebra, SecondMoment, principal_basis};
use crate::order::{ChannelPermutation, permuted_moment};

/// Changes orthonormality by less than a thousandth.
const BASIS: DType = DType::F16;

const ENERGIES: DType = DType::F32;

/// Including the moment and the result.
const SQUARES: u64 = 8;

/// Returns the stored tensors of a layer, in the order of an artifact.
pub fn stored_tensors(hyper: &HyperParameters, layer: usize) -> [StoredTensor; 4] {
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

/// Returns the roles of a layer's tensors, in the order of an artifact.
pub fn roles(layer: usize) -> Vec<Role> {
    let of_side = |side| {
        [
            Role::KvBasis { layer, side },
            Role::KvEnergies { layer, side },
        ]
    };
    KvSide::ALL.into_iter().flat_map(of_side).collect()
}

/// Returns the stored bytes of a layer, without alignment.
pub fn layer_bytes(hyper: &HyperParameters) -> u64 {
    let tensors = stored_tensors(hyper, 0);
    tensors.iter().map(StoredTensor::bytes).sum()
}

/// Returns the working memory in bytes for one layer, on one thread.
pub(crate) fn working_bytes(hyper: &HyperParameters) -> u64 {
    let square = 8 * (hyper.head_size as u64).pow(2);
    SQUARES * square + 3 * layer_bytes(hyper)
}

/// Returns the sum of `n³` over the `n x n` matrices decomposed for all layers.
pub(crate) fn decomposition_cost(hyper: &HyperParameters) -> f64 {
    let decompositions = KvSide::ALL.len() * hyper.layers * hyper.kv_heads;
    decompositions as f64 * (hyper.head_size as f64).powi(3)
}

/// Computes the tensors of a layer with their bytes. The basis of keys has the principal components
/// of queries and keys together, that of values those of values, in the stored channel order.
pub fn layer_tensors(
    calibrated: &StoredLayer,
    hyper: &HyperParameters,
    layer: usize,
    order: Option<&ChannelPermutation>,
    algebra: &dyn Algebra,
) -> Result<Vec<(Role, Vec<u8>)>, MakeError> {
    let projection = ProjectionKind::V;
    let of_values =
        order.and_then(|order| order.outputs(MatrixId::Projection { layer, projection }));
    let [mut keys, mut values] = KvSide::ALL.map(|side| SideBases::new(side, layer));
    for head in 0..hyper.kv_heads {
        let [queries, of_keys, of_head] = calibrated.head(head);
        keys.add(&combined_moment(&queries, &of_keys), algebra)?;
        let of_head = match of_values {
            None => of_head,
            Some(order) => {
                let first = head * hyper.head_size;
                let within = order[first..first + hyper.head_size].iter();
                let within: Vec<u32> = within.map(|&place| place - first as u32).collect();
                permuted_moment(&of_head, &within)
            }
        };
        values.add(&of_head.lower(), algebra)?;
    }
    let [keys, values] = [keys.finish()?, values.finish()?];
    Ok([keys, values].concat())
}

/// Returns `E[x xᵀ] [n, n]` of the union of two sets of vectors, row by row; zero above the
/// diagonal.
fn combined_moment(one: &StoredMoment, other: &StoredMoment) -> Vec<f64> {
    let total = (one.count + other.count).max(1) as f64;
    let parts = [one, other].map(|of| of.count as f64 / total);
    let mut sum = one.lower();
    for (sum, more) in sum.iter_mut().zip(other.lower()) {
        *sum = parts[0] * *sum + parts[1] * more;
    }
    sum
}

struct SideBases {
    basis: Role,
    energies: Role,
    components: Vec<f32>,
    parts: Vec<f32>,
}

impl SideBases {
    fn new(side: KvSide, layer: usize) -> SideBases {
        SideBases {
            basis: Role::KvBasis { layer, side },
            energies: Role::KvEnergies { layer, side },
            components: Vec::new(),
            parts: Vec::new(),
        }
    }

    fn add(&mut self, lower: &[f64], algebra: &dyn Algebra) -> Result<(), MakeError> {
        let moment = SecondMoment {
            order: lower.len().isqrt(),
            values: lower,
        };
        let found = principal_basis(moment, round_to_f16, algebra);
        let found = found.map_err(|error| MakeError::of_tensor(&self.basis.to_string(), error))?;
        let components = found.components.iter().map(|&x| x as f32);
        self.components.extend(components);
        self.parts.extend(found.energies.iter().map(|&x| x as f32));
        Ok(())
    }

    fn finish(self) -> Result<[(Role, Vec<u8>); 2], MakeError> {
        Ok([
            encode_tensor(self.basis, BASIS, &self.components)?,
            encode_tensor(self.energies, ENERGIES, &self.parts)?,
        ])
    }
}

fn encode_tensor(role: Role, dtype: DType, values: &[f32]) -> Result<(Role, Vec<u8>), MakeError> {
    let mut bytes = vec![0; values.len() * dtype.block_bytes()];
    let encoded = block::encode(dtype, values, &mut bytes);
    encoded.map_err(|error| MakeError::of_tensor(&role.to_string(), error))?;
    Ok((role, bytes))
}

/// Rounds a number to the 11 significant bits of f16, half to even. Valid for magnitudes of normal
/// f16 numbers, such as the largest entry of a row of unit length.
fn round_to_f16(number: f64) -> f32 {
    const DROPPED: u32 = f32::MANTISSA_DIGITS - 11;
    let bits = (number as f32).to_bits();
    let is_odd = (bits >> DROPPED) & 1;
    let rounded = bits + (1 << (DROPPED - 1)) - 1 + is_odd;
    f32::from_bits(rounded & !((1 << DROPPED) - 1))
}

#[cfg(test)]
mod tests;

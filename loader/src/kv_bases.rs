//! Initial bases of an adaptive KV cache, stored in an artifact.

use htc_formats::model::{KvSide, Role};
use htc_formats::source::ModelFile;

use crate::error::ExecError;
use crate::tensor::Tensor;

/// Tolerance of the products of rows.
const ORTHONORMAL: f64 = 1e-2;

const ROUNDING: f32 = 1e-3;

/// Bases for the keys and values of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredKvBases {
    /// Dimension of a head.
    pub head_size: usize,
    /// `[layers][kv_heads]`.
    pub layers: Vec<Vec<HeadBases>>,
}

/// Bases of a kv head.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadBases {
    /// Basis of keys and queries, after the rotary embedding and without the attention scale.
    pub keys: Basis,
    /// Basis of values.
    pub values: Basis,
}

/// Orthonormal basis.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// `[head_size, head_size]`, row-major: one component per row, in decreasing order of energy,
    /// orthonormal up to the rounding of the stored type.
    pub components: Vec<f32>,
    /// `[head_size]`: fraction of the energy per component. The sum is 1, or 0 without energy.
    pub energies: Vec<f32>,
}

impl StoredKvBases {
    pub(crate) fn from_file(file: &ModelFile) -> Result<Option<StoredKvBases>, ExecError> {
        let is_kv = |role| matches!(role, Role::KvBasis { .. } | Role::KvEnergies { .. });
        if !file.tensors.iter().any(|tensor| is_kv(tensor.role)) {
            return Ok(None);
        }
        let hyper = &file.hyper;
        let layers = (0..hyper.layers).map(|layer| {
            let [keys, values] = KvSide::ALL.map(|side| read_side(file, layer, side));
            let heads = keys?.into_iter().zip(values?);
            let heads = heads.map(|(keys, values)| HeadBases { keys, values });
            Ok(heads.collect())
        });
        Ok(Some(StoredKvBases {
            head_size: hyper.head_size,
            layers: layers.collect::<Result<_, ExecError>>()?,
        }))
    }
}

fn read_side(file: &ModelFile, layer: usize, side: KvSide) -> Result<Vec<Basis>, ExecError> {
    let (heads, size) = (file.hyper.kv_heads, file.hyper.head_size);
    let numbers = |role: Role, rows: usize| -> Result<(String, Vec<f32>), ExecError> {
        let tensor = file.tensor(role).ok_or(ExecError::Missing(role))?;
        let tensor = Tensor::new(file, tensor);
        let found = [tensor.rows(), tensor.cols()];
        if found != [rows, size] {
            return Err(ExecError::TensorShape {
                tensor: tensor.name().to_owned(),
                expected: [rows, size],
                found,
            });
        }
        Ok((tensor.name().to_owned(), tensor.to_f32()?))
    };
    let (of_basis, components) = numbers(Role::KvBasis { layer, side }, heads * size)?;
    let (of_energies, energies) = numbers(Role::KvEnergies { layer, side }, heads)?;
    let square = (size * size).max(1);
    let bases = components
        .chunks_exact(square)
        .zip(energies.chunks_exact(size.max(1)));
    let checked = bases.enumerate().map(|(head, (components, energies))| {
        let of = |tensor: &str, expected, found| ExecError::KvBasis {
            tensor: tensor.to_owned(),
            head,
            expected,
            found,
        };
        check_components(components, size).map_err(|(e, f)| of(&of_basis, e, f))?;
        check_energies(energies).map_err(|(e, f)| of(&of_energies, e, f))?;
        Ok(Basis {
            components: components.to_vec(),
            energies: energies.to_vec(),
        })
    });
    checked.collect()
}

type Mismatch = (&'static str, String);

fn check_components(components: &[f32], size: usize) -> Result<(), Mismatch> {
    if let Some(at) = components.iter().position(|x| !x.is_finite()) {
        let (row, value) = (at / size.max(1), components[at]);
        return Err(("finite numbers", format!("{value} in row {row}")));
    }
    let rows = || components.chunks_exact(size.max(1)).enumerate();
    for (i, a) in rows() {
        for (j, b) in rows().take(i + 1) {
            let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
            let (product, expected) = (products.sum::<f64>(), if i == j { 1.0 } else { 0.0 });
            if (product - expected).abs() > ORTHONORMAL {
                let expected = "orthonormal rows, to a hundredth";
                return Err((
                    expected,
                    format!("{product:.3} as the product of rows {j} and {i}"),
                ));
            }
        }
    }
    Ok(())
}

/// Checks that energies are non-increasing fractions of 1, or all zero.
fn check_energies(energies: &[f32]) -> Result<(), Mismatch> {
    let is_part = |energy: &f32| (0.0..=1.0 + ROUNDING).contains(energy);
    if let Some(found) = energies.iter().find(|energy| !is_part(energy)) {
        return Err(("energies from 0 to 1", found.to_string()));
    }
    if let Some(pair) = energies
        .windows(2)
        .find(|pair| pair[1] > pair[0] + ROUNDING)
    {
        let found = format!("{} behind {}", pair[1], pair[0]);
        return Err(("energies that do not increase", found));
    }
    let sum: f32 = energies.iter().sum();
    if sum == 0.0 || (sum - 1.0).abs() <= 10.0 * ROUNDING {
        Ok(())
    } else {
        Err(("energies with the sum 1, or 0", sum.to_string()))
    }
}

#[cfg(test)]
mod tests;

//! The singular values of one unit's weights, from the source's bytes.

use htc_formats::block;
use htc_formats::model::{Part, Role};
use htc_formats::source::ModelFile;

use super::unit::UnitError;
use super::{BasisWeighting, Weight, shared_singular_values, singular_values};
use crate::plan::Unit;

/// The singular values of a unit's weight, decreasing; for slots that share a basis the square roots
/// of the eigenvalues of the matrix whose eigenvectors the basis is.
///
/// # Errors
/// [`UnitError`] where a weight is missing, does not decode or is not finite.
pub fn of_unit(source: &ModelFile, unit: &Unit, shared: bool) -> Result<Vec<f64>, UnitError> {
    let mut names = Vec::with_capacity(unit.members.len());
    let mut dense = Vec::with_capacity(unit.members.len());
    for member in &unit.members {
        let role = Role::Linear {
            layer: unit.layer,
            slot: member.slot,
            part: Part::Weight,
        };
        let tensor = source.tensor(role).ok_or(UnitError::Missing(role))?;
        let mut values = vec![0.0; member.rows * member.cols];
        block::decode(tensor.dtype, source.bytes(tensor), &mut values).map_err(|source| {
            UnitError::Block {
                tensor: tensor.name.clone(),
                source,
            }
        })?;
        names.push(&tensor.name);
        dense.push(values);
    }
    let failed = |index: usize| {
        let tensor = names.get(index).map_or_else(String::new, |n| (*n).clone());
        move |source| UnitError::Factorise { tensor, source }
    };
    let mut weights = Vec::with_capacity(dense.len());
    for (index, (member, values)) in unit.members.iter().zip(&dense).enumerate() {
        let weight = Weight {
            rows: member.rows,
            cols: member.cols,
            values,
        };
        weight.check(index).map_err(failed(index))?;
        weights.push(weight);
    }
    match (shared, &weights[..]) {
        (false, &[weight]) => singular_values(weight).map_err(failed(0)),
        _ => shared_singular_values(&weights, BasisWeighting::Normalised).map_err(failed(0)),
    }
}

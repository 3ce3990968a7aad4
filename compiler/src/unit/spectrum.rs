//! Singular values of a unit's weights, and components shared by its projections.

use super::{MakeError, ModelTreatment, dense_weights, factorise_error};
use crate::calibrate::CalibratedInput;
use crate::math::{
    Algebra, BasisOptions, BasisWeighting, FactoriseError, Gauge, LowRankOptions, SharedComponents,
    SvdMethod, Weight, low_rank_with, shared_basis_with, shared_components, shared_singular_values,
    singular_values,
};
use crate::order::PermutedSource;
use crate::plan::Unit;

/// Returns the singular values of a unit's weight under its gauge, decreasing; for a shared basis
/// the square roots of the eigenvalues.
pub fn unit_singular_values(
    source: &PermutedSource<'_>,
    unit: &Unit,
    shared: bool,
    treatment: &ModelTreatment,
) -> Result<Vec<f64>, MakeError> {
    let dense = dense_weights(source, &unit.members)?;
    let weights = weights(source, unit, &dense)?;
    let failed = |index| failed(source, unit, index);
    let projection = unit.members.first().and_then(|member| member.projection());
    let gauge = projection.map(|projection| {
        treatment.gauge(CalibratedInput::Site {
            layer: unit.layer,
            site: projection.input(),
        })
    });
    let gauge = gauge.transpose().map_err(failed(0))?.unwrap_or_default();
    let found = singular_values_under(&gauge, &weights, shared, treatment.algebra);
    found.map_err(failed(0))
}

fn singular_values_under(
    gauge: &Gauge,
    weights: &[Weight<'_>],
    shared: bool,
    algebra: &dyn Algebra,
) -> Result<Vec<f64>, FactoriseError> {
    match (shared, weights, gauge) {
        (false, &[weight], Gauge::None) => singular_values(weight, algebra),
        (_, weights, Gauge::None) => {
            shared_singular_values(weights, BasisWeighting::Normalised, algebra)
        }
        (false, &[weight], gauge) => {
            let options = LowRankOptions {
                method: SvdMethod::Gram,
                input: gauge,
                algebra,
                ..LowRankOptions::default()
            };
            Ok(low_rank_with(weight, 1, &options)?.singular_values)
        }
        (_, weights, gauge) => {
            let options = BasisOptions {
                gauge,
                algebra,
                ..BasisOptions::default()
            };
            let found = shared_basis_with(weights, 1, &options)?;
            Ok(found.eigenvalues.into_iter().map(f64::sqrt).collect())
        }
    }
}

/// Returns the components of the shared basis of a unit's projections, without a gauge and with
/// equal weights.
pub fn shared_basis_components(
    source: &PermutedSource<'_>,
    unit: &Unit,
    algebra: &dyn Algebra,
) -> Result<SharedComponents, MakeError> {
    let dense = dense_weights(source, &unit.members)?;
    let weights = weights(source, unit, &dense)?;
    let found = shared_components(&weights, BasisWeighting::Normalised, algebra);
    found.map_err(failed(source, unit, 0))
}

fn weights<'a>(
    source: &PermutedSource<'_>,
    unit: &Unit,
    dense: &'a [Vec<f32>],
) -> Result<Vec<Weight<'a>>, MakeError> {
    let mut weights = Vec::with_capacity(dense.len());
    for (index, (member, values)) in unit.members.iter().zip(dense).enumerate() {
        let weight = member.weight(values);
        weight.check(index).map_err(failed(source, unit, index))?;
        weights.push(weight);
    }
    Ok(weights)
}

fn failed(
    source: &PermutedSource<'_>,
    unit: &Unit,
    index: usize,
) -> impl Fn(FactoriseError) -> MakeError {
    move |error| factorise_error(source, &unit.members, index, error)
}

//! Manifold of the residual stream in four phases: sampling, symmetry, curvature, axioms.

mod axioms;
mod curvature;
mod symmetry;

use faer::Mat;

use super::record::{AxiomRule, CurvatureRule, Manifold, ManifoldLayer, SymmetryRule};
use super::sample::Sample;
use crate::calibrate::StoredLayer;
use crate::math::FactoriseError;

/// Returns the rules, without layers.
pub(super) fn empty() -> Manifold {
    Manifold {
        symmetry: SymmetryRule {
            energy: symmetry::ENERGY,
            threshold: symmetry::THRESHOLD,
        },
        curvature: CurvatureRule {
            estimator: curvature::ESTIMATOR.to_owned(),
            neighbours: curvature::NEIGHBOURS,
        },
        axioms: AxiomRule {
            energy: axioms::ENERGY,
            missed: axioms::MAX_MISSED,
            held_out: axioms::HELD_OUT,
        },
        layers: Vec::new(),
    }
}

pub(super) fn layer_manifold(
    layer: usize,
    stored: &StoredLayer,
    sample: &Sample,
    distances: &Mat<f64>,
) -> Result<ManifoldLayer, FactoriseError> {
    Ok(ManifoldLayer {
        layer,
        samples: sample.count(),
        symmetry: symmetry::layer_symmetry(stored)?,
        curvature: curvature::sample_curvature(distances),
        axioms: axioms::sample_axioms(layer, sample)?,
    })
}

//! Selected projections, grouped into the units of a plan.

use htc_formats::model::{HyperParameters, InputGroup, MatrixId, ProjectionKind};

use super::sources::SourceTypes;
use super::unit::{Unit, UnitMatrix};
use super::{Method, PlanError, PlanRequest};

#[derive(Clone, Debug)]
pub(super) struct ProjectionGroup {
    pub members: Vec<ProjectionKind>,
    pub outs: usize,
    pub cols: usize,
    pub limit: usize,
}

impl ProjectionGroup {
    /// `q` or `q, k, v`.
    pub fn name(&self) -> String {
        let names: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Returns the parameters of one unit at the given rank.
    pub fn cost(&self, rank: usize) -> u64 {
        rank as u64 * (self.outs + self.cols) as u64
    }

    pub fn dense(&self) -> u64 {
        self.outs as u64 * self.cols as u64
    }
}

pub(super) fn projection_groups(
    hyper: &HyperParameters,
    request: &PlanRequest,
) -> Result<Vec<ProjectionGroup>, PlanError> {
    if request.projections.is_empty() {
        return Err(PlanError::NoProjections);
    }
    let shape = |projection: ProjectionKind| hyper.projection_shape(projection);
    match request.method {
        Method::PerProjection | Method::Quantise => Ok(selected(hyper, request)
            .into_iter()
            .map(|projection| {
                let (rows, cols) = shape(projection);
                ProjectionGroup {
                    members: vec![projection],
                    outs: rows,
                    cols,
                    limit: rows.min(cols),
                }
            })
            .collect()),
        Method::SharedBasis => {
            if let Some(&projection) = request.projections.iter().find(|s| s.group().is_none()) {
                return Err(PlanError::NoSharedInput(projection));
            }
            let is_expert =
                |s: &&ProjectionKind| hyper.experts() > 0 && s.group() == Some(InputGroup::GateUp);
            if let Some(&projection) = request.projections.iter().find(is_expert) {
                return Err(PlanError::ExpertsShareNoBasis(projection));
            }
            let kinds: Vec<ProjectionGroup> = InputGroup::ALL
                .into_iter()
                .filter_map(|group| {
                    let members: Vec<ProjectionKind> = group
                        .projections()
                        .iter()
                        .copied()
                        .filter(|s| request.projections.contains(s))
                        .collect();
                    let cols = shape(*members.first()?).1;
                    let outs = members.iter().map(|&s| shape(s).0).sum();
                    // A basis of the whole input is the identity.
                    let limit = cols;
                    Some(ProjectionGroup {
                        members,
                        outs,
                        cols,
                        limit,
                    })
                })
                .collect();
            // The Gram matrix is as wide as the input.
            match kinds.iter().find(|k| k.cols > MAX_ASPECT * k.outs) {
                None => Ok(kinds),
                Some(kind) => Err(PlanError::InputTooWide {
                    group: kind.name(),
                    cols: kind.cols,
                    outs: kind.outs,
                }),
            }
        }
    }
}

/// Returns the selected projections of the model in the order of execution; `gate`, `up` and `down`
/// select those of all experts.
fn selected(hyper: &HyperParameters, request: &PlanRequest) -> Vec<ProjectionKind> {
    let selected = request.projections.iter();
    let mut all: Vec<ProjectionKind> = selected
        .flat_map(|projection| projection.of_experts(hyper.experts()))
        .collect();
    all.sort();
    all
}

/// Largest ratio of inputs to outputs of a group with a shared basis.
pub(crate) const MAX_ASPECT: usize = 16;

pub(super) fn units(
    hyper: &HyperParameters,
    kinds: &[ProjectionGroup],
    source_type: &impl SourceTypes,
) -> Vec<Unit> {
    let mut units = Vec::with_capacity(hyper.layers * kinds.len());
    for layer in 0..hyper.layers {
        for kind in kinds {
            let members = kind.members.iter().filter_map(|&projection| {
                UnitMatrix::new(
                    MatrixId::Projection { layer, projection },
                    hyper,
                    source_type,
                )
            });
            units.push(Unit {
                layer,
                members: members.collect(),
                outs: kind.outs,
                cols: kind.cols,
                rank_limit: kind.limit,
            });
        }
    }
    units
}

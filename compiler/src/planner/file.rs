//! Sizes of files with a plan, and plans that fill a size.

use htc_formats::htz::{Digest, HtzError, HtzWriter, Section};
use htc_formats::source::ModelFile;

use crate::calibrate::Calibration;
use crate::layout;
use crate::options::Treatment;
use crate::plan::{
    self, Budget, MatrixForm, ModelFileTypes, Plan, PlanError, PlanRequest, UnitMatrix, UnitPlan,
};
use crate::profile;

/// Iterations of planning with the bytes left over by the iteration before.
const MAX_ITERATIONS: usize = 6;

/// Bits of a weight in the smallest encoding.
const LEAST_BITS: u64 = 2;

pub(super) const SLACK: u64 = 128;

/// A larger slack means that a size is infeasible.
pub(super) const LARGEST_SLACK: u64 = 1 << 20;

/// A model and the parts of its artifact that its plan does not change.
#[derive(Clone, Debug)]
pub struct ArtifactParts<'a> {
    /// The model.
    pub source: &'a ModelFile,
    /// Its activations, if measured.
    pub calibration: Option<&'a Calibration>,
    /// Sections that count as part of its size.
    pub sections: &'a [Section],
    /// Name of the linear algebra.
    pub linear_algebra: String,
}

impl ArtifactParts<'_> {
    /// Returns the bytes of the source, or of an artifact that keeps every matrix if larger.
    pub(super) fn unchanged_bytes(&self, request: &PlanRequest) -> Result<u64, PlanError> {
        let mut request = request.clone();
        // An upper bound of the length.
        request.budget = Budget::FileSize(u64::MAX);
        let kept = self.unchanged_plan(&request)?;
        Ok(self.file_length(&kept)?.max(self.source.size()))
    }

    /// Checks a requested size against the shapes of the matrices, before anything is measured.
    ///
    /// # Errors
    /// [`PlanError::FileAboveSource`], [`PlanError::FileBelowShapes`].
    pub fn check_size(&self, request: &PlanRequest) -> Result<(), PlanError> {
        let budget = request.budget;
        let Some(total) = to_file_budget(budget, self.source).file_size() else {
            return Ok(());
        };
        // Unlike other sizes this one is that of an artifact that changes nothing, if that is more.
        if total == self.source.size() {
            return Ok(());
        }
        let kept = self.unchanged_plan(request)?;
        let length = self.file_length(&kept)?;
        let source_bytes = length.max(self.source.size());
        if total > source_bytes {
            return Err(PlanError::FileAboveSource {
                budget,
                source_bytes,
            });
        }
        let members = kept.units().iter().flat_map(|unit| &unit.members);
        let members: Vec<UnitMatrix> = members.copied().collect();
        let evaluates_factors = request.codes.evaluates_factors();
        let saved = profile::input_groups(&members).map(|group| {
            let before: u64 = group.iter().map(UnitMatrix::bytes).sum();
            before.saturating_sub(smallest_bytes(group, evaluates_factors))
        });
        let least = length.saturating_sub(saved.sum());
        if total < least {
            return Err(PlanError::FileBelowShapes { budget, least });
        }
        Ok(())
    }

    pub(super) fn file_length(&self, plan: &Plan) -> Result<u64, PlanError> {
        let digest = Digest::default();
        let measured = self.calibration.is_some_and(|c| c.held_out.is_some());
        let draft = layout::draft_manifest(
            self.source,
            plan,
            layout::ManifestInputs {
                source_sha256: digest,
                calibration: self.calibration,
                linear_algebra: &self.linear_algebra,
                order: plan.permutes_channels().then_some(digest),
            },
            &Treatment::default(),
            measured,
        );
        // The plan must not depend on tuning.
        let draft = layout::reserve_tuning(draft, measured);
        let length = HtzWriter::predict_length(draft, self.sections);
        length.map_err(|error| match error {
            HtzError::ManifestTooLarge { found } => PlanError::ManifestTooLarge { found },
            other => PlanError::Inconsistent(Some(other.to_string())),
        })
    }

    pub(super) fn unchanged_plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let (hyper, types) = (&self.source.hyper, ModelFileTypes(self.source));
        let units = plan::matrices(hyper, &types).into_iter();
        let units = units.map(|member| UnitPlan::new(vec![member], MatrixForm::Unchanged));
        plan::validated(hyper, request.clone(), units.collect(), Vec::new(), &types)
    }
}

/// Returns a lower bound for the bytes of matrices with the same input.
fn smallest_bytes(group: &[UnitMatrix], evaluates_factors: bool) -> u64 {
    let factors = |members: &[UnitMatrix]| {
        let may_have = evaluates_factors && members.iter().all(|of| of.projection().is_some());
        let bytes = may_have.then(|| profile::smallest_factor_bytes(members));
        bytes.flatten().unwrap_or(u64::MAX)
    };
    let each = group.iter().map(|member| {
        let dense = member.parameters() * LEAST_BITS / 8;
        dense.min(factors(std::slice::from_ref(member)))
    });
    each.sum::<u64>().min(factors(group))
}

/// Converts bits per weight, and a ratio of the source's bytes, to the size of a file.
pub(crate) fn to_file_budget(budget: Budget, source: &ModelFile) -> Budget {
    let tensors = source.tensors.iter();
    let parameters: u64 = tensors.map(|t| t.rows as u64 * t.cols as u64).sum();
    match budget {
        Budget::Bits(bits) => Budget::FileSize((bits / 8.0 * parameters as f64) as u64),
        Budget::Ratio(ratio) | Budget::SourceFraction(ratio) => {
            Budget::FileSize((ratio * source.size() as f64) as u64)
        }
        other => other,
    }
}

/// Calls `make` repeatedly with the bytes reserved for everything outside the matrices, which
/// depend on the plan, and returns the largest result of at most `total` bytes.
pub(super) fn fit_to_size<T>(
    total: u64,
    mut overhead: u64,
    mut make: impl FnMut(u64) -> Result<(u64, T), PlanError>,
) -> Result<Option<T>, PlanError> {
    let mut best: Option<(u64, T)> = None;
    // Every file that is too large increases the reserve.
    let (mut slack, mut iterations) = (SLACK, 0);
    while iterations < MAX_ITERATIONS {
        let (bytes, made) = match make(overhead) {
            Err(_) if best.is_some() => break,
            made => made?,
        };
        if bytes > total {
            overhead += (bytes - total) + slack;
            slack *= 2;
            if best.is_none() && slack <= LARGEST_SLACK {
                continue;
            }
        } else {
            overhead = overhead.saturating_sub(total - bytes);
            if best.as_ref().is_none_or(|(before, _)| bytes > *before) {
                best = Some((bytes, made));
            }
        }
        iterations += 1;
    }
    Ok(best.map(|(_, made)| made))
}

#[cfg(test)]
mod tests;

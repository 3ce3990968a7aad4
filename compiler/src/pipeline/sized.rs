//! Plans of files with a size budget.

use htc_formats::bands::{Code, CodeLayout};
use htc_formats::block::BlockFit;
use htc_formats::htz::{Digest, HtzWriter, Section};
use htc_formats::source::ModelFile;

use crate::calibrate::Calibration;
use crate::layout;
use crate::options::{DenseType, QualityLimit, Treatment};
use crate::plan::{
    self, Budget, Evidence, MatrixForm, Method, ModelFileTypes, Plan, PlanError, PlanRequest,
};
use crate::report::{EstimatedLosses, EstimatedMatrixLoss, UniformFile};

/// Iterations of planning with the bytes left over by the iteration before.
const MAX_ITERATIONS: usize = 6;

const BISECTION_STEPS: usize = 9;

const SLACK: u64 = 128;

/// A larger slack means that a size is infeasible.
const LARGEST_SLACK: u64 = 1 << 20;

/// Inputs from which the plans of a request are made.
#[derive(Clone, Debug)]
pub struct PlanInputs {
    /// The request; its budget is a file size if the size is distributed.
    pub request: PlanRequest,
    /// Measurements.
    pub evidence: Evidence,
    /// Parts of the file outside the plan, if its size is distributed.
    pub(super) file: Option<FileParts>,
}

#[derive(Clone, Debug)]
pub(super) struct FileParts {
    pub tokenizer: Section,
    pub source: u64,
    pub linear_algebra: String,
}

impl PlanInputs {
    pub(super) fn plan(
        &self,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Plan, PlanError> {
        let made = self.make_plan(self.request.clone(), source, calibration);
        made.map_err(|error| match error {
            PlanError::FileTooSmall { smallest, .. } => PlanError::FileTooSmall {
                budget: self.request.budget,
                smallest: self.smallest_feasible_size(smallest, source, calibration),
            },
            error => error,
        })
    }

    /// Searches upwards from a predicted minimum for the smallest feasible size. The bytes outside
    /// the matrices depend on the plan, so the minimum is not known exactly.
    fn smallest_feasible_size(
        &self,
        mut smallest: u64,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> u64 {
        let mut step = SLACK;
        while step <= LARGEST_SLACK {
            let mut request = self.request.clone();
            request.budget = Budget::FileSize(smallest);
            match self.make_plan(request, source, calibration) {
                Err(PlanError::FileTooSmall { smallest: more, .. }) => {
                    smallest = if more > smallest + SLACK {
                        more
                    } else {
                        smallest + step
                    };
                    step *= 2;
                }
                _ => break,
            }
        }
        smallest
    }

    /// Returns the plan of another ratio: of parameters, or for file sizes of the larger of the
    /// source's bytes and those of the artifact that keeps every matrix.
    pub(super) fn plan_at_ratio(
        &self,
        ratio: f64,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Plan, PlanError> {
        let mut request = self.request.clone();
        request.budget = match &self.file {
            Some(_) => Budget::FileSize(self.size_at(ratio, source, calibration)?),
            None => Budget::Ratio(ratio),
        };
        self.make_plan(request, source, calibration)
    }

    pub(super) fn size_at(
        &self,
        ratio: f64,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<u64, PlanError> {
        let whole = match &self.file {
            Some(file) => file.unchanged_bytes(&self.request, source, calibration)?,
            None => source.size(),
        };
        Ok((ratio * whole as f64) as u64)
    }

    /// Returns the alternatives to a plan with a file size: the plan that gives every matrix the
    /// same type, and, if the plan has factors, the plan without.
    pub(super) fn alternatives(
        &self,
        plan: &Plan,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Vec<Plan>, PlanError> {
        let of_size = PlanInputs {
            request: plan.request().clone(),
            ..self.clone()
        };
        let uniform = of_size.best_uniform_plan(source, calibration)?;
        let codes_alone = of_size.plan_without_factors(plan, source, calibration)?;
        let same = |codes: &Plan| {
            uniform
                .as_ref()
                .is_some_and(|of| of.units() == codes.units())
        };
        let codes_alone = codes_alone.filter(|codes| !same(codes));
        let others = uniform.iter().cloned().chain(codes_alone);
        Ok(others
            .filter(|other| other.units() != plan.units())
            .collect())
    }

    /// Returns the plan with one type for all matrices that has the least predicted loss, among
    /// those whose files are no larger than requested; `None` if there is none or no size was
    /// requested.
    fn best_uniform_plan(
        &self,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Option<Plan>, PlanError> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        let Budget::FileSize(total) = to_file_budget(self.request.budget, source, file.source)
        else {
            return Ok(None);
        };
        let mut best: Option<(f64, Plan)> = None;
        for dense in all_types() {
            let (hyper, request) = (&source.hyper, self.request.clone());
            let made = plan::single_type_plan(
                hyper,
                request,
                &self.evidence,
                ModelFileTypes(source),
                dense,
            )?;
            let Some((plan, lost)) = made else {
                continue;
            };
            let better = best.as_ref().is_none_or(|(least, _)| lost < *least);
            if better && file.file_length(&plan, source, calibration)? <= total {
                best = Some((lost, plan));
            }
        }
        Ok(best.map(|(_, plan)| plan))
    }

    /// Returns the plan without factors, if the plan has any. The joint loss of factors is more
    /// reliable measured than summed.
    fn plan_without_factors(
        &self,
        plan: &Plan,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Option<Plan>, PlanError> {
        if self.file.is_none() || plan.units().iter().all(|unit| unit.rank().is_none()) {
            return Ok(None);
        }
        let mut made_from = self.clone();
        made_from.evidence.shared.clear();
        for curve in made_from.evidence.curves.iter_mut().flatten() {
            curve.points.retain(|point| point.form.rank().is_none());
        }
        match made_from.plan(source, calibration) {
            Err(PlanError::FileTooSmall { .. }) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Returns up to `most` plans with the same GGUF type for all matrices whose files are closest
    /// to `bytes`, alternating smaller and larger, from half to twice of it. Excludes the plan
    /// itself.
    pub(super) fn baseline_plans(
        &self,
        (plan, bytes, most): (&Plan, u64, usize),
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Vec<Plan>, PlanError> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        let (mut smaller, mut larger) = (Vec::new(), Vec::new());
        for &dtype in BlockFit::TYPES {
            let (hyper, request) = (&source.hyper, plan.request().clone());
            let made = plan::single_block_type_plan(hyper, request, ModelFileTypes(source), dtype)?;
            let Some(plain) = made.filter(|plain| plain.units() != plan.units()) else {
                continue;
            };
            match file.file_length(&plain, source, calibration)? {
                length if length < bytes / 2 || length / 2 > bytes => {}
                length if length <= bytes => smaller.push((bytes - length, plain)),
                length => larger.push((length - bytes, plain)),
            }
        }
        let next = |mut plans: Vec<(u64, Plan)>| {
            plans.sort_by_key(|(distance, _)| *distance);
            plans.into_iter().map(|(_, plan)| plan)
        };
        let (mut smaller, mut larger) = (next(smaller), next(larger));
        let mut found = Vec::new();
        while found.len() < most {
            let before = found.len();
            found.extend(smaller.next());
            found.extend(larger.next().filter(|_| found.len() < most));
            if found.len() == before {
                break;
            }
        }
        Ok(found)
    }

    /// Returns the predicted loss of each matrix of a plan, and of files with one type throughout;
    /// `None` if types are not chosen by predicted loss.
    pub(super) fn predicted_losses(
        &self,
        plan: &Plan,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Option<EstimatedLosses>, PlanError> {
        let Some((file, curves)) = self.file.as_ref().zip(self.evidence.curves.as_ref()) else {
            return Ok(None);
        };
        let shared = &self.evidence.shared;
        let losses = plan::losses(plan, curves, shared);
        let matrices = losses.map(|(member, form, kl)| EstimatedMatrixLoss {
            matrix: member.matrix,
            form: match form {
                MatrixForm::Unchanged => member.source_type.to_string(),
                MatrixForm::Dense { weight } => weight.to_string(),
                MatrixForm::ColumnGroups { codes } => match codes.uniform_code() {
                    Some(code) => code.to_string(),
                    None => describe_column_groups(codes),
                },
                form => describe_factors(form),
            },
            kl,
        });
        let mut foreseen = EstimatedLosses {
            matrices: matrices.collect(),
            plain: Vec::new(),
        };
        for dtype in all_types() {
            let (hyper, request) = (&source.hyper, self.request.clone());
            let made = plan::single_type_plan(
                hyper,
                request,
                &self.evidence,
                ModelFileTypes(source),
                dtype,
            )?;
            if let Some((plain, kl)) = made {
                let bytes = file.file_length(&plain, source, calibration)?;
                foreseen.plain.push(UniformFile { dtype, bytes, kl });
            }
        }
        foreseen.plain.sort_by_key(|of| of.bytes);
        Ok(Some(foreseen))
    }

    /// Returns the fraction of the source's bytes at which the predicted loss is well within a
    /// limit; `None` without a limit or a size to distribute.
    pub(super) fn predicted_ratio(
        &self,
        source: &ModelFile,
        calibration: Option<&Calibration>,
        limit: QualityLimit,
    ) -> Option<f64> {
        self.file.as_ref()?;
        // Measured losses exceed summed ones. A relative increase of the perplexity is about equal
        // to the divergence.
        let nats = limit.kl.into_iter().chain(limit.perplexity_increase);
        let wanted = 0.6 * nats.min_by(f64::total_cmp)?;
        let (mut fails, mut holds) = (0.0, 1.0);
        for _ in 0..BISECTION_STEPS {
            let middle = 0.5 * (fails + holds);
            let lost = self.plan_at_ratio(middle, source, calibration);
            let lost = lost.ok().and_then(|plan| plan.estimated_loss());
            if lost.is_some_and(|lost| lost <= wanted) {
                holds = middle
            } else {
                fails = middle
            }
        }
        Some(holds)
    }

    fn make_plan(
        &self,
        mut request: PlanRequest,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<Plan, PlanError> {
        let hyper = &source.hyper;
        let Some(file) = &self.file else {
            return plan::compute(hyper, request, &self.evidence, ModelFileTypes(source));
        };
        let length = |plan: &Plan| file.file_length(plan, source, calibration);
        let matrices = |plan: &Plan| -> u64 { plan.units().iter().map(|u| u.bytes_after()).sum() };
        request.budget = match to_file_budget(request.budget, source, file.source) {
            // An artifact with few weights may be larger than the source.
            Budget::FileSize(total) if total == file.source => {
                Budget::FileSize(file.unchanged_bytes(&request, source, calibration)?)
            }
            budget => budget,
        };
        let kept = unchanged_plan(source, &request)?;
        let whole = length(&kept)?;
        let Budget::FileSize(total) = request.budget else {
            return plan::compute(hyper, request, &self.evidence, ModelFileTypes(source));
        };
        if whole <= total {
            return Ok(kept);
        }
        let best = fit_to_size(total, whole - matrices(&kept), |beside| {
            let mut evidence = self.evidence.clone();
            evidence.overhead_bytes = Some(beside);
            let made = plan::compute(hyper, request.clone(), &evidence, ModelFileTypes(source))?;
            Ok((length(&made)?, made))
        })?;
        match best {
            Some(plan) => Ok(plan),
            None => Err(PlanError::FileTooSmall {
                budget: request.budget,
                smallest: total + SLACK,
            }),
        }
    }
}

pub(super) fn alternatives(
    source: &ModelFile,
    plan: &Plan,
    made_from: Option<&PlanInputs>,
    (calibration, limit): (Option<&Calibration>, QualityLimit),
) -> Result<Vec<Plan>, PlanError> {
    let others = made_from.map(|found| found.alternatives(plan, source, calibration));
    let mut others = others.transpose()?.unwrap_or_default();
    if !limit.is_none() {
        others
            .iter_mut()
            .for_each(|other| other.add_note(searched_size_note(limit)));
    }
    Ok(others)
}

pub(super) fn searched_size_note(limit: QualityLimit) -> String {
    format!("its size was sought as the smallest within {limit}")
}

/// Calls `make` repeatedly with the bytes reserved for everything outside the matrices, which
/// depend on the plan, and returns the largest result of at most `total` bytes.
fn fit_to_size<T>(
    total: u64,
    mut beside: u64,
    mut make: impl FnMut(u64) -> Result<(u64, T), PlanError>,
) -> Result<Option<T>, PlanError> {
    let mut best: Option<(u64, T)> = None;
    // Every file that is too large increases the reserve.
    let (mut slack, mut turns) = (SLACK, 0);
    while turns < MAX_ITERATIONS {
        let (bytes, made) = match make(beside) {
            Err(_) if best.is_some() => break,
            made => made?,
        };
        if bytes > total {
            beside += (bytes - total) + slack;
            slack *= 2;
            if best.is_none() && slack <= LARGEST_SLACK {
                continue;
            }
        } else {
            beside = beside.saturating_sub(total - bytes);
            if best.as_ref().is_none_or(|(before, _)| bytes > *before) {
                best = Some((bytes, made));
            }
        }
        turns += 1;
    }
    Ok(best.map(|(_, made)| made))
}

impl FileParts {
    fn unchanged_bytes(
        &self,
        request: &PlanRequest,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<u64, PlanError> {
        let mut request = request.clone();
        // An upper bound of the length.
        request.budget = Budget::FileSize(u64::MAX);
        let kept = unchanged_plan(source, &request)?;
        Ok(self
            .file_length(&kept, source, calibration)?
            .max(self.source))
    }

    fn file_length(
        &self,
        plan: &Plan,
        source: &ModelFile,
        calibration: Option<&Calibration>,
    ) -> Result<u64, PlanError> {
        let treatment = Treatment::default();
        let digest = Digest::default();
        let measured = calibration.is_some_and(|found| found.held_out.is_some());
        let order = plan.permutes_channels().then_some(digest);
        let draft = layout::draft_manifest(
            source,
            plan,
            layout::ManifestInputs {
                source_sha256: digest,
                calibration,
                linear_algebra: &self.linear_algebra,
                order,
            },
            &treatment,
            measured,
        );
        // The plan must not depend on tuning.
        let draft = layout::reserve_tuning(draft, measured);
        let length = HtzWriter::predict_length(draft, std::slice::from_ref(&self.tokenizer));
        length.map_err(|error| PlanError::Inconsistent(Some(error.to_string())))
    }
}

fn all_types() -> impl Iterator<Item = DenseType> {
    let blocks = BlockFit::TYPES.iter().copied().map(DenseType::from);
    blocks.chain(Code::all().map(DenseType::ColumnGroups))
}

fn unchanged_plan(source: &ModelFile, request: &PlanRequest) -> Result<Plan, PlanError> {
    let members = plan::matrices(&source.hyper, &ModelFileTypes(source));
    let units = members.into_iter().map(|member| plan::UnitPlan {
        members: vec![member],
        form: MatrixForm::Unchanged,
        notes: Vec::new(),
    });
    Plan::new(
        &source.hyper,
        request.clone(),
        units.collect(),
        Vec::new(),
        &ModelFileTypes(source),
    )
    .map_err(|faults| PlanError::Inconsistent(faults.first().map(ToString::to_string)))
}

pub(super) fn to_file_budget(budget: Budget, source: &ModelFile, bytes: u64) -> Budget {
    let parameters: u64 = source
        .tensors
        .iter()
        .map(|t| t.rows as u64 * t.cols as u64)
        .sum();
    match budget {
        Budget::Bits(bits) => Budget::FileSize((bits / 8.0 * parameters as f64) as u64),
        Budget::Ratio(ratio) => Budget::FileSize((ratio * bytes as f64) as u64),
        other => other,
    }
}

pub(super) fn has_file_budget(request: &PlanRequest) -> bool {
    request.method == Method::Quantise
}

fn describe_column_groups(codes: &CodeLayout) -> String {
    let CodeLayout::Classes(of) = codes else {
        return format!("bands of {:.2} bits", codes.mean_bits());
    };
    let classes = of
        .iter()
        .map(|class| format!("{:.1} in {} rows", class.codes.mean_bits(), class.rows));
    let classes: Vec<String> = classes.collect();
    format!(
        "bands of {:.2} bits: {}",
        codes.mean_bits(),
        classes.join(", ")
    )
}

fn describe_factors(form: &MatrixForm) -> String {
    let types = match form {
        MatrixForm::LowRank { a, b, .. } => (a, b),
        MatrixForm::SharedBasis {
            basis, projected, ..
        } => (basis, projected),
        _ => return "other codes".to_owned(),
    };
    let rank = form.rank().unwrap_or(0);
    let shared = match form {
        MatrixForm::SharedBasis { .. } => "shared basis of ",
        _ => "",
    };
    match types {
        (a, b) if a == b => format!("{shared}rank {rank} in {a}"),
        (a, b) => format!("{shared}rank {rank} in {a} and {b}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(total: u64, names: impl Fn(u64) -> u64) -> Option<u64> {
        let made = fit_to_size(total, 1000, |beside| {
            let matrices = total.saturating_sub(beside);
            let bytes = matrices + names(matrices);
            Ok((bytes, bytes))
        });
        made.unwrap()
    }

    #[test]
    fn fitted_never_exceeds_the_requested_size() {
        assert_eq!(file(100_000, |_| 1000), Some(100_000));
        let found = file(100_000, |matrices| {
            1000 + (99_000 - matrices) * 19 / 20 + 500
        });
        assert!(found.is_some_and(|bytes| bytes <= 100_000), "{found:?}");
        assert_eq!(file(100_000, |_| 2_000_000), None);
    }
}

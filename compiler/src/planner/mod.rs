//! Plans of a model at the sizes of a request, from evidence that is measured once.

mod file;
mod losses;

use htc_formats::bands::Code;
use htc_formats::block::BlockFit;

use crate::options::{DenseType, QualityLimit};
use crate::plan::{self, Budget, Evidence, Method, ModelFileTypes, Plan, PlanError, PlanRequest};
pub use file::ArtifactParts;
pub(crate) use file::to_file_budget;
use file::{LARGEST_SLACK, SLACK, fit_to_size};
pub use losses::{EstimatedLosses, EstimatedMatrixLoss, UniformFile};

const BISECTION_STEPS: usize = 9;

/// Largest predicted loss of an alternative relative to the plan's for which it is measured.
/// Predictions of whole files are right within a factor of 1.7.
const MAX_PREDICTED_RATIO: f64 = 2.0;

/// Answers which plan a model has at a size, and which other plans of that size to try.
#[derive(Clone, Debug)]
pub struct Planner<'a> {
    plan: Plan,
    limit: QualityLimit,
    start_ratio: Option<f64>,
    /// `None` for a plan that is not computed: it has one size and no alternatives.
    evidence: Option<PlanEvidence<'a>>,
}

/// Request and evidence from which plans are computed.
#[derive(Clone, Debug)]
struct PlanEvidence<'a> {
    /// The request; with `quantise`, its budget is converted to a file size.
    request: PlanRequest,
    measured: Evidence,
    parts: ArtifactParts<'a>,
}

impl From<Plan> for Planner<'_> {
    /// Returns the planner that knows this plan alone.
    fn from(plan: Plan) -> Self {
        Planner {
            plan,
            limit: QualityLimit::default(),
            start_ratio: None,
            evidence: None,
        }
    }
}

impl<'a> Planner<'a> {
    /// Computes the plan of a request.
    ///
    /// # Errors
    /// [`PlanError`] if no plan satisfies the request.
    pub fn compute(
        request: PlanRequest,
        measured: Evidence,
        parts: ArtifactParts<'a>,
        limit: QualityLimit,
    ) -> Result<Self, PlanError> {
        let evidence = PlanEvidence {
            request,
            measured,
            parts,
        };
        Ok(Planner {
            plan: evidence.plan()?,
            limit,
            start_ratio: evidence.predicted_ratio(limit),
            evidence: Some(evidence),
        })
    }

    /// Returns the requested plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns true if the plan was computed from evidence, false if it was read from a file.
    pub fn is_computed(&self) -> bool {
        self.evidence.is_some()
    }

    /// Returns the ratio of bytes at which the predicted loss is well within the limit; `None`
    /// without a limit or a size to distribute.
    pub fn start_ratio(&self) -> Option<f64> {
        self.start_ratio
    }

    /// Returns the plan of another ratio, or the only plan if it is not computed.
    pub fn plan_at(&self, ratio: f64) -> Result<Plan, PlanError> {
        let Some(evidence) = &self.evidence else {
            return Ok(self.plan.clone());
        };
        let mut plan = evidence.plan_at_ratio(ratio)?;
        if plan.request().method == Method::Quantise {
            plan.add_note(self.searched_size_note());
        }
        Ok(plan)
    }

    /// Returns the bytes of a ratio: of the larger of the source and an artifact that keeps every
    /// matrix.
    pub fn size_at(&self, ratio: f64) -> Result<u64, PlanError> {
        let evidence = self.evidence.as_ref();
        evidence
            .ok_or(PlanError::Inconsistent(None))?
            .size_at(ratio)
    }

    /// Returns the alternatives to a plan with a file size: the plan that gives every matrix the
    /// same type, unless it is predicted to lose more than twice as much, and, if the plan has
    /// factors, the plan without.
    pub fn alternatives(&self, plan: &Plan) -> Result<Vec<Plan>, PlanError> {
        let Some(evidence) = &self.evidence else {
            return Ok(Vec::new());
        };
        let uniform = evidence.best_uniform_plan(plan.request())?;
        let codes_alone = evidence.plan_without_factors(plan)?.filter(|codes| {
            let uniform = uniform.as_ref();
            uniform.is_none_or(|uniform| uniform.units() != codes.units())
        });
        let mut others: Vec<Plan> = uniform.into_iter().chain(codes_alone).collect();
        let least = plan.estimated_loss();
        let is_close = |other: &Plan| match (other.estimated_loss(), least) {
            (Some(loss), Some(least)) => loss <= MAX_PREDICTED_RATIO * least,
            _ => true,
        };
        others.retain(|other| other.units() != plan.units() && is_close(other));
        if !self.limit.is_none() {
            let note = self.searched_size_note();
            others.iter_mut().for_each(|of| of.add_note(note.clone()));
        }
        Ok(others)
    }

    /// Returns up to `most` plans with the same GGUF type for all matrices whose files are closest
    /// to `bytes`, alternating smaller and larger, from half to twice of it. Excludes `plan`.
    pub fn baseline_plans(
        &self,
        plan: &Plan,
        bytes: u64,
        most: usize,
    ) -> Result<Vec<Plan>, PlanError> {
        let evidence = self.evidence.as_ref();
        let evidence = evidence.filter(|of| most > 0 && of.sizes_file());
        let Some(PlanEvidence { parts, .. }) = evidence else {
            return Ok(Vec::new());
        };
        let source = parts.source;
        let (mut smaller, mut larger) = (Vec::new(), Vec::new());
        for &dtype in BlockFit::TYPES {
            let (hyper, request) = (&source.hyper, plan.request().clone());
            let made = {
                let types = ModelFileTypes(source);
                plan::unmeasured_single_type_plan(hyper, request, types, dtype.into())?
            };
            let Some(plain) = made.filter(|plain| plain.units() != plan.units()) else {
                continue;
            };
            match parts.file_length(&plain)? {
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
    pub fn predicted_losses(&self, plan: &Plan) -> Result<Option<EstimatedLosses>, PlanError> {
        let evidence = self.evidence.as_ref().filter(|of| of.sizes_file());
        let Some((evidence, curves)) =
            evidence.and_then(|of| Some((of, of.measured.curves.as_ref()?)))
        else {
            return Ok(None);
        };
        let losses = plan::losses(plan, curves, &evidence.measured.shared);
        let matrices = losses.map(|(member, form, kl)| EstimatedMatrixLoss {
            matrix: member.matrix,
            form: losses::describe_form(form, member.source_type),
            kl,
        });
        let matrices = matrices.collect();
        let mut plain = Vec::new();
        for dtype in all_types() {
            if let Some((plan, kl)) = evidence.single_type_plan(&evidence.request, dtype)? {
                let bytes = evidence.parts.file_length(&plan)?;
                plain.push(UniformFile { dtype, bytes, kl });
            }
        }
        plain.sort_by_key(|of| of.bytes);
        Ok(Some(EstimatedLosses { matrices, plain }))
    }

    fn searched_size_note(&self) -> String {
        format!("its size was sought as the smallest within {}", self.limit)
    }
}

impl PlanEvidence<'_> {
    fn sizes_file(&self) -> bool {
        self.request.method == Method::Quantise
    }

    fn plan(&self) -> Result<Plan, PlanError> {
        let plan = self.compute(self.request.clone());
        plan.map_err(|error| match error {
            PlanError::FileTooSmall { smallest, .. } => PlanError::FileTooSmall {
                budget: self.request.budget,
                smallest: self.smallest_feasible_size(smallest),
            },
            error => error,
        })
    }

    /// Searches upwards from a predicted minimum for the smallest feasible size. The bytes outside
    /// the matrices depend on the plan, so the minimum is not known exactly.
    fn smallest_feasible_size(&self, mut smallest: u64) -> u64 {
        let mut step = SLACK;
        while step <= LARGEST_SLACK {
            let mut request = self.request.clone();
            request.budget = Budget::FileSize(smallest);
            match self.compute(request) {
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

    fn plan_at_ratio(&self, ratio: f64) -> Result<Plan, PlanError> {
        let mut request = self.request.clone();
        request.budget = if self.sizes_file() {
            Budget::FileSize(self.size_at(ratio)?)
        } else {
            Budget::Ratio(ratio)
        };
        self.compute(request)
    }

    fn size_at(&self, ratio: f64) -> Result<u64, PlanError> {
        let whole = self.parts.unchanged_bytes(&self.request)?;
        Ok((ratio * whole as f64) as u64)
    }

    /// Returns the plan with one type for all matrices that has the least predicted loss, among
    /// those whose files are no larger than requested; `None` if there is none or no size was
    /// requested.
    fn best_uniform_plan(&self, request: &PlanRequest) -> Result<Option<Plan>, PlanError> {
        let source = self.parts.source;
        let budget = to_file_budget(request.budget, source);
        let Some(total) = budget.file_size().filter(|_| self.sizes_file()) else {
            return Ok(None);
        };
        let mut best: Option<(f64, Plan)> = None;
        for dense in all_types() {
            let Some((plan, loss)) = self.single_type_plan(request, dense)? else {
                continue;
            };
            let better = best.as_ref().is_none_or(|(least, _)| loss < *least);
            if better && self.parts.file_length(&plan)? <= total {
                best = Some((loss, plan));
            }
        }
        Ok(best.map(|(_, plan)| plan))
    }

    fn single_type_plan(
        &self,
        request: &PlanRequest,
        dense: DenseType,
    ) -> Result<Option<(Plan, f64)>, PlanError> {
        let source = self.parts.source;
        plan::single_type_plan(
            &source.hyper,
            request.clone(),
            &self.measured,
            ModelFileTypes(source),
            dense,
        )
    }

    /// Returns the plan without factors, if the plan has any. The joint loss of factors is more
    /// reliable measured than summed.
    fn plan_without_factors(&self, plan: &Plan) -> Result<Option<Plan>, PlanError> {
        if !self.sizes_file() || plan.units().iter().all(|unit| unit.rank().is_none()) {
            return Ok(None);
        }
        let mut codes_alone = self.clone();
        codes_alone.measured.shared.clear();
        for curve in codes_alone.measured.curves.iter_mut().flatten() {
            curve.points.retain(|point| point.form.rank().is_none());
        }
        match codes_alone.compute(plan.request().clone()) {
            Err(PlanError::FileTooSmall { .. }) => Ok(None),
            plan => plan.map(Some),
        }
    }

    fn predicted_ratio(&self, limit: QualityLimit) -> Option<f64> {
        if !self.sizes_file() {
            return None;
        }
        // Measured losses exceed summed ones. A relative increase of the perplexity is about equal
        // to the divergence.
        let nats = limit.kl.into_iter().chain(limit.perplexity_increase);
        let target = 0.6 * nats.min_by(f64::total_cmp)?;
        let (mut fails, mut holds) = (0.0, 1.0);
        for _ in 0..BISECTION_STEPS {
            let middle = 0.5 * (fails + holds);
            let loss = self.plan_at_ratio(middle).ok();
            let loss = loss.and_then(|plan| plan.estimated_loss());
            if loss.is_some_and(|loss| loss <= target) {
                holds = middle
            } else {
                fails = middle
            }
        }
        Some(holds)
    }

    fn compute(&self, mut request: PlanRequest) -> Result<Plan, PlanError> {
        let (parts, source) = (&self.parts, self.parts.source);
        let (hyper, types) = (&source.hyper, ModelFileTypes(source));
        if !self.sizes_file() {
            return plan::compute(hyper, request, &self.measured, types);
        }
        request.budget = match to_file_budget(request.budget, source) {
            // An artifact with few weights may be larger than the source.
            Budget::FileSize(total) if total == source.size() => {
                Budget::FileSize(parts.unchanged_bytes(&request)?)
            }
            budget => budget,
        };
        let kept = parts.unchanged_plan(&request)?;
        let whole = parts.file_length(&kept)?;
        let Some(total) = request.budget.file_size() else {
            return plan::compute(hyper, request, &self.measured, types);
        };
        if whole <= total {
            return Ok(kept);
        }
        let matrices: u64 = kept.units().iter().map(|unit| unit.bytes_after()).sum();
        let mut evidence = self.measured.clone();
        let best = fit_to_size(total, whole - matrices, |overhead| {
            evidence.overhead_bytes = Some(overhead);
            let plan = plan::compute(hyper, request.clone(), &evidence, types)?;
            Ok((parts.file_length(&plan)?, plan))
        })?;
        best.ok_or(PlanError::FileTooSmall {
            budget: request.budget,
            smallest: total + SLACK,
        })
    }
}

fn all_types() -> impl Iterator<Item = DenseType> {
    let blocks = BlockFit::TYPES.iter().copied().map(DenseType::from);
    blocks.chain(Code::all().map(DenseType::ColumnGroups))
}

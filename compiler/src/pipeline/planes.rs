//! Elastic artifacts: the bases are a smaller artifact, and residuals are added as separate planes.

use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use htc_formats::source::ModelFile;

use super::CompileError;
use super::prepare::Prepared;
use super::sized::to_file_budget;
use crate::choose::{
    self, ACTIVE_FRACTION_POINTS, PlanProvider, STEPS_OF_FILES, SelectedArtifact, SizeSearch,
    TrialError, measure_active_fractions, tune_elastic,
};
use crate::event::{Event, Progress};
use crate::make::work::WorkFolder;
use crate::make::{BuiltArtifact, MakeInputs};
use crate::measure::Distance;
use crate::options::{BASE_FRACTION, CodeKinds, CompileOptions, PlanSource, QualityLimit};
use crate::plan::{self, Budget, Method, Plan, PlanError, Refinement};
use crate::profile::{self, ProfileInputs};
use crate::system::clock::{Stage, StageClock};
use crate::system::show::format_bytes;

/// Iterations of planning residuals with the bytes left over by the iteration before.
const MAX_ITERATIONS: usize = 4;

const SLACK: u64 = 256;

/// Approximate, at the same loss.
const TWO_PLANE_OVERHEAD: f64 = 1.12;

#[derive(Clone, Debug)]
pub(super) struct ElasticRequest {
    size: SizeTarget,
    pub bases: CompileOptions,
}

#[derive(Clone, Copy, Debug)]
enum SizeTarget {
    /// Maximum bytes of the whole file.
    Bytes(u64),
    /// The smallest file, with all bytes in use.
    Within(QualityLimit),
}

struct ElasticCandidate {
    ratio: f64,
    bases: BuiltArtifact,
    complete: BuiltArtifact,
    distance: Distance,
}

impl ElasticRequest {
    /// Resolves the options of an elastic artifact; `None` if one plane is requested.
    ///
    /// # Errors
    /// [`CompileError::BlockArrays`] for requests that cannot have planes.
    pub fn from_options(
        options: &CompileOptions,
        source: &ModelFile,
    ) -> Result<Option<ElasticRequest>, CompileError> {
        match options.artifact.planes {
            1 => return Ok(None),
            2 => {}
            _ => return Err(planes_error("there are one or two")),
        }
        let PlanSource::Compute { request, target } = &options.planning else {
            return Err(planes_error(
                "a plan from a file has one plane; leave one of them out",
            ));
        };
        if request.method != Method::Quantise {
            return Err(planes_error(
                "only matrices in codes have planes; take `method` quantise",
            ));
        }
        if request.codes.kinds() == CodeKinds::Gguf {
            return Err(planes_error(
                "types of GGUF have no planes; take other `codes`",
            ));
        }
        let mut request = request.clone();
        let limit = options.limit;
        let size = match to_file_budget(request.budget, source, source.size()) {
            _ if !limit.is_none() => SizeTarget::Within(limit),
            Budget::FileSize(total) => {
                request.budget = Budget::FileSize((BASE_FRACTION * total as f64) as u64);
                SizeTarget::Bytes(total)
            }
            _ => {
                return Err(planes_error(
                    "planes are shared out for a size or within a limit; give `file_size`, `bits`, or one of the limits",
                ));
            }
        };
        let planning = PlanSource::Compute {
            request,
            target: target.clone(),
        };
        let bases = CompileOptions {
            planning,
            ..options.clone()
        };
        Ok(Some(ElasticRequest { size, bases }))
    }

    /// Returns the bytes of the whole file, requested or predicted.
    pub fn expected_bytes(&self, prepared: &Prepared) -> Result<u64, PlanError> {
        match self.size {
            SizeTarget::Bytes(total) => Ok(total),
            SizeTarget::Within(_) => prepared.size_at(ElasticRequest::start_ratio(prepared)),
        }
    }

    /// Returns the ratio at which the complete artifact is predicted to meet its limit and for
    /// which a plan of the bases exists.
    fn start_ratio(prepared: &Prepared) -> f64 {
        let mut ratio = prepared.start_ratio.unwrap_or(1.0);
        loop {
            ratio *= TWO_PLANE_OVERHEAD;
            if ratio >= 1.0 {
                return 1.0;
            }
            let bases = prepared.plan_at(Some(BASE_FRACTION * ratio));
            if !bases.is_err_and(|error| error.is_too_small()) {
                return ratio;
            }
        }
    }

    /// Returns the ratio of the bases' plan; `None` for the requested size.
    pub fn bases_ratio(&self, prepared: &Prepared) -> Option<f64> {
        match self.size {
            SizeTarget::Bytes(_) => None,
            SizeTarget::Within(_) => Some(BASE_FRACTION * ElasticRequest::start_ratio(prepared)),
        }
    }

    /// Makes bases and residuals of the requested size, or the smallest within the limit.
    pub fn make(
        &self,
        prepared: &Prepared,
        inputs: &MakeInputs,
        (work, clock): (&WorkFolder, &StageClock),
        watch: Progress,
    ) -> Result<SelectedArtifact, CompileError> {
        let mut wanted = prepared.choice_request;
        wanted.limit = QualityLimit::default();
        let (total, ratio, mut notes) = match self.size {
            SizeTarget::Bytes(total) => (total, None, Vec::new()),
            SizeTarget::Within(limit) => {
                let (found, tried) =
                    self.search_smallest(limit, prepared, inputs, (work, clock), watch)?;
                let note = format!(
                    "of {tried} sizes, {} is the smallest of which all holds {limit}",
                    format_bytes(found.complete.bytes)
                );
                let total = prepared.size_at(found.ratio)?;
                (total, Some(BASE_FRACTION * found.ratio), vec![note])
            }
        };
        let planner = |_| prepared.plan_at(ratio);
        let plans = PlanProvider {
            at_ratio: &planner,
            start_ratio: None,
            alternatives: &|plan| match self.size {
                SizeTarget::Bytes(_) => prepared.alternatives(plan),
                SizeTarget::Within(_) => Ok(Vec::new()),
            },
        };
        let mut chosen = clock.time(Stage::Factorise, || {
            choose::choose(inputs, plans, wanted, work, clock, watch)
        })?;
        chosen.notes.append(&mut notes);
        let mut chosen = self.add_residuals_and_measure(
            (prepared, total),
            inputs,
            chosen,
            (work, clock),
            watch,
        )?;
        if let SizeTarget::Within(limit) = self.size {
            chosen.limit = Some(limit.to_string());
            let found = chosen.quality.as_ref();
            let distance = found.and_then(|quality| quality.reference.as_ref());
            if distance.is_some_and(|distance| !limit.holds(distance)) {
                chosen.notes.push(choose::limit_exceeded_note(limit, found));
            }
        }
        Ok(chosen)
    }

    /// Executes candidates without tuned norms; returns the artifact with the number of candidates.
    fn search_smallest(
        &self,
        limit: QualityLimit,
        prepared: &Prepared,
        inputs: &MakeInputs,
        (work, clock): (&WorkFolder, &StageClock),
        watch: Progress,
    ) -> Result<(ElasticCandidate, usize), CompileError> {
        let wanted = prepared.choice_request;
        let treatment = wanted.treatment.resolve(wanted.calibrated)?;
        let mut tried = 0;
        let mut at = |ratio: f64| -> Result<Option<ElasticCandidate>, CompileError> {
            let plan = match prepared.plan_at(Some(BASE_FRACTION * ratio)) {
                Ok(plan) => plan,
                Err(error) if error.is_too_small() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            tried += 1;
            watch.report(Event::Trial { treatment, ratio });
            let total = prepared.size_at(ratio)?;
            let bases = clock.time(Stage::Factorise, || {
                inputs.build(&plan, treatment, work, watch)
            })?;
            let made = (&bases, &plan);
            let all =
                self.build_with_residuals((prepared, total), inputs, made, (work, clock), watch)?;
            let (all, _) = all.unwrap_or_else(|| (bases.clone(), Vec::new()));
            let distance = choose::measure_whole(inputs, &all, wanted, work, clock, watch)?;
            Ok(Some(ElasticCandidate {
                ratio,
                bases,
                complete: all,
                distance,
            }))
        };
        let first = ElasticRequest::start_ratio(prepared);
        let (first, start) = match at(first)? {
            Some(found) => (first, Some(found)),
            None => (1.0, at(1.0)?),
        };
        let Some(start) = start else {
            return Err(PlanError::Inconsistent(None).into());
        };
        let search = SizeSearch {
            holds: &|found: &ElasticCandidate| limit.holds(&found.distance),
            bytes: &|found: &ElasticCandidate| found.complete.bytes,
            discard: &|found: &ElasticCandidate| {
                work.artifact(found.bases.key).discard();
                work.artifact(found.complete.key).discard();
            },
        };
        let found = search.find_smallest(STEPS_OF_FILES, first, start, at)?;
        let found = found.map_err(|whole| TrialError::Limit {
            limit,
            ratio: whole.ratio,
            found: Box::new(whole.distance),
        })?;
        Ok((found, tried))
    }

    /// Adds residuals to the chosen bases, up to `total` bytes, and measures the artifact at
    /// several active fractions.
    fn add_residuals_and_measure(
        &self,
        (prepared, total): (&Prepared, u64),
        inputs: &MakeInputs,
        mut chosen: SelectedArtifact,
        (work, clock): (&WorkFolder, &StageClock),
        watch: Progress,
    ) -> Result<SelectedArtifact, CompileError> {
        let made = (&chosen.built, &chosen.plan);
        let refined =
            self.build_with_residuals((prepared, total), inputs, made, (work, clock), watch)?;
        let Some((refined, found)) = refined else {
            let note = "no refinement fits into the bytes that the bases leave".to_owned();
            chosen.notes.push(note);
            return Ok(chosen);
        };
        let whole: u64 = found.iter().map(|of| of.bytes).sum();
        chosen.notes.push(format!(
            "bases of {} in {} that were asked for, and {} refinements of {}",
            format_bytes(chosen.built.bytes),
            format_bytes(total),
            found.len(),
            format_bytes(whole),
        ));
        let bases = std::mem::replace(&mut chosen.built, refined);
        let request = prepared.choice_request;
        if request.tune > 0 {
            tune_elastic(inputs, &mut chosen, &bases, request, work, clock, watch)?;
        }
        measure_active_fractions(
            inputs,
            &mut chosen,
            prepared.choice_request,
            work,
            clock,
            watch,
        )?;
        Ok(chosen)
    }

    /// Adds as many residuals to the bases as fit into the given bytes; `None` if none fits.
    fn build_with_residuals(
        &self,
        of: (&Prepared, u64),
        inputs: &MakeInputs,
        (bases, plan): (&BuiltArtifact, &Plan),
        (work, clock): (&WorkFolder, &StageClock),
        watch: Progress,
    ) -> Result<Option<(BuiltArtifact, Vec<Refinement>)>, CompileError> {
        let found = clock.time(Stage::Plan, || {
            self.plan_residuals(of, inputs, (bases, plan), work, watch)
        })?;
        if found.is_empty() {
            return Ok(None);
        }
        let refined = clock.time(Stage::Factorise, || {
            inputs.with_residuals(bases, plan, &found, ACTIVE_FRACTION_POINTS, work, watch)
        })?;
        Ok(Some((refined, found)))
    }

    fn plan_residuals(
        &self,
        (prepared, total): (&Prepared, u64),
        inputs: &MakeInputs,
        (bases, plan): (&BuiltArtifact, &Plan),
        work: &WorkFolder,
        watch: Progress,
    ) -> Result<Vec<Refinement>, CompileError> {
        let source = &prepared.source;
        let artifact = work.artifact(bases.key).open()?;
        let base = ModelFile::from_htz(&artifact)?;
        let units = plan.units().iter();
        let members = units.flat_map(|unit| unit.members.iter().map(|m| (m, &unit.form)));
        let members = plan::refinable_matrices(members, source.tensor(Role::Output).is_none());
        let request = plan.request();
        let measured = ProfileInputs {
            source,
            units: &[],
            calibration: prepared.calibration.as_ref(),
            gradients: prepared.gradients.as_ref(),
            order: prepared.permutation.as_ref(),
            device: inputs.device,
        };
        let curves = profile::refinements(measured, &base, &members, request, watch)?;
        let length = |found: &[Refinement]| -> Result<u64, HtzError> {
            inputs.bytes_with_residuals(artifact.manifest(), found, ACTIVE_FRACTION_POINTS)
        };
        let mut budget = total.saturating_sub(bases.bytes);
        let mut best: Option<(u64, Vec<Refinement>)> = None;
        for _ in 0..MAX_ITERATIONS {
            let found = plan::choose_refinements(&members, &curves, budget)?;
            let bytes = length(&found)?;
            if bytes <= total {
                budget += total - bytes;
                if best.as_ref().is_none_or(|(before, _)| bytes > *before) {
                    best = Some((bytes, found));
                }
            } else {
                budget = budget.saturating_sub(bytes - total + SLACK);
            }
        }
        Ok(best.map(|(_, found)| found).unwrap_or_default())
    }
}

pub(super) fn scale_bases_error(
    error: CompileError,
    elastic: Option<&ElasticRequest>,
) -> CompileError {
    match (error, elastic) {
        (
            CompileError::Plan(PlanError::FileTooSmall { smallest, .. }),
            Some(ElasticRequest {
                size: SizeTarget::Bytes(total),
                ..
            }),
        ) => CompileError::Plan(PlanError::FileTooSmall {
            budget: Budget::FileSize(*total),
            smallest: (smallest as f64 / BASE_FRACTION).ceil() as u64 + SLACK,
        }),
        (error, _) => error,
    }
}

fn planes_error(why: &'static str) -> CompileError {
    CompileError::Planes { why }
}

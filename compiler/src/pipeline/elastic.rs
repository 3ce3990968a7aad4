//! Elastic artifacts: the bases are a smaller artifact, and residuals are added as separate planes.

use htc_formats::model::Role;
use htc_formats::source::ModelFile;

use super::CompileError;
use crate::choose::{
    self, ACTIVE_FRACTION_POINTS, STEPS_OF_FILES, SelectedArtifact, Selection, SizeSearch,
    TrialError,
};
use crate::event::Event;
use crate::make::BuiltArtifact;
use crate::measure::Distance;
use crate::options::{BASE_FRACTION, CodeKinds, CompileOptions, PlanSource, QualityLimit};
use crate::plan::{self, Budget, Method, Plan, PlanError, Refinement};
use crate::planner::{Planner, to_file_budget};
use crate::profile::{self, ProfileInputs};
use crate::system::clock::Stage;
use crate::system::show::{format_bytes, format_count};

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
    /// [`CompileError::Planes`] for requests that cannot have planes.
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
        let size = match to_file_budget(request.budget, source) {
            _ if !limit.is_none() => SizeTarget::Within(limit),
            Budget::FileSize(total) if total > source.size() => {
                return Err(CompileError::Plan(PlanError::FileAboveSource {
                    budget: request.budget,
                    source_bytes: source.size(),
                }));
            }
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
    pub fn expected_bytes(&self, planner: &Planner) -> Result<u64, PlanError> {
        match self.size {
            SizeTarget::Bytes(total) => Ok(total),
            SizeTarget::Within(_) => planner.size_at(start_ratio(planner)),
        }
    }

    /// Returns the ratio of the bases' plan; `None` for the requested size.
    pub fn bases_ratio(&self, planner: &Planner) -> Option<f64> {
        match self.size {
            SizeTarget::Bytes(_) => None,
            SizeTarget::Within(_) => Some(BASE_FRACTION * start_ratio(planner)),
        }
    }

    /// Makes bases and residuals of the requested size, or the smallest within the limit.
    pub fn make(
        &self,
        planner: &Planner,
        selection: &Selection,
    ) -> Result<SelectedArtifact, CompileError> {
        let builder = ElasticBuilder { planner, selection };
        let limit = match self.size {
            SizeTarget::Bytes(total) => return builder.make(planner, total),
            SizeTarget::Within(limit) => limit,
        };
        let (found, tried) = builder.search_smallest(limit)?;
        let total = planner.size_at(found.ratio)?;
        let bases = planner.plan_at(BASE_FRACTION * found.ratio)?;
        let mut chosen = builder.make(&bases.into(), total)?;
        let note = format!(
            "of {tried} sizes, {} is the smallest of which all holds {limit}",
            format_bytes(found.complete.bytes)
        );
        chosen.notes.insert(0, note);
        chosen.limit = Some(limit);
        let quality = chosen.quality.as_ref();
        let distance = quality.and_then(|quality| quality.reference.as_ref());
        if distance.is_some_and(|distance| !limit.holds(distance)) {
            let note = choose::limit_exceeded_note(limit, quality);
            chosen.notes.push(note);
        }
        Ok(chosen)
    }
}

/// Returns the ratio at which the complete artifact is predicted to meet its limit and for which a
/// plan of the bases exists.
fn start_ratio(planner: &Planner) -> f64 {
    let mut ratio = planner.start_ratio().unwrap_or(1.0);
    loop {
        ratio *= TWO_PLANE_OVERHEAD;
        if ratio >= 1.0 {
            return 1.0;
        }
        let bases = planner.plan_at(BASE_FRACTION * ratio);
        if !bases.is_err_and(|error| error.is_too_small()) {
            return ratio;
        }
    }
}

/// Makes elastic artifacts with the plans of a planner.
struct ElasticBuilder<'a> {
    planner: &'a Planner<'a>,
    selection: &'a Selection<'a>,
}

impl ElasticBuilder<'_> {
    /// Chooses the bases among the plans of `bases`, adds residuals up to `total` bytes, and
    /// measures the artifact at several active fractions.
    fn make(&self, bases: &Planner, total: u64) -> Result<SelectedArtifact, CompileError> {
        let selection = self.selection;
        // The limit is of the whole.
        let mut of_bases = *selection;
        of_bases.request.limit = QualityLimit::default();
        let choose = || of_bases.choose(bases);
        let mut chosen = selection.clock.time(Stage::Factorise, choose)?;
        let refined = self.build_with_residuals(&chosen.built, &chosen.plan, total)?;
        let Some((refined, refinements)) = refined else {
            let note = "no refinement fits into the bytes that the bases leave".to_owned();
            chosen.notes.push(note);
            return Ok(chosen);
        };
        let whole: u64 = refinements.iter().map(|of| of.bytes).sum();
        chosen.notes.push(format!(
            "bases of {} within the requested {}, and {} of {}",
            format_bytes(chosen.built.bytes),
            format_bytes(total),
            format_count(refinements.len(), "refinement"),
            format_bytes(whole),
        ));
        let bases = std::mem::replace(&mut chosen.built, refined);
        if selection.request.tune > 0 {
            selection.tune_elastic(&mut chosen, &bases)?;
        }
        selection.measure_active_fractions(&mut chosen)?;
        Ok(chosen)
    }

    /// Executes candidates without tuned norms; returns the artifact with the number of candidates.
    fn search_smallest(
        &self,
        limit: QualityLimit,
    ) -> Result<(ElasticCandidate, usize), CompileError> {
        let Selection {
            builder,
            request,
            clock,
            reference: _,
        } = self.selection;
        let treatment = request.treatment.resolve(request.calibrated)?;
        let mut tried = 0;
        let mut at = |ratio: f64| -> Result<Option<ElasticCandidate>, CompileError> {
            let plan = match self.planner.plan_at(BASE_FRACTION * ratio) {
                Ok(plan) => plan,
                Err(error) if error.is_too_small() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            tried += 1;
            builder.progress.report(Event::Trial { treatment, ratio });
            let total = self.planner.size_at(ratio)?;
            let bases = clock.time(Stage::Factorise, || builder.build(&plan, treatment))?;
            let complete = self.build_with_residuals(&bases, &plan, total)?;
            let complete = complete.map_or_else(|| bases.clone(), |(complete, _)| complete);
            let distance = self.selection.measure_whole(&complete)?;
            Ok(Some(ElasticCandidate {
                ratio,
                bases,
                complete,
                distance,
            }))
        };
        let first = start_ratio(self.planner);
        let (first, start) = match at(first)? {
            Some(found) => (first, Some(found)),
            None => (1.0, at(1.0)?),
        };
        let start = start.ok_or(PlanError::Inconsistent(None))?;
        let search = SizeSearch {
            loss: &|found: &ElasticCandidate| limit.relative_loss(&found.distance),
            bytes: &|found: &ElasticCandidate| found.complete.bytes,
            discard: &|found: &ElasticCandidate| {
                builder.work.artifact(found.bases.key).discard();
                builder.work.artifact(found.complete.key).discard();
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

    /// Adds as many residuals to the bases as fit into `total` bytes; `None` if none fits.
    fn build_with_residuals(
        &self,
        bases: &BuiltArtifact,
        plan: &Plan,
        total: u64,
    ) -> Result<Option<(BuiltArtifact, Vec<Refinement>)>, CompileError> {
        let clock = self.selection.clock;
        let found = clock.time(Stage::Plan, || self.plan_residuals(bases, plan, total))?;
        if found.is_empty() {
            return Ok(None);
        }
        let builder = &self.selection.builder;
        let refined = clock.time(Stage::Factorise, || {
            builder.with_residuals(bases, plan, &found, ACTIVE_FRACTION_POINTS)
        })?;
        Ok(Some((refined, found)))
    }

    fn plan_residuals(
        &self,
        bases: &BuiltArtifact,
        plan: &Plan,
        total: u64,
    ) -> Result<Vec<Refinement>, CompileError> {
        let builder = &self.selection.builder;
        let artifact = builder.work.artifact(bases.key).open()?;
        let base = ModelFile::from_htz(&artifact)?;
        let units = plan.units().iter();
        let members = units.flat_map(|unit| unit.members.iter().map(|m| (m, &unit.form)));
        let tied = builder.source.tensor(Role::Output).is_none();
        let members = plan::refinable_matrices(members, tied);
        let measured = ProfileInputs {
            source: builder.source,
            units: &[],
            calibration: builder.calibration,
            gradients: builder.gradients,
            order: builder.permutation,
            device: builder.device,
        };
        let (request, progress) = (plan.request(), builder.progress);
        let curves = profile::refinements(measured, &base, &members, request, progress)?;
        let mut budget = total.saturating_sub(bases.bytes);
        let mut best: Option<(u64, Vec<Refinement>)> = None;
        for _ in 0..MAX_ITERATIONS {
            let found = plan::choose_refinements(&members, &curves, budget)?;
            let points = ACTIVE_FRACTION_POINTS;
            let bytes = builder.bytes_with_residuals(artifact.manifest(), &found, points)?;
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
    let Some(ElasticRequest {
        size: SizeTarget::Bytes(total),
        ..
    }) = elastic
    else {
        return error;
    };
    let budget = Budget::FileSize(*total);
    let scaled = |bases: u64| (bases as f64 / BASE_FRACTION).ceil() as u64 + SLACK;
    match error {
        CompileError::Plan(PlanError::FileTooSmall { smallest, .. }) => {
            CompileError::Plan(PlanError::FileTooSmall {
                budget,
                smallest: scaled(smallest),
            })
        }
        CompileError::Plan(PlanError::FileBelowShapes { least, .. }) => {
            CompileError::Plan(PlanError::FileBelowShapes {
                budget,
                least: scaled(least),
            })
        }
        error => error,
    }
}

fn planes_error(why: &'static str) -> CompileError {
    CompileError::Planes { why }
}

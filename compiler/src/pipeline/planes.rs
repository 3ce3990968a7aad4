//! Elastic artifacts: the bases are an artifact of a smaller size, and residuals are added as
//! separate planes.

use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use htc_formats::source::ModelFile;

use super::CompileError;
use super::prepare::Prepared;
use super::sized::of_file;
use crate::choose::{
    self, Chosen, DIAL_POINTS, Plans, STEPS_OF_FILES, Search, TrialError, measure_dial, tune_whole,
};
use crate::event::{Event, Watch};
use crate::make::work::Work;
use crate::make::{Built, Inputs};
use crate::measure::Distance;
use crate::plan::{self, Budget, Method, Plan, PlanError, Refinement};
use crate::profile::{self, Measured};
use crate::request::{BASES, CodeKinds, CompileOptions, Limit, Planning};
use crate::system::clock::{Stage, StageClock};
use crate::system::show::bytes_for_people;

/// Iterations of planning residuals with the bytes left over by the iteration before.
const TURNS: usize = 4;

const SLACK: u64 = 256;

/// Approximate size of a two-plane artifact relative to a one-plane artifact of the same loss.
const LARGER: f64 = 1.12;

#[derive(Clone, Debug)]
pub(super) struct Elastic {
    size: Size,
    /// Options of the bases.
    pub bases: CompileOptions,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    /// Maximum bytes of the whole file.
    Bytes(u64),
    /// The smallest file that meets this limit with all bytes in use.
    Within(Limit),
}

struct Whole {
    ratio: f64,
    bases: Built,
    all: Built,
    distance: Distance,
}

impl Elastic {
    /// Resolves the options of an elastic artifact; `None` if one plane is requested.
    ///
    /// # Errors
    /// [`CompileError::Planes`] for requests that cannot have planes.
    pub fn of(
        options: &CompileOptions,
        source: &ModelFile,
    ) -> Result<Option<Elastic>, CompileError> {
        match options.planes {
            1 => return Ok(None),
            2 => {}
            _ => return Err(refused("there are one or two")),
        }
        let Planning::Make { request, target } = &options.planning else {
            return Err(refused(
                "a plan from a file has one plane; leave one of them out",
            ));
        };
        if request.method != Method::Quantise {
            return Err(refused(
                "only matrices in codes have planes; take `method` quantise",
            ));
        }
        if request.codes == CodeKinds::Gguf {
            return Err(refused("types of GGUF have no planes; take other `codes`"));
        }
        let mut request = request.clone();
        let limit = options.goal.limit;
        let size = match of_file(request.budget, source, source.size()) {
            _ if !limit.is_none() => Size::Within(limit),
            Budget::FileSize(total) => {
                request.budget = Budget::FileSize((BASES * total as f64) as u64);
                Size::Bytes(total)
            }
            _ => {
                return Err(refused(
                    "planes are shared out for a size or within a limit; give `file_size`, `bits`, or one of the limits",
                ));
            }
        };
        let planning = Planning::Make {
            request,
            target: target.clone(),
        };
        let bases = CompileOptions {
            planning,
            ..options.clone()
        };
        Ok(Some(Elastic { size, bases }))
    }

    /// Returns the requested bytes of the whole file, or those predicted to meet the limit.
    pub fn expected_bytes(&self, prepared: &Prepared) -> Result<u64, PlanError> {
        match self.size {
            Size::Bytes(total) => Ok(total),
            Size::Within(_) => prepared.size_at(Elastic::start(prepared)),
        }
    }

    /// Returns the ratio at which the complete artifact is predicted to meet its limit and for
    /// which a plan of the bases exists.
    fn start(prepared: &Prepared) -> f64 {
        let mut ratio = prepared.start.unwrap_or(1.0);
        loop {
            ratio *= LARGER;
            if ratio >= 1.0 {
                return 1.0;
            }
            let bases = prepared.plan_at(Some(BASES * ratio));
            if !bases.is_err_and(|error| error.is_too_small()) {
                return ratio;
            }
        }
    }

    /// Returns the ratio of the bases' plan; `None` for the requested size.
    pub fn bases_at(&self, prepared: &Prepared) -> Option<f64> {
        match self.size {
            Size::Bytes(_) => None,
            Size::Within(_) => Some(BASES * Elastic::start(prepared)),
        }
    }

    /// Makes bases and residuals of the requested size, or of the smallest size that meets the
    /// limit.
    pub fn make(
        &self,
        prepared: &Prepared,
        inputs: &Inputs,
        (work, clock): (&Work, &StageClock),
        watch: Watch,
    ) -> Result<Chosen, CompileError> {
        let mut wanted = prepared.wanted;
        wanted.goal.limit = Limit::default();
        let (total, ratio, mut notes) = match self.size {
            Size::Bytes(total) => (total, None, Vec::new()),
            Size::Within(limit) => {
                let (found, tried) = self.sought(limit, prepared, inputs, (work, clock), watch)?;
                let note = format!(
                    "of {tried} sizes, {} is the smallest of which all holds {limit}",
                    bytes_for_people(found.all.bytes)
                );
                let total = prepared.size_at(found.ratio)?;
                (total, Some(BASES * found.ratio), vec![note])
            }
        };
        let planner = |_| prepared.plan_at(ratio);
        let plans = Plans {
            at: &planner,
            start: None,
            others: &|plan| match self.size {
                Size::Bytes(_) => prepared.others(plan),
                Size::Within(_) => Ok(Vec::new()),
            },
        };
        let mut chosen = clock.during(Stage::Factorise, || {
            choose::choose(inputs, plans, wanted, work, clock, watch)
        })?;
        chosen.notes.append(&mut notes);
        let mut chosen = self.refine((prepared, total), inputs, chosen, (work, clock), watch)?;
        if let Size::Within(limit) = self.size {
            chosen.limit = Some(limit.to_string());
            let found = chosen.quality.as_ref();
            let distance = found.and_then(|quality| quality.reference.as_ref());
            if distance.is_some_and(|distance| !limit.holds(distance)) {
                chosen.notes.push(choose::not_on_others(limit, found));
            }
        }
        Ok(chosen)
    }

    /// Searches for the smallest complete artifact that meets a limit, by executing candidates
    /// without tuned norms. Returns it with the number of candidates.
    fn sought(
        &self,
        limit: Limit,
        prepared: &Prepared,
        inputs: &Inputs,
        (work, clock): (&Work, &StageClock),
        watch: Watch,
    ) -> Result<(Whole, usize), CompileError> {
        let wanted = prepared.wanted;
        let treatment = wanted.treatment.resolve(wanted.calibrated)?;
        let mut tried = 0;
        let mut at = |ratio: f64| -> Result<Option<Whole>, CompileError> {
            let plan = match prepared.plan_at(Some(BASES * ratio)) {
                Ok(plan) => plan,
                Err(error) if error.is_too_small() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            tried += 1;
            watch.tell(Event::Trial { treatment, ratio });
            let total = prepared.size_at(ratio)?;
            let bases = clock.during(Stage::Factorise, || {
                inputs.build(&plan, treatment, work, watch)
            })?;
            let made = (&bases, &plan);
            let all = self.refined((prepared, total), inputs, made, (work, clock), watch)?;
            let (all, _) = all.unwrap_or_else(|| (bases.clone(), Vec::new()));
            let distance = choose::measure_whole(inputs, &all, wanted, work, clock, watch)?;
            Ok(Some(Whole {
                ratio,
                bases,
                all,
                distance,
            }))
        };
        let first = Elastic::start(prepared);
        let (first, start) = match at(first)? {
            Some(found) => (first, Some(found)),
            None => (1.0, at(1.0)?),
        };
        let Some(start) = start else {
            return Err(PlanError::Inconsistent(None).into());
        };
        let search = Search {
            holds: &|found: &Whole| limit.holds(&found.distance),
            bytes: &|found: &Whole| found.all.bytes,
            discard: &|found: &Whole| {
                work.artifact(found.bases.key).discard();
                work.artifact(found.all.key).discard();
            },
        };
        let found = search.smallest(STEPS_OF_FILES, (first, start), at)?;
        let found = found.map_err(|whole| TrialError::Limit {
            limit,
            ratio: whole.ratio,
            found: Box::new(whole.distance),
        })?;
        Ok((found, tried))
    }

    /// Adds residuals to the chosen bases, up to `total` bytes, and measures the artifact at
    /// several active fractions.
    fn refine(
        &self,
        (prepared, total): (&Prepared, u64),
        inputs: &Inputs,
        mut chosen: Chosen,
        (work, clock): (&Work, &StageClock),
        watch: Watch,
    ) -> Result<Chosen, CompileError> {
        let made = (&chosen.built, &chosen.plan);
        let refined = self.refined((prepared, total), inputs, made, (work, clock), watch)?;
        let Some((refined, found)) = refined else {
            let note = "no refinement fits into the bytes that the bases leave".to_owned();
            chosen.notes.push(note);
            return Ok(chosen);
        };
        let whole: u64 = found.iter().map(|of| of.bytes).sum();
        chosen.notes.push(format!(
            "bases of {} in {} that were asked for, and {} refinements of {}",
            bytes_for_people(chosen.built.bytes),
            bytes_for_people(total),
            found.len(),
            bytes_for_people(whole),
        ));
        let bases = std::mem::replace(&mut chosen.built, refined);
        let steps = prepared.wanted.tune;
        if steps > 0 {
            let wanted = (steps, prepared.wanted.goal.limit);
            tune_whole(inputs, &mut chosen, &bases, wanted, work, clock, watch)?;
        }
        measure_dial(inputs, &mut chosen, prepared.wanted, work, clock, watch)?;
        Ok(chosen)
    }

    /// Adds as many residuals to the bases as fit into the given bytes; `None` if none fits.
    fn refined(
        &self,
        of: (&Prepared, u64),
        inputs: &Inputs,
        (bases, plan): (&Built, &Plan),
        (work, clock): (&Work, &StageClock),
        watch: Watch,
    ) -> Result<Option<(Built, Vec<Refinement>)>, CompileError> {
        let found = clock.during(Stage::Plan, || {
            self.refinements(of, inputs, (bases, plan), work, watch)
        })?;
        if found.is_empty() {
            return Ok(None);
        }
        let refined = clock.during(Stage::Factorise, || {
            inputs.refined(bases, plan, (&found, DIAL_POINTS), work, watch)
        })?;
        Ok(Some((refined, found)))
    }

    fn refinements(
        &self,
        (prepared, total): (&Prepared, u64),
        inputs: &Inputs,
        (bases, plan): (&Built, &Plan),
        work: &Work,
        watch: Watch,
    ) -> Result<Vec<Refinement>, CompileError> {
        let source = &prepared.source;
        let artifact = work.artifact(bases.key).open()?;
        let base = ModelFile::from_htz(&artifact)?;
        let units = plan.units().iter();
        let members = units.flat_map(|unit| unit.members.iter().map(|m| (m, &unit.form)));
        let members = plan::refinable(members, source.tensor(Role::Output).is_none());
        let request = plan.request();
        let measured = Measured {
            source,
            units: &[],
            calibration: prepared.calibration.as_ref(),
            gradients: prepared.gradients.as_ref(),
            order: prepared.order.as_ref(),
            device: inputs.device,
        };
        let curves = profile::refinements(measured, &base, &members, request, watch)?;
        let length = |found: &[Refinement]| -> Result<u64, HtzError> {
            inputs.refined_bytes(artifact.manifest(), found, DIAL_POINTS)
        };
        let mut budget = total.saturating_sub(bases.bytes);
        let mut best: Option<(u64, Vec<Refinement>)> = None;
        for _ in 0..TURNS {
            let found = plan::refinements(&members, &curves, budget)?;
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

pub(super) fn of_whole(error: CompileError, elastic: Option<&Elastic>) -> CompileError {
    match (error, elastic) {
        (
            CompileError::Plan(PlanError::FileTooSmall { smallest, .. }),
            Some(Elastic {
                size: Size::Bytes(total),
                ..
            }),
        ) => CompileError::Plan(PlanError::FileTooSmall {
            budget: Budget::FileSize(*total),
            smallest: (smallest as f64 / BASES).ceil() as u64 + SLACK,
        }),
        (error, _) => error,
    }
}

fn refused(why: &'static str) -> CompileError {
    CompileError::Planes { why }
}

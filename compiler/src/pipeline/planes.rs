//! Elastic artifacts: bases that are an artifact of a smaller size, and what they lack as planes of their own.

use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use htc_formats::source::ModelFile;

use super::CompileError;
use super::prepare::Prepared;
use super::sized::of_file;
use crate::choose::{Chosen, DIAL_POINTS, measure_dial, tune_whole};
use crate::event::Watch;
use crate::make::Inputs;
use crate::make::work::Work;
use crate::plan::{self, Budget, Method, PlanError, Refinement};
use crate::profile::{self, Measured};
use crate::request::{BASES, CodeKinds, CompileOptions, Planning};
use crate::system::clock::{Stage, StageClock};
use crate::system::show::bytes_for_people;

/// Times that refinements are planned with what the ones before left over.
const TURNS: usize = 4;

/// Bytes by which the file's length may differ from one plan to the next.
const SLACK: u64 = 256;

/// An elastic artifact as it was asked for.
#[derive(Clone, Debug)]
pub(super) struct Elastic {
    /// Bytes of the whole file at most.
    pub total: u64,
    /// What is asked for of its bases.
    pub bases: CompileOptions,
}

impl Elastic {
    /// What was asked for; `None` where everything is to be in one plane.
    ///
    /// # Errors
    /// [`CompileError::Planes`] for what has no planes.
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
        if !options.goal.limit.is_none() {
            return Err(refused(
                "planes are shared out for a size, and not for a limit; give `file_size` or `bits`",
            ));
        }
        let Budget::FileSize(total) = of_file(request.budget, source, source.size()) else {
            return Err(refused(
                "planes are shared out for a size; give `file_size` or `bits`",
            ));
        };
        let mut request = request.clone();
        request.budget = Budget::FileSize((BASES * total as f64) as u64);
        let planning = Planning::Make {
            request,
            target: *target,
        };
        let bases = CompileOptions {
            planning,
            ..options.clone()
        };
        Ok(Some(Elastic { total, bases }))
    }

    /// Adds what the bases lack to an artifact of them, and measures what it is at parts of its bytes.
    pub fn refine(
        &self,
        prepared: &Prepared,
        inputs: &Inputs,
        mut chosen: Chosen,
        (work, clock): (&Work, &StageClock),
        watch: Watch,
    ) -> Result<Chosen, CompileError> {
        let found = clock.during(Stage::Plan, || {
            self.refinements(prepared, inputs, &chosen, work, watch)
        })?;
        let whole: u64 = found.iter().map(|of| of.bytes).sum();
        chosen.notes.push(match found.len() {
            0 => "no refinement fits into the bytes that the bases leave".to_owned(),
            count => format!(
                "bases of {} in {} that were asked for, and {count} refinements of {}",
                bytes_for_people(chosen.built.bytes),
                bytes_for_people(self.total),
                bytes_for_people(whole),
            ),
        });
        if found.is_empty() {
            return Ok(chosen);
        }
        let refined = clock.during(Stage::Factorise, || {
            inputs.refined(
                &chosen.built,
                &chosen.plan,
                (&found, DIAL_POINTS),
                work,
                watch,
            )
        })?;
        let bases = std::mem::replace(&mut chosen.built, refined);
        let steps = prepared.wanted.tune;
        if steps > 0 {
            tune_whole(inputs, &mut chosen, &bases, steps, work, clock, watch)?;
        }
        measure_dial(inputs, &mut chosen, prepared.wanted, work, clock, watch)?;
        Ok(chosen)
    }

    /// The refinements of which the artifact is as large as was asked for, from below.
    fn refinements(
        &self,
        prepared: &Prepared,
        inputs: &Inputs,
        chosen: &Chosen,
        work: &Work,
        watch: Watch,
    ) -> Result<Vec<Refinement>, CompileError> {
        let (source, threads) = (&prepared.source, inputs.threads);
        let artifact = work.artifact(chosen.built.key).open()?;
        let base = ModelFile::from_htz(&artifact)?;
        let units = chosen.plan.units().iter();
        let members = units.flat_map(|unit| unit.members.iter().map(|m| (m, &unit.form)));
        let members = plan::refinable(members, source.tensor(Role::Output).is_none());
        let request = chosen.plan.request();
        let measured = Measured {
            source,
            units: &[],
            calibration: prepared.calibration.as_ref(),
            gradients: prepared.gradients.as_ref(),
            order: prepared.order.as_ref(),
        };
        let curves = profile::refinements(measured, &base, &members, request, threads, watch)?;
        let length = |found: &[Refinement]| -> Result<u64, HtzError> {
            inputs.refined_bytes(artifact.manifest(), found, DIAL_POINTS)
        };
        let mut budget = self.total.saturating_sub(chosen.built.bytes);
        let mut best: Option<(u64, Vec<Refinement>)> = None;
        for _ in 0..TURNS {
            let found = plan::refinements(&members, &curves, budget)?;
            let bytes = length(&found)?;
            if bytes <= self.total {
                budget += self.total - bytes;
                if best.as_ref().is_none_or(|(before, _)| bytes > *before) {
                    best = Some((bytes, found));
                }
            } else {
                budget = budget.saturating_sub(bytes - self.total + SLACK);
            }
        }
        Ok(best.map(|(_, found)| found).unwrap_or_default())
    }
}

/// An error of the bases as one of the artifact that was asked for.
pub(super) fn of_whole(error: CompileError, elastic: Option<&Elastic>) -> CompileError {
    match (error, elastic) {
        (CompileError::Plan(PlanError::FileTooSmall { smallest, .. }), Some(elastic)) => {
            CompileError::Plan(PlanError::FileTooSmall {
                budget: Budget::FileSize(elastic.total),
                smallest: (smallest as f64 / BASES).ceil() as u64 + SLACK,
            })
        }
        (error, _) => error,
    }
}

fn refused(why: &'static str) -> CompileError {
    CompileError::Planes { why }
}

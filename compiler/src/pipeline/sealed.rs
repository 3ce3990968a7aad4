//! Last stage: baselines, the source's weights, and the artifact under its final name.

use htc_formats::htz::HtzWriter;

use super::planned::PlannedModel;
use super::{CompileContext, CompileError, source};
use crate::choose::{SelectedArtifact, Selection, TrialError};
use crate::estimate::Estimate;
use crate::event::{Event, Task};
use crate::measure::Evaluation;
use crate::options::{Switch, TextSource};
use crate::report::{BaselineFile, CalibrationReport, Quality, Report};
use crate::system::clock::Stage;
use crate::system::disk;

const COMPARISON_IMPOSSIBLE: &str = "nothing is compared: that takes a plan of the method quantise that is made, a type of \
     GGUF for a file of about this size, and held-out windows that decide nothing";

/// Publishes the selected artifact and returns the report of its compilation.
pub(super) fn seal(
    context: CompileContext,
    planned: &PlannedModel,
    selection: &Selection,
    estimate: Estimate,
    mut chosen: SelectedArtifact,
) -> Result<Report, CompileError> {
    let CompileContext {
        options,
        clock,
        progress,
        ..
    } = context;
    let (planner, builder) = (&planned.planner, &selection.builder);
    let most = options.max_comparison_files();
    let baselines = planner.baseline_plans(&chosen.plan, chosen.built.bytes, most)?;
    let baselines = clock.time(Stage::Factorise, || {
        selection.measure_single_type_files(&baselines)
    })?;
    if baselines.is_empty() && options.artifact.compare == Some(Switch::On) {
        chosen.notes.push(COMPARISON_IMPOSSIBLE.to_owned());
    }
    let shipped = match builder.calibration {
        Some(_) => None,
        None => {
            let measured = selection.measure_on_shipped_text(chosen.built.key);
            measured_or_noted(measured, &mut chosen.notes)?
        }
    };
    let with_source = options
        .artifact
        .with_source
        .then(|| clock.time(Stage::Seal, || builder.with_source(&chosen.built)));
    let with_source = with_source.transpose()?;
    progress.begin(Task::Sealing, 0);
    source::check_unchanged(builder.source, builder.digest, clock)?;
    let key = with_source.map_or(chosen.built.key, |made| made.key);
    let name = builder.work.artifact(key).complete_name();
    let synced = clock.time(Stage::Seal, || {
        let folder = builder.work.folder();
        HtzWriter::publish(folder, &name, &options.output, options.overwrite)
    })?;
    if let Err(error) = synced {
        let folder = disk::folder_of(&options.output).display();
        progress.report(Event::Warning(&format!(
            "{folder}: cannot be forced to the disk ({error}); the artifact is complete, but its name may be lost if the machine fails now"
        )));
    }
    let calibration = builder.calibration.map(|calibration| {
        let treatment = chosen.plan.treatment_of_factors(chosen.treatment, true);
        CalibrationReport::new(calibration, treatment.gauge, &chosen.built.treatment_report)
    });
    let foreseen = planner.predicted_losses(&chosen.plan)?;
    let report = Report::new(options, builder, estimate, chosen, clock);
    Ok(Report {
        quality: report.quality.or(shipped),
        calibration,
        with_source: with_source.map(Into::into),
        beside: BaselineFile::from_trials(baselines),
        foreseen,
        ..report
    })
}

/// An artifact without a measured quality is sealed with a note.
fn measured_or_noted(
    measured: Result<Evaluation, TrialError>,
    notes: &mut Vec<String>,
) -> Result<Option<Quality>, CompileError> {
    match measured {
        Ok(evaluation) => Ok(Some(Quality {
            text: TextSource::Shipped.name(),
            choosing_windows: 0,
            evaluation,
        })),
        Err(TrialError::Cancelled(cancelled)) => Err(cancelled.into()),
        Err(error) => {
            notes.push(format!("the quality could not be measured: {error}"));
            Ok(None)
        }
    }
}

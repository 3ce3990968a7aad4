//! Report of a compilation, as JSON and text.

mod beside;
mod calibrated;
mod forecast;
mod quality;
mod summary;

use std::fmt;
use std::time::Duration;

use htc_formats::escape::escape;
use htc_formats::htz::{ActiveFractionPoint, Digest, PlanRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::choose::{self, SelectedArtifact, Trial};
use crate::estimate::Estimate;
use crate::make::{ArtifactBuilder, ArtifactWithSource, TreatmentReport};
use crate::options::{CompileOptions, Method, QualityLimit, Treatment};
use crate::system::clock::{Stage, StageClock};
use crate::system::show::{
    bits_per_weight, file_name, format_bytes, format_count, format_interval,
};
use crate::tune::Tuning;

pub use crate::planner::{EstimatedLosses, EstimatedMatrixLoss, UniformFile};
pub use beside::BaselineFile;
pub use calibrated::{CalibrationReport, HeadError, OutputError};
pub use forecast::{Forecast, format_seconds};
pub use quality::Quality;
pub use summary::{Bases, Biases, ProjectionSummary, Summary, notes};

/// From this factor of the source's perplexity on, an artifact is of no use.
const USELESS_PERPLEXITY_RATIO: f64 = 2.0;

/// Report of a compilation, written and read as JSON.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Source file name.
    pub source: String,
    /// Source digest.
    pub source_sha256: Digest,
    /// File name of the artifact.
    pub artifact: String,
    /// Bytes of the source file and of the artifact.
    pub bytes: BeforeAfter,
    /// Bits of the artifact per weight of the source.
    pub bits_per_weight: f64,
    /// Additional bytes if the source's weights are included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with_source: Option<SourceBytes>,
    /// Request and plan.
    #[serde(flatten)]
    pub summary: Summary,
    /// Calibration, if any.
    pub calibration: Option<CalibrationReport>,
    /// Treatment of the weights.
    pub treatment: Treatment,
    /// Outcome of the treatment for factorised projections.
    #[serde(flatten)]
    pub treated: TreatmentReport,
    /// Measured quality, on held-out text or, without a calibration, on the shipped text; absent if
    /// the measurement failed.
    pub quality: Option<Quality>,
    /// Limit on the quality, if it decided on the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<QualityLimit>,
    /// Candidates among which the artifact was chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trial>,
    /// Measured files in one type, smallest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<BaselineFile>,
    /// Estimated losses, if codes were chosen by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<EstimatedLosses>,
    /// Tuning of norms and row scales, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
    /// Preceding tuning of an elastic artifact's bases alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning_of_bases: Option<Tuning>,
    /// Measurements of an elastic artifact at active fractions; absent for a single plane and if no
    /// held-out window is left for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dial: Vec<ActiveFractionPoint>,
    /// Record of every projection of every layer.
    pub plan: PlanRecord,
    /// Number of threads.
    pub threads: usize,
    /// Estimate before the first factor.
    pub forecast: Estimate,
    /// Peak of the anonymous memory in bytes, if known.
    pub peak_memory: Option<u64>,
    /// Durations in seconds.
    pub seconds: Seconds,
}

/// Quantity of the source and of the artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct BeforeAfter {
    /// In the source.
    pub before: u64,
    /// In the artifact.
    pub after: u64,
}

impl BeforeAfter {
    /// Formats bytes and, in a parenthesis, their part of the source and a note.
    fn show_bytes(self, note: Option<&str>) -> String {
        let part = percent(self.after, self.before);
        let [before, after] = [self.before, self.after].map(format_bytes);
        let note = note.map_or(String::new(), |note| format!("; {note}"));
        format!("{before:>12} -> {after:>12}  ({part:.1} %{note})")
    }
}

/// Bytes of the included source weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct SourceBytes {
    /// Bytes of the source's tensors in the file.
    pub source: u64,
    /// Bytes of source tensors that are shared with the artifact.
    pub shared: u64,
    /// Bytes of the whole file.
    pub file: u64,
}

/// Durations of the stages, in seconds.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Seconds {
    /// Opening the source and planning, with its measurements.
    pub plan: f64,
    /// Reading the source for its digest.
    pub read: f64,
    /// Calibration, or loading it from the cache.
    pub calibrate: f64,
    /// Factorising and writing, for all candidates.
    pub factorise: f64,
    /// Evaluating candidates on held-out text.
    #[serde(default)]
    pub measure: f64,
    /// Tuning the chosen candidate.
    #[serde(default)]
    pub tune: f64,
    /// Syncing the artifact to the disk.
    pub seal: f64,
    /// Total.
    pub total: f64,
}

impl From<ArtifactWithSource> for SourceBytes {
    fn from(artifact: ArtifactWithSource) -> Self {
        SourceBytes {
            source: artifact.source_bytes,
            shared: artifact.shared_bytes,
            file: artifact.file_bytes,
        }
    }
}

impl Seconds {
    /// Returns the seconds of every stage, in the order of a compilation.
    pub(crate) fn stages(&self) -> [(&'static str, f64); 7] {
        let Seconds {
            plan,
            read,
            calibrate,
            factorise,
            measure,
            tune,
            seal,
            total: _,
        } = *self;
        [
            ("read", read),
            ("calibrate", calibrate),
            ("plan", plan),
            ("factorise", factorise),
            ("measure", measure),
            ("tune", tune),
            ("seal", seal),
        ]
    }

    fn from_clock(clock: &StageClock) -> Seconds {
        let spent = |stage| clock.spent(stage);
        let seconds = |d: Duration| (d.as_secs_f64() * 1e3).round() / 1e3;
        let all = [
            Stage::Plan,
            Stage::Read,
            Stage::Calibrate,
            Stage::Factorise,
            Stage::Measure,
            Stage::Tune,
            Stage::Seal,
        ]
        .map(spent);
        let [plan, read, calibrate, factorise, measure, tune, seal] = all.map(seconds);
        Seconds {
            plan,
            read,
            calibrate,
            factorise,
            measure,
            tune,
            seal,
            total: seconds(all.iter().sum()),
        }
    }
}

impl Report {
    /// Returns the report of a chosen artifact. The pipeline sets calibration, baselines, predicted
    /// losses, included source and peak memory.
    pub(crate) fn new(
        options: &CompileOptions,
        builder: &ArtifactBuilder,
        estimate: Estimate,
        chosen: SelectedArtifact,
        clock: &StageClock,
    ) -> Self {
        let source = builder.source;
        let calibration = options.calibration.as_ref();
        let quality = calibration.and_then(|options| Quality::from_chosen(&chosen, options));
        let record = chosen.built.record;
        let mut summary = Summary::new(source, &chosen.plan, &record, chosen.treatment.bias);
        summary.notes.extend(chosen.notes);
        if let Some(limit) = chosen.limit {
            summary.show_limit(limit, chosen.plan.request());
        }
        Report {
            source: file_name(&options.input),
            source_sha256: builder.digest,
            artifact: file_name(&options.output),
            bytes: BeforeAfter {
                before: source.size(),
                after: chosen.built.bytes,
            },
            bits_per_weight: bits_per_weight(chosen.built.bytes, summary.parameters.before),
            with_source: None,
            summary,
            calibration: None,
            treatment: chosen.treatment,
            treated: chosen.built.treatment_report,
            quality,
            limit: chosen.limit,
            trials: chosen.trials,
            beside: Vec::new(),
            foreseen: None,
            tuning: chosen.tuning,
            tuning_of_bases: chosen.tuning_of_bases,
            dial: chosen.active_fractions,
            plan: record,
            threads: options.threads,
            forecast: estimate,
            peak_memory: None,
            seconds: Seconds::from_clock(clock),
        }
    }
}

pub(crate) fn active_fraction_table(dial: &[ActiveFractionPoint]) -> Vec<String> {
    if dial.is_empty() {
        return Vec::new();
    }
    let head = "fraction   bytes touched   refinements       KL   perplexity over the source's";
    let points = dial.iter().map(|point| {
        format!(
            "{:>8.3}   {:>13}   {:>11}   {:.5}   {:.4}",
            point.fraction,
            format_bytes(point.bytes),
            point.refinements,
            point.kl,
            point.perplexity_ratio,
        )
    });
    [head.to_owned()].into_iter().chain(points).collect()
}

/// Returns the root mean square and the largest of some errors, if there are any.
fn rms_and_largest(errors: &[f64]) -> Option<(f64, f64)> {
    let squares: f64 = errors.iter().map(|e| e * e).sum();
    let largest = errors.iter().copied().reduce(f64::max)?;
    Some(((squares / errors.len() as f64).sqrt(), largest))
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / (whole.max(1)) as f64
}

impl Report {
    /// Returns the perplexity of the artifact over the source's, if measured.
    pub fn perplexity_ratio(&self) -> Option<f64> {
        let reference = self.quality.as_ref()?.evaluation.reference.as_ref()?;
        Some(reference.perplexity_ratio)
    }

    /// Returns a warning about an artifact that is of no use.
    pub fn warning(&self) -> Option<String> {
        let ratio = self
            .perplexity_ratio()
            .filter(|ratio| *ratio > USELESS_PERPLEXITY_RATIO)?;
        let remedy = match self.summary.request.method() {
            Method::Quantise => "give it more bytes",
            Method::PerProjection | Method::SharedBasis => {
                "the method quantise loses far less at equal bytes"
            }
        };
        Some(format!(
            "the artifact's perplexity is {ratio:.1} times the source's, so that its texts are of little use; {remedy}"
        ))
    }

    /// Returns time, threads and memory.
    fn cost(&self) -> String {
        let memory = self.peak_memory.map_or(String::new(), |bytes| {
            format!(
                ", {} of memory beside the mapped source",
                format_bytes(bytes)
            )
        });
        format!(
            "{} on {}{memory}",
            format_seconds(self.seconds.total),
            format_count(self.threads, "thread"),
        )
    }

    /// Returns the result in a few lines: size, quality, time, and deviations from the request.
    pub fn brief(&self) -> String {
        let [before, after] = [self.bytes.before, self.bytes.after].map(format_bytes);
        let mut lines = vec![
            format!("{} -> {}", escape(&self.source), escape(&self.artifact)),
            format!(
                "  size           {before} -> {after} ({:.1} %), {:.2} bits per weight",
                percent(self.bytes.after, self.bytes.before),
                self.bits_per_weight,
            ),
        ];
        let quality = self.quality.as_ref().map(|quality| &quality.evaluation);
        if let Some((evaluation, found)) = quality.and_then(|e| Some((e, e.reference.as_ref()?))) {
            lines.push(format!(
                "  quality        perplexity {:.3} -> {:.3}: {:.4} of the source's{}",
                found.reference_perplexity,
                evaluation.perplexity,
                found.perplexity_ratio,
                format_interval(found.perplexity_ratio_interval, 4),
            ));
            lines.push(format!(
                "                 KL divergence {:.5} nats{}, same top token {:.1} %",
                found.kl,
                format_interval(found.kl_interval, 5),
                100.0 * found.top1,
            ));
        }
        lines.push(format!("  time           {}", self.cost()));
        let notes = self.summary.notes.iter();
        lines.extend(notes.map(|note| format!("  note: {note}")));
        lines.join("\n")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} -> {}", escape(&self.source), escape(&self.artifact))?;
        let bits = format!("{:.2} bits per weight", self.bits_per_weight);
        writeln!(f, "  bytes       {}", self.bytes.show_bytes(Some(&bits)))?;
        if let Some(made) = &self.with_source {
            writeln!(
                f,
                "  source      {} of its weights beside that, {} more are stored once for both; {} in the file",
                format_bytes(made.source),
                format_bytes(made.shared),
                format_bytes(made.file),
            )?;
        }
        self.summary.fmt(f)?;
        if let Some(calibration) = &self.calibration {
            write!(f, "\n{calibration}\n")?;
            choose::show_trials(f, &self.trials, self.limit)?;
            if let Some(tuning) = &self.tuning_of_bases {
                writeln!(f, "  bases tuned {tuning}")?;
            }
            if let Some(tuning) = &self.tuning {
                writeln!(f, "  tuned       {tuning}")?;
            }
        }
        if let Some(quality) = &self.quality {
            writeln!(f, "{quality}")?;
        }
        let mut head = "beside";
        for file in &self.beside {
            writeln!(f, "  {head:<10}  {file}")?;
            head = "";
        }
        for line in active_fraction_table(&self.dial) {
            writeln!(f, "  {line}")?;
        }
        if self.treatment != Treatment::default() {
            writeln!(f, "  treatment   {}", self.treatment)?;
        }
        for line in self.treated.lines() {
            writeln!(f, "  {line}")?;
        }
        let stages = self.seconds.stages().into_iter();
        let stages = stages.filter(|(_, seconds)| *seconds > 0.0);
        let stages: Vec<String> = stages
            .map(|(name, seconds)| format!("{name} {seconds:.2}"))
            .collect();
        write!(f, "\n  {}: {}", self.cost(), stages.join(", "))
    }
}

//! What a page is made from, recognised by what is in a file.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use htc_formats::htz::{Htz, HtzError, MAGIC, Manifest, PlanRecord};
use htc_formats::limits::MAX_LAYERS;
use htc_formats::model::ProjectionKind;
use htc_formats::open;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use thiserror::Error;

use super::drift::Drift;
use crate::analyse::record::{Analysis, Kind};
use crate::measure::Record;
use crate::report::Report;
use crate::system::show::file_name;

/// Bytes of all JSON files together: 32 MiB. The report of a model of a hundred layers has one.
pub const MAX_JSON: u64 = 1 << 25;

/// Why a file is nothing to make a page from. The message of each is one line.
#[derive(Debug, Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}; give the file that a command wrote", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is out of proportion.
    #[error("{}: reports have at most {MAX_JSON} bytes together, and with this file there are more; give the files that a command wrote, or fewer at a time", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is something else.
    #[error(
        "{}: expected the report of a compilation, an analysis, an evaluation or a .htz, found {found}; make one with htc compile --report FILE, htc analyse --json or htc eval --json", path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        found: &'static str,
    },
    /// It is one of them, and damaged.
    #[error("{}: {kind}, and damaged: {what}; make it anew with {command}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        kind: &'static str,
        /// What is wrong.
        what: String,
        /// The command that writes such files.
        command: &'static str,
    },
    /// It is a damaged artifact.
    #[error(transparent)]
    Artifact(#[from] HtzError),
}

/// An artifact's manifest, and what the file is called.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// Name of the file.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// What it says of itself.
    pub manifest: Manifest,
}

/// Everything that was given, in the order it was given in.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Reports of compilations.
    pub compiled: Vec<Report>,
    /// Artifacts.
    pub artifacts: Vec<Artifact>,
    /// Evaluations.
    pub evaluated: Vec<Record>,
    /// Analyses.
    pub analyses: Vec<Analysis>,
    /// How drafts followed texts.
    pub drifts: Vec<Drift>,
    /// Bytes of JSON that were read.
    bytes: u64,
}

/// Keys that tell what a JSON file is; their values are not looked at.
#[derive(Deserialize)]
struct Keys {
    kind: Option<IgnoredAny>,
    format: Option<IgnoredAny>,
    plan: Option<IgnoredAny>,
    artifact: Option<IgnoredAny>,
    peak_memory: Option<IgnoredAny>,
    perplexity: Option<IgnoredAny>,
    drift: Option<IgnoredAny>,
}

impl Inputs {
    /// Reads a file and puts it where it belongs.
    ///
    /// # Errors
    /// [`InputError`] where it is nothing to make a page from.
    pub fn read(&mut self, path: &Path) -> Result<(), InputError> {
        let failed = |source| InputError::Read {
            path: path.into(),
            source,
        };
        let mut bytes = Vec::new();
        let file = open::open_stream(path).map_err(|error| failed(error.into_io()))?;
        // All reports together: the page is made of all of them.
        let mut file = file.take(MAX_JSON + 1 - self.bytes);
        let mut magic = Vec::new();
        let length = MAGIC.len() as u64;
        file.by_ref()
            .take(length)
            .read_to_end(&mut magic)
            .map_err(failed)?;
        if magic == MAGIC {
            let htz = Htz::open(path)?;
            let artifact = Artifact {
                name: file_name(path),
                bytes: htz.bytes_without_source(),
                manifest: htz.manifest().clone(),
            };
            check(&artifact.manifest.plan).map_err(|what| damaged(path, ARTIFACT, what))?;
            self.artifacts.push(artifact);
            return Ok(());
        }
        if let Some(found) = other_format(&magic) {
            let path = path.into();
            return Err(InputError::Unknown { path, found });
        }
        bytes.append(&mut magic);
        file.read_to_end(&mut bytes).map_err(failed)?;
        self.bytes += bytes.len() as u64;
        if self.bytes > MAX_JSON {
            return Err(InputError::TooLarge { path: path.into() });
        }
        self.take(path, &bytes)
    }

    /// Puts the JSON of a file where it belongs.
    fn take(&mut self, path: &Path, json: &[u8]) -> Result<(), InputError> {
        let unknown = |found| InputError::Unknown {
            path: path.into(),
            found,
        };
        let keys: Keys = serde_json::from_slice(json).map_err(|error| {
            let looks = json.trim_ascii_start().starts_with(b"{");
            match (looks, error.is_eof() || error.is_syntax()) {
                (true, true) => damaged(path, JSON, error.to_string()),
                _ => unknown("no JSON object"),
            }
        })?;
        if keys.kind.is_some() {
            if !is_analysis(json) {
                return Err(unknown("JSON of another kind"));
            }
            let analysis: Analysis = parse(path, ANALYSIS, json)?;
            check_analysis(&analysis).map_err(|what| damaged(path, ANALYSIS, what))?;
            self.analyses.push(analysis);
            return Ok(());
        }
        if keys.format.is_some() {
            return Err(unknown("a plan"));
        }
        if keys.plan.is_some() && keys.artifact.is_some() {
            let report: Report = parse(path, REPORT, json)?;
            check_report(&report).map_err(|what| damaged(path, REPORT, what))?;
            self.compiled.push(report);
            return Ok(());
        }
        if keys.perplexity.is_some() {
            self.evaluated.push(parse(path, EVALUATION, json)?);
            return Ok(());
        }
        if keys.drift.is_some() {
            let drift: Drift = parse(path, DRIFT, json)?;
            drift.check().map_err(|what| damaged(path, DRIFT, what))?;
            self.drifts.push(drift);
            return Ok(());
        }
        if keys.peak_memory.is_some() {
            return Err(unknown("what --dry-run foresees"));
        }
        Err(unknown("JSON with other keys"))
    }
}

/// What a kind of file is called, and the command that writes it.
type Of = (&'static str, &'static str);

const REPORT: Of = ("the report of a compilation", "htc compile --report FILE");
const EVALUATION: Of = ("an evaluation", "htc eval --json");
const DRIFT: Of = ("how a draft followed a text", "the loader's example drift");
const ARTIFACT: Of = ("an artifact", "htc compile");
const ANALYSIS: Of = ("an analysis", "htc analyse --json");
const JSON: Of = ("JSON", "the command that wrote it");

fn damaged(path: &Path, (kind, command): Of, what: String) -> InputError {
    InputError::Damaged {
        path: path.into(),
        kind,
        what,
        command,
    }
}

fn parse<T: DeserializeOwned>(path: &Path, of: Of, json: &[u8]) -> Result<T, InputError> {
    serde_json::from_slice(json).map_err(|error| damaged(path, of, error.to_string()))
}

/// Whether the kind that stands in a file is that of an analysis.
fn is_analysis(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Of {
        #[serde(rename = "kind")]
        _kind: Kind,
    }
    serde_json::from_slice::<Of>(json).is_ok()
}

fn other_format(magic: &[u8]) -> Option<&'static str> {
    if magic.starts_with(b"GGUF") {
        return Some("a model (GGUF), which is to be compiled first");
    }
    (!magic.is_empty() && !magic.is_ascii()).then_some("neither JSON nor a .htz")
}

/// What the page counts on: few layers, and not more slots than they have.
fn check(plan: &PlanRecord) -> Result<(), String> {
    let layers = plan.slots.iter().map(|s| s.layer);
    in_order(layers.chain(plan.bases.iter().map(|b| b.layer)))?;
    at_most("plan.slots", plan.slots.len(), ProjectionKind::ALL.len())?;
    at_most("plan.matrices", plan.matrices.len(), 1)?;
    at_most("plan.bases", plan.bases.len(), ProjectionKind::ALL.len())
}

fn check_report(report: &Report) -> Result<(), String> {
    check(&report.plan)?;
    let measured = report.treated.measured.iter().map(|m| m.layer);
    let axiom = report.treated.axiom.iter().map(|a| a.layer);
    let sinks = report.treated.sinks.iter().map(|s| s.layer);
    let exempt = report.treated.exempt.iter().map(|e| e.layer);
    in_order(measured.chain(axiom).chain(sinks).chain(exempt))?;
    for (name, count) in [
        ("slots", report.summary.slots.len()),
        ("measured", report.treated.measured.len()),
        ("measured_matrices", report.treated.measured_matrices.len()),
        ("axiom", report.treated.axiom.len()),
        ("sinks", report.treated.sinks.len()),
        ("exempt", report.treated.exempt.len()),
        ("trials", report.trials.len()),
        ("notes", report.summary.notes.len()),
    ] {
        at_most(name, count, ProjectionKind::ALL.len())?;
    }
    let steps = report.treated.axiom.iter().map(|a| a.trace.len()).max();
    at_most("axiom.trace", steps.unwrap_or(0), 1)
}

/// A layer index beyond what any model has is damage, and would be drawn as a desert.
fn in_order(layers: impl Iterator<Item = usize>) -> Result<(), String> {
    match layers.max() {
        Some(layer) if layer >= MAX_LAYERS => Err(format!(
            "layer {layer}: expected an index below {MAX_LAYERS}"
        )),
        _ => Ok(()),
    }
}

fn at_most(name: &str, count: usize, each: usize) -> Result<(), String> {
    let most = MAX_LAYERS * each;
    if count > most {
        Err(format!(
            "{name}: expected at most {most} entries, found {count}"
        ))
    } else {
        Ok(())
    }
}

/// Numbers of a list that belongs to one spectrum or one layer.
const MAX_POINTS: usize = 256;

fn check_analysis(analysis: &Analysis) -> Result<(), String> {
    let spectra = &analysis.spectra;
    in_order(spectra.slots.iter().map(|s| s.layer))?;
    at_most(
        "spectra.slots",
        spectra.slots.len(),
        ProjectionKind::ALL.len(),
    )?;
    let mut lists = vec![
        ("spectra.energies", spectra.energies.len()),
        ("spectra.fractions", spectra.fractions.len()),
    ];
    lists.extend(
        spectra
            .slots
            .iter()
            .map(|s| ("spectra.slots.curve", s.curve.len())),
    );
    if let Some(sinks) = &analysis.sinks {
        in_order(sinks.layers.iter().map(|l| l.layer))?;
        at_most("sinks.layers", sinks.layers.len(), 1)?;
        lists.extend(
            sinks
                .layers
                .iter()
                .map(|l| ("sinks.layers.coverage", l.coverage.len())),
        );
    }
    if let Some(phases) = &analysis.phases {
        for profile in [&phases.without_first, &phases.with_first] {
            at_most("phases.variance", profile.variance.len(), 1)?;
            at_most("phases.smoothed", profile.smoothed.len(), 1)?;
            at_most(
                "phases.phases",
                profile.phases.as_ref().map_or(0, Vec::len),
                1,
            )?;
        }
    }
    if let Some(depth) = &analysis.depth {
        at_most("depth.curve", depth.curve.len(), 1)?;
    }
    if let Some(dimension) = &analysis.dimension {
        in_order(dimension.layers.iter().map(|l| l.layer))?;
        at_most("dimension.layers", dimension.layers.len(), 1)?;
    }
    if let Some(manifold) = &analysis.manifold {
        in_order(manifold.layers.iter().map(|l| l.layer))?;
        at_most("manifold.layers", manifold.layers.len(), 1)?;
        lists.extend(
            manifold
                .layers
                .iter()
                .map(|l| ("manifold.layers.symmetry", l.symmetry.len())),
        );
    }
    match lists.iter().find(|(_, count)| *count > MAX_POINTS) {
        Some((name, count)) => Err(format!(
            "{name}: expected at most {MAX_POINTS} entries, found {count}"
        )),
        None => Ok(()),
    }
}

//! The files that a page is made from, recognised by their content.

use std::io::Read;
use std::path::Path;

use htc_formats::htz::{Htz, MAGIC, Manifest};
use htc_formats::limits::{MAX_EXPERTS_OF_MODEL, MAX_LAYERS};
use htc_formats::model::ProjectionKind;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::analyse::record::{Analysis, Kind, VERSION};
use crate::measure::Record;
use crate::report::Report;
use crate::system::error::FileError;
use crate::system::show::file_name;
use crate::system::text;

/// Bytes of all JSON files together.
pub const MAX_JSON: u64 = 1 << 25;

const MAX_NUMBERS: usize = 4096;

/// One for each projection and the router of each layer, and three for each expert.
const MAX_ENTRIES: usize = MAX_LAYERS * (ProjectionKind::ALL.len() + 1) + MAX_EXPERTS_OF_MODEL * 3;

/// Points of a record of a draft at most.
pub const MAX_DRIFT_POINTS: usize = 4096;

const REMEDY: &str = "give the file that a command wrote";

/// An artifact's manifest with the name of the file.
#[derive(Clone, Debug)]
pub struct SealedArtifact {
    /// Name of the file.
    pub name: String,
    /// Bytes of the artifact.
    pub bytes: u64,
    /// The manifest.
    pub manifest: Manifest,
}

/// One run of a draft over texts, as `cargo run --release -p htc-loader --example drift` writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// The verifying model.
    pub model: String,
    /// The artifact that drafted for it.
    pub draft: String,
    /// How the draft learnt, `off` where it did not.
    pub learns: String,
    /// The points in the order of time.
    pub points: Vec<DriftPoint>,
}

/// Means over some windows of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftPoint {
    /// The text.
    pub text: String,
    /// Windows of this text so far.
    pub windows: u64,
    /// Accepted part of the drafted tokens.
    pub acceptance: f64,
    /// Standard error of that over windows.
    pub standard_error: f64,
    /// Logarithm of the ratio of perplexities, on unread windows.
    pub log_perplexity_ratio: f64,
    /// Standard error of that over windows.
    pub log_perplexity_ratio_error: f64,
    /// `‖P_t − P_0‖_F`, or of a correction `‖B A‖_F`.
    pub distance: f64,
    /// `tr(P_t P_0) / r`.
    pub overlap: Option<f64>,
    /// Energy of differences that the bases miss.
    pub residual: Option<f64>,
    /// The same of the initial bases.
    pub residual_frozen: Option<f64>,
}

/// Contents of all files, in the given order.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Reports of compilations.
    pub compiled: Vec<Report>,
    /// Artifacts.
    pub artifacts: Vec<SealedArtifact>,
    /// Evaluations.
    pub evaluated: Vec<Record>,
    /// Analyses.
    pub analyses: Vec<Analysis>,
    /// Records of drafts.
    pub drifts: Vec<Drift>,
    bytes: u64,
}

/// Keys that tell what a JSON file is; their values are not read.
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
    /// Returns true if everything is an analysis.
    pub fn have_only_analyses(&self) -> bool {
        let others = [
            self.compiled.is_empty(),
            self.artifacts.is_empty(),
            self.evaluated.is_empty(),
            self.drifts.is_empty(),
        ];
        !self.analyses.is_empty() && others.into_iter().all(|is_empty| is_empty)
    }

    /// Returns true if there are analyses and others: analyses are long, so that they have a page of
    /// their own.
    pub fn need_two_pages(&self) -> bool {
        !self.analyses.is_empty() && !self.have_only_analyses()
    }

    /// Reads a file and adds its content.
    pub fn read(&mut self, path: &Path) -> Result<(), FileError> {
        let failed = FileError::read(path, REMEDY);
        let file = text::open_file(path, REMEDY)?;
        let mut file = file.take(MAX_JSON + 1 - self.bytes);
        let mut bytes = Vec::new();
        let mut magic = file.by_ref().take(MAGIC.len() as u64);
        magic.read_to_end(&mut bytes).map_err(&failed)?;
        if bytes == MAGIC {
            let htz = Htz::open(path)?;
            let artifact = SealedArtifact {
                name: file_name(path),
                bytes: htz.bytes_without_source(),
                manifest: htz.manifest().clone(),
            };
            check(&artifact.manifest.plan).map_err(|what| ARTIFACT.damaged(path, what))?;
            self.artifacts.push(artifact);
            return Ok(());
        }
        if let Some(found) = other_format(&bytes) {
            return Err(unknown(path, found));
        }
        file.read_to_end(&mut bytes).map_err(failed)?;
        self.bytes += bytes.len() as u64;
        if self.bytes > MAX_JSON {
            let limit = format!(
                "reports have at most {MAX_JSON} bytes together, and with this file there are more; give the files that a command wrote, or fewer at a time"
            );
            return Err(FileError::too_large(path, limit));
        }
        self.take(path, &bytes)
    }

    fn take(&mut self, path: &Path, json: &[u8]) -> Result<(), FileError> {
        let unknown = |found| unknown(path, found);
        let keys: Keys = serde_json::from_slice(json).map_err(|error| {
            let is_object = json.trim_ascii_start().starts_with(b"{");
            if is_object && (error.is_eof() || error.is_syntax()) {
                JSON.damaged(path, error.to_string())
            } else {
                unknown("no JSON object")
            }
        })?;
        if keys.kind.is_some() {
            if !is_analysis(json) {
                return Err(unknown("JSON of another kind"));
            }
            check_analysis_version(path, json)?;
            self.analyses.push(ANALYSIS.parse(path, json)?);
        } else if keys.format.is_some() {
            return Err(unknown("a plan"));
        } else if keys.plan.is_some() && keys.artifact.is_some() {
            self.compiled.push(REPORT.parse(path, json)?);
        } else if keys.perplexity.is_some() {
            self.evaluated.push(EVALUATION.parse(path, json)?);
        } else if keys.drift.is_some() {
            let drift: Drift = DRIFT.parse(path, json)?;
            at_most("points", drift.points.len(), MAX_DRIFT_POINTS)
                .map_err(|what| DRIFT.damaged(path, what))?;
            self.drifts.push(drift);
        } else if keys.peak_memory.is_some() {
            return Err(unknown("the estimate of --dry-run"));
        } else {
            return Err(unknown("JSON with other keys"));
        }
        Ok(())
    }
}

fn unknown(path: &Path, found: &str) -> FileError {
    FileError::Unsuitable {
        path: path.into(),
        expected: "the report of a compilation, an analysis, an evaluation or a .htz",
        found: found.to_owned(),
        remedy: "make one with htc compile --report FILE, htc analyse --json or htc eval --json",
    }
}

struct FileKind {
    name: &'static str,
    command: &'static str,
}

const REPORT: FileKind = FileKind::new("the report of a compilation", "htc compile --report FILE");
const EVALUATION: FileKind = FileKind::new("an evaluation", "htc eval --json");
const DRIFT: FileKind = FileKind::new("the record of a draft", "the loader's example drift");
const ARTIFACT: FileKind = FileKind::new("an artifact", "htc compile");
const ANALYSIS: FileKind = FileKind::new("an analysis", "htc analyse --json");
const JSON: FileKind = FileKind::new("JSON", "the command that wrote it");

impl FileKind {
    const fn new(name: &'static str, command: &'static str) -> FileKind {
        FileKind { name, command }
    }

    fn damaged(&self, path: &Path, what: String) -> FileError {
        FileError::Damaged {
            path: path.into(),
            kind: self.name,
            what,
            command: self.command,
        }
    }

    fn parse<T: DeserializeOwned + Serialize>(
        &self,
        path: &Path,
        json: &[u8],
    ) -> Result<T, FileError> {
        let parsed: T =
            serde_json::from_slice(json).map_err(|error| self.damaged(path, error.to_string()))?;
        check(&parsed).map_err(|what| self.damaged(path, what))?;
        Ok(parsed)
    }
}

fn is_analysis(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct OnlyKind {
        #[serde(rename = "kind")]
        _kind: Kind,
    }
    serde_json::from_slice::<OnlyKind>(json).is_ok()
}

/// Refuses other versions first, since their keys differ. A missing version is reported with all other
/// keys.
fn check_analysis_version(path: &Path, json: &[u8]) -> Result<(), FileError> {
    #[derive(Deserialize)]
    struct OnlyVersion {
        version: u64,
    }
    match serde_json::from_slice::<OnlyVersion>(json) {
        Ok(OnlyVersion { version }) if version != u64::from(VERSION) => Err(FileError::Version {
            path: path.into(),
            kind: ANALYSIS.name,
            expected: VERSION,
            found: version,
            command: ANALYSIS.command,
        }),
        _ => Ok(()),
    }
}

fn other_format(magic: &[u8]) -> Option<&'static str> {
    if magic.starts_with(b"GGUF") {
        return Some("a model (GGUF), which is to be compiled first");
    }
    (!magic.is_empty() && !magic.is_ascii()).then_some("neither JSON nor a .htz")
}

/// Refuses lists that are longer than any model needs.
fn check(document: &impl Serialize) -> Result<(), String> {
    let value = serde_json::to_value(document).map_err(|error| error.to_string())?;
    check_value("the file", &value)
}

fn check_value(name: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Array(items) => {
            let of_numbers = items.first().is_some_and(|first| !first.is_object());
            let most = if of_numbers { MAX_NUMBERS } else { MAX_ENTRIES };
            at_most(name, items.len(), most)?;
            items.iter().try_for_each(|item| check_value(name, item))
        }
        Value::Object(entries) => entries.iter().try_for_each(|(name, value)| {
            let layer = value.as_u64().filter(|_| name == "layer");
            match layer.filter(|layer| *layer >= MAX_LAYERS as u64) {
                Some(layer) => Err(format!(
                    "layer {layer}: expected an index below {MAX_LAYERS}"
                )),
                None => check_value(name, value),
            }
        }),
        _ => Ok(()),
    }
}

fn at_most(name: &str, count: usize, most: usize) -> Result<(), String> {
    if count > most {
        Err(format!(
            "{name}: expected at most {most} entries, found {count}"
        ))
    } else {
        Ok(())
    }
}

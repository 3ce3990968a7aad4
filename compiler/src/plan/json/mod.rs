//! Plan files in JSON, readable and editable.
//!
//! ```json
//! {
//!   "format": "htc-plan",
//!   "version": 2,
//!   "source_sha256": "64 hexadecimal digits",
//!   "method": "low-rank",
//!   "factor_type": "q8_0",
//!   "request": {"budget": {"ratio": 0.8}, "allocator": "whitened", "rank_floor": "0.25", "rank_cap": 512},
//!   "notes": [],
//!   "units": [
//!     {"layer": 0, "projections": ["q"], "form": "low_rank", "rank": 128, "types": {"a": "q8_0", "b": "q8_0"}, "notes": []},
//!     {"layer": 0, "projections": ["k"], "form": "dense", "notes": ["kept dense: ..."]}
//!   ]
//! }
//! ```
//!
//! * `format`, `version`: as shown; other versions are rejected.
//! * `source_sha256`: digest of the model; optional. A plan for another model is rejected. Without
//!   a digest, the plan is accepted for any model that it fits.
//! * `method`: `low-rank` (separate factors), `shared-basis` (projections with the same input share a basis) or
//!   `quantise` (the form with the least loss for each matrix: dense in some type, or factors).
//! * `factor_type`: requested type of factors.
//! * `request`: options of the plan, [`PlanOptions`](crate::options::PlanOptions); optional,
//!   without effect on the units. `budget` is `"full"`, or one of `rank`, `ratio`, `parameters`,
//!   `bytes`, `mean_rank`, `file_size`, `bits` with its number. All other keys are optional:
//!   - `allocator`, `rank_floor`, `rank_cap`, `dense_type`, `embedding_type`: as on the command
//!     line.
//!   - `projections`: selected projections; absent if equal to those of the units.
//!   - `low_rank`: `on` (default) or `off`, factors were evaluated with `quantise`.
//!   - `rotation`: `on` (default) or `off`, column groups chosen by `quantise` may be rotated; the
//!     codes of each matrix record it.
//!   - `order`: `on` or `off` (default), the model is stored with permuted channels.
//!   - `kv_bases`: `on` or `off` (default), the artifact has bases for a KV cache; compilation
//!     requires a calibration.
//!   - `gauge`, `sink`, `bias`, `shrinkage` (a string): as on the command line, defaults of
//!     `htc compile`.
//! * `notes`: text lines on the plan or a unit; optional.
//! * `embedding`, `head`: optional objects with the keys of a unit except `layer` and `projections`. An
//!   embedding is `dense`; a head is `dense`, `low_rank` or, except with `quantise`, `residual`. A
//!   model with tied embeddings has no head.
//! * `units`: in any order. `layer` counts from 0. `projections`: one for `low-rank`; for `shared-basis` and `quantise`
//!   those of `q`, `k`, `v`, or of `gate`, `up`, that share the basis, or any single one. A mixture
//!   of experts has `router`, `expert_gate.N`, `expert_up.N` and `expert_down.N` in place of
//!   `gate`, `up` and `down`; `N` counts experts from 0. `form`:
//!   * `dense`: as in the source, or encoded in the type `weight`;
//!   * `low_rank` for `low-rank` and `quantise`, with a rank and the types `a` and `b`;
//!   * `shared_basis` for `shared-basis` and `quantise`, with a rank and the types `basis` and `projected`;
//!   * `residual` for one projection of `low-rank` and `shared-basis`: a dense base of the type `base`, and its
//!     error in factors of a rank with the types `a` and `b`.
//!
//! Rows of `a`, `basis`, `base` and `weight` are as long as the matrix's input, those of `b` and
//! `projected` as long as the rank; all must be whole blocks. Unnamed matrices stay as in the
//! source.
//!
//! Files are validated against the model. All mismatches are reported together, with their lines.

mod check;
mod node;
mod request;
mod units;

use std::fmt;
use std::io::{self, Read as _};
use std::path::Path;

use htc_formats::DType;
use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, MatrixId, ProjectionKind};
use htc_formats::open;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};

use super::{Plan, PlanError, SourceTypes, UnitMatrix, UnitPlan};

/// Value of `format`.
pub const FORMAT: &str = "htc-plan";

/// Value of `version`.
pub const VERSION: u64 = 2;

/// Maximum bytes of a plan file: 32 MiB. 32,768 experts are 98,304 units, which leaves 340 bytes for
/// each; a unit has about 110, and 200 with notes. Parsing takes about thirty times the file size in
/// memory.
pub const MAX_BYTES: u64 = 1 << 25;

/// Maximum number of listed mismatches; others are only counted.
pub const MAX_LISTED_MISMATCHES: usize = 50;

/// Mismatch between a plan and its model.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanFileMismatch {
    /// Line in the file, from 1.
    pub line: usize,
    /// Unit or key.
    pub key: String,
    /// Expected and actual value.
    pub message: String,
}

/// Formats one line.
impl fmt::Display for PlanFileMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, {}: {}", self.line, self.key, self.message)
    }
}

/// All mismatches of a plan in the order of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanFileMismatches {
    /// First [`MAX_LISTED_MISMATCHES`] mismatches.
    pub listed: Vec<PlanFileMismatch>,
    /// Total number.
    pub count: usize,
}

impl PlanFileMismatches {
    pub(super) fn first(&self) -> String {
        self.listed
            .first()
            .map_or_else(String::new, PlanFileMismatch::to_string)
    }
}

/// Formats one line each, and one for those not listed.
impl fmt::Display for PlanFileMismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, misfit) in self.listed.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{misfit}")?;
        }
        match self.count - self.listed.len() {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

#[derive(Serialize)]
struct UnitRecord<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    projections: Vec<ProjectionKind>,
    form: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    types: Vec<(&'static str, String)>,
    notes: &'a [String],
}

fn as_map<S: Serializer>(types: &[(&str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(types.iter().map(|(key, name)| (key, name)))
}

impl<'a> UnitRecord<'a> {
    fn new(unit: &'a UnitPlan) -> UnitRecord<'a> {
        UnitRecord {
            layer: unit.layer(),
            projections: unit
                .members
                .iter()
                .filter_map(UnitMatrix::projection)
                .collect(),
            // An unchanged matrix is dense without a type.
            form: unit.form.to_stored(DType::F32).form().name(),
            rank: unit.rank(),
            types: unit.form.type_names(),
            notes: &unit.notes,
        }
    }
}

fn selected_projections(units: &[UnitPlan]) -> Vec<ProjectionKind> {
    let named = |projection: &ProjectionKind| {
        let mut members = units.iter().flat_map(|unit| &unit.members);
        members.any(|member| member.projection().map(ProjectionKind::dense) == Some(*projection))
    };
    ProjectionKind::ALL.into_iter().filter(named).collect()
}

/// Serialises a plan with one unit per line; `source` is the digest of its model.
///
/// # Errors
/// Fails if a number of the request is not finite, which JSON cannot represent, or if the text is
/// longer than [`MAX_BYTES`], which [`read`] refuses.
pub fn write(plan: &Plan, source: Option<Digest>) -> Result<String, serde_json::Error> {
    let mut request = plan.request.options();
    if request.projections == selected_projections(&plan.units) {
        request.projections.clear();
    }
    let mut text = String::from("{\n");
    let mut line = |key: &str, value: String| text.push_str(&format!("  \"{key}\": {value},\n"));
    line("format", serde_json::to_string(FORMAT)?);
    line("version", VERSION.to_string());
    if let Some(digest) = source {
        line("source_sha256", serde_json::to_string(&digest)?);
    }
    line("method", serde_json::to_string(plan.request.method.name())?);
    line(
        "factor_type",
        serde_json::to_string(&plan.request.factor_type)?,
    );
    line("request", serde_json::to_string(&request)?);
    line("notes", serde_json::to_string(&plan.notes)?);
    for matrix in [MatrixId::Embedding, MatrixId::Head] {
        if let Some(unit) = plan.unit_of(matrix) {
            line(
                matrix.name(),
                serde_json::to_string(&UnitRecord::new(unit))?,
            );
        }
    }
    text.push_str("  \"units\": [");
    let units = plan.units.iter().filter(|unit| unit.layer().is_some());
    for (i, unit) in units.enumerate() {
        text.push_str(if i == 0 { "\n    " } else { ",\n    " });
        text.push_str(&serde_json::to_string(&UnitRecord::new(unit))?);
    }
    text.push_str("\n  ]\n}\n");
    check_length(text)
}

fn check_length(text: String) -> Result<String, serde_json::Error> {
    if text.len() as u64 <= MAX_BYTES {
        return Ok(text);
    }
    let found = text.len();
    let message = format!("the plan has {found} bytes, expected at most {MAX_BYTES}");
    Err(serde_json::Error::custom(message))
}

/// Reads a plan from a file; see [`parse`].
///
/// # Errors
/// [`PlanError`].
pub fn read(
    path: &Path,
    hyper: &HyperParameters,
    source: impl Fn() -> Digest,
    source_type: impl SourceTypes,
) -> Result<Plan, PlanError> {
    let failed = |error: io::Error| PlanError::ReadFile {
        path: path.to_owned(),
        message: error.to_string(),
    };
    let mut bytes = Vec::new();
    let file = open::open_stream(path).map_err(|error| failed(error.into_io()))?;
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    parse(path, &bytes, hyper, source, source_type)
}

/// Parses a plan for a model with these hyper-parameters. `path` names the file in messages;
/// `source` computes the digest of the model and is called only if the plan has one.
///
/// # Errors
/// [`PlanError`]; all mismatches are in [`PlanError::FileMisfits`].
pub fn parse(
    path: &Path,
    bytes: &[u8],
    hyper: &HyperParameters,
    source: impl Fn() -> Digest,
    source_type: impl SourceTypes,
) -> Result<Plan, PlanError> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(PlanError::FileTooLarge { path: path.into() });
    }
    let syntax = |line, column, what: String| PlanError::FileSyntax {
        path: path.to_owned(),
        line,
        column,
        message: what.chars().take(200).collect(),
    };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        let column = before.iter().rev().take_while(|&&b| b != b'\n').count();
        syntax(line, column + 1, "the text is not UTF-8".to_owned())
    })?;
    let node: node::Node = serde_json::from_str(text).map_err(|error| {
        // Strip the position, which the message already contains.
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        syntax(error.line(), error.column(), what.to_owned())
    })?;
    let node::Node::Object(entries) = node else {
        let what = format!("expected an object, found {}", node.describe());
        return Err(syntax(1, 1, what));
    };
    check::plan(entries, &node::lines(text), hyper, source, &source_type).map_err(|misfits| {
        PlanError::FileMisfits {
            path: path.into(),
            misfits,
        }
    })
}

#[cfg(test)]
mod tests;

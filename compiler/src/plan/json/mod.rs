//! A plan as JSON, for people to read and edit.
//!
//! ```json
//! {
//!   "format": "htc-plan",
//!   "version": 1,
//!   "source_sha256": "64 hexadecimal digits",
//!   "method": "gp",
//!   "factor_type": "q8_0",
//!   "request": {"budget": {"ratio": 0.8}, "allocator": "whitened", "rank_floor": "0.25", "rank_cap": 512},
//!   "notes": [],
//!   "units": [
//!     {"layer": 0, "slots": ["q"], "form": "low_rank", "rank": 128, "types": {"a": "q8_0", "b": "q8_0"}, "notes": []},
//!     {"layer": 0, "slots": ["k"], "form": "dense", "notes": ["kept dense: ..."]}
//!   ]
//! }
//! ```
//!
//! * `format`, `version`: as here; another version is refused.
//! * `source_sha256`: the model that the plan was made for; optional. A plan that names another model
//!   is refused, one that names none is taken for any model that it fits.
//! * `method`: `gp` (every slot alone), `grc` (slots that read the same input share a basis) or `quantise`
//!   (every matrix in what loses least: dense in a type of its own, or in factors).
//! * `factor_type`: what factors were asked to be stored in.
//! * `request`: what was asked for; optional, and without effect on the units. `budget` is
//!   `"full"`, or one of `rank`, `ratio`, `parameters`, `bytes`, `mean_rank`, `file_size`, `bits` with its
//!   number;
//!   `allocator`, `rank_floor` and `rank_cap` are as on the command line and optional.
//!   `dense_type` and `embedding_type` are as on the command line, and `slots` names those that were
//!   selected, where units stand for others, too; all three are optional.
//!   `low_rank`, `on` or `off`, optional and on without it, is whether factors were looked at with `quantise`, and
//!   `rotation` likewise whether what it gives bands is rotated, which the codes of each matrix say.
//!   `order`, `on` or `off`, optional and off without it, is whether the model is stored in another order.
//!   `kv_bases`, `on` or `off`, optional and off without it, is whether the artifact has bases for a KV cache, for which it is
//!   compiled with a calibration.
//!   `gauge`, `sink`, `bias` and `shrinkage` (a text), as on the command line and optional, are how
//!   `htc compile` treats the weights unless its own options say otherwise.
//! * `notes`: lines for people, of the whole or of a unit; optional.
//! * `embedding`, `head`: optional objects with the keys of a unit but for `layer` and `slots`; an
//!   embedding is `dense`, a head `dense`, `low_rank` or, but for `quantise`, `residual`. A model that
//!   ties its head to the embedding has no head to decide about.
//! * `units`: in any order. `layer` counts from 0. `slots`: one for `gp`; for `grc` and `quantise` those of `q`,
//!   `k`, `v`, or of `gate`, `up`, that share the basis, or any one slot that shares none. `form`:
//!   * `dense`: as in the source; or with the type `weight` encoded anew in that;
//!   * `low_rank` for `gp` and `quantise`, with a rank and the types `a` and `b`;
//!   * `shared_basis` for `grc` and `quantise`, with a rank and the types `basis` and `projected`;
//!   * `residual` for one slot of `gp` and `grc`: a dense base of the type `base`, and what it lacks in factors of a rank
//!     with the types `a` and `b`.
//!
//!   Rows of `a`, `basis`, `base` and `weight` are as long as the matrix' input, those of `b` and
//!   `projected` as long as the rank; all must be whole blocks. A matrix that no unit names stays as in
//!   the source.
//!
//! A file is checked against the model it is for. Everything that does not fit is found at once, and
//! said with its line.

mod check;
mod node;
mod request;
mod units;

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use htc_formats::DType;
use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, MatrixId, Slot};
use htc_formats::open;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Budget, Member, Plan, Request, SourceTypes, UnitPlan};
use crate::request::{
    Allocator, BiasArg, CodeKinds, DenseType, Effort, FirstPositions, Floor, GaugeKind, KvBasesArg,
    LowRankArg, OrderArg, RotationArg, ShrinkageArg, SinkProtection,
};

/// What `format` says.
pub const FORMAT: &str = "htc-plan";

/// What `version` says.
pub const VERSION: u64 = 1;

/// Bytes of a plan. One of a model of 400 billion parameters has 200 kB; what is parsed of a file
/// takes up to some thirty times its size.
pub const MAX_BYTES: u64 = 1 << 22;

/// Misfits that are listed; the others are counted.
pub const MAX_MISFITS: usize = 50;

/// Why a file is no plan for a model. The message of each is one line.
#[derive(Debug, Error)]
pub enum PlanFileError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}; check `plan`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is out of proportion.
    #[error("{}: a plan has at most {MAX_BYTES} bytes, the file has more; check `plan`", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is no JSON.
    #[error("{}: line {line}, column {column}: {what}; the file must be JSON as `htc plan` writes it", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser says.
        what: String,
    },
    /// The plan does not fit the model.
    #[error("{}: the plan does not fit the model in {} place{}; the first is {}; correct them, or make the plan anew with htc plan", path.display(), misfits.count, if misfits.count == 1 { "" } else { "s" }, misfits.first())]
    Misfits {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        misfits: Misfits,
    },
}

/// Something in a plan that does not fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Misfit {
    /// Its line, from 1.
    pub line: usize,
    /// The unit or the key.
    pub place: String,
    /// What was expected and what was found.
    pub what: String,
}

/// One line.
impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, {}: {}", self.line, self.place, self.what)
    }
}

/// Everything in a plan that does not fit, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Misfits {
    /// The first [`MAX_MISFITS`].
    pub listed: Vec<Misfit>,
    /// All of them.
    pub count: usize,
}

impl Misfits {
    fn first(&self) -> String {
        self.listed
            .first()
            .map_or_else(String::new, Misfit::to_string)
    }
}

/// One line each, and one for those that are not listed.
impl fmt::Display for Misfits {
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

/// What a plan was made from, as it is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RequestRecord {
    /// How much may be kept.
    pub budget: BudgetRecord,
    /// Who shared it out.
    pub allocator: Allocator,
    /// Absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_floor: Option<Floor>,
    /// Absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_cap: Option<usize>,
    /// Absent where the first positions are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_positions: Option<FirstPositions>,
    /// The type that slots which stay dense were to have; absent where they stay as in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_type: Option<DenseType>,
    /// Of selected slots that are left dense; absent where they stay as in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_type: Option<DenseType>,
    /// The same of embedding and head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_type: Option<DenseType>,
    /// The kinds of code that matrices were to have; absent where they may have all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<CodeKinds>,
    /// Absent where factors were looked at beside codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_rank: Option<LowRankArg>,
    /// Absent where matrices in bands may be rotated, as each of them says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationArg>,
    /// The slots that were selected; absent where those are all that a plan names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<Vec<Slot>>,
    /// Absent where it is that of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderArg>,
    /// Absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_bases: Option<KvBasesArg>,
    /// Absent where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gauge: Option<GaugeKind>,
    /// Absent where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<SinkProtection>,
    /// Absent where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<BiasArg>,
    /// Absent where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrinkage: Option<ShrinkageArg>,
    /// Absent where it is the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
}

impl From<&Request> for RequestRecord {
    fn from(request: &Request) -> RequestRecord {
        RequestRecord {
            budget: request.budget.into(),
            allocator: request.allocation.allocator,
            rank_floor: request.allocation.floor,
            rank_cap: request.allocation.cap,
            first_positions: Some(request.allocation.first_positions)
                .filter(|first| *first != FirstPositions::default()),
            dense_type: request.dense.slots,
            left_type: request.dense.left,
            embedding_type: request.dense.outside,
            codes: Some(request.codes).filter(|codes| *codes != CodeKinds::default()),
            low_rank: Some(request.low_rank).filter(|arg| *arg != LowRankArg::default()),
            rotation: Some(request.rotation).filter(|arg| *arg != RotationArg::default()),
            slots: None,
            order: request.order,
            kv_bases: Some(request.kv_bases).filter(|arg| *arg != KvBasesArg::default()),
            gauge: request.treatment.gauge,
            sink: request.treatment.sink,
            bias: request.treatment.bias,
            shrinkage: request.treatment.shrinkage,
            effort: Some(request.effort).filter(|effort| *effort != Effort::default()),
        }
    }
}

/// A budget, as it is written.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant is that of `Budget`")]
pub enum BudgetRecord {
    Full,
    Rank(usize),
    Ratio(f64),
    Parameters(u64),
    Bytes(u64),
    MeanRank(f64),
    FileSize(u64),
    Bits(f64),
    Energy,
}

impl From<Budget> for BudgetRecord {
    fn from(budget: Budget) -> BudgetRecord {
        match budget {
            Budget::FullRank => BudgetRecord::Full,
            Budget::Rank(rank) => BudgetRecord::Rank(rank),
            Budget::Ratio(ratio) => BudgetRecord::Ratio(ratio),
            Budget::Parameters(total) => BudgetRecord::Parameters(total),
            Budget::Bytes(total) => BudgetRecord::Bytes(total),
            Budget::MeanRank(mean) => BudgetRecord::MeanRank(mean),
            Budget::FileSize(total) => BudgetRecord::FileSize(total),
            Budget::Bits(bits) => BudgetRecord::Bits(bits),
            Budget::Energy => BudgetRecord::Energy,
        }
    }
}

/// What a plan's file says of a unit.
#[derive(Serialize)]
struct UnitRecord<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<Slot>,
    form: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    #[serde(skip_serializing_if = "Types::is_empty")]
    types: Types,
    notes: &'a [String],
}

/// An object, its keys in the order of the tensors.
struct Types(Vec<(&'static str, String)>);

impl Types {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Types {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, name)| (key, name)))
    }
}

impl<'a> UnitRecord<'a> {
    fn new(unit: &'a UnitPlan) -> UnitRecord<'a> {
        UnitRecord {
            layer: unit.layer(),
            slots: unit.members.iter().filter_map(Member::slot).collect(),
            // A matrix that is kept is dense without a type.
            form: unit.form.stored(DType::F32).form().name(),
            rank: unit.rank(),
            types: Types(unit.form.type_names()),
            notes: &unit.notes,
        }
    }
}

/// The slots that units name, in the order of execution.
fn named_slots(units: &[UnitPlan]) -> Vec<Slot> {
    let named = |slot: &Slot| {
        let mut members = units.iter().flat_map(|unit| &unit.members);
        members.any(|member| member.slot() == Some(*slot))
    };
    Slot::ALL.into_iter().filter(named).collect()
}

/// Writes a plan, one unit to a line; `source` is the digest of the model that it is for.
///
/// # Errors
/// Where a number of the request is not finite, which JSON cannot say.
pub fn write(plan: &Plan, source: Option<Digest>) -> Result<String, serde_json::Error> {
    let mut request = RequestRecord::from(&plan.request);
    if plan.request.slots != named_slots(&plan.units) {
        request.slots = Some(plan.request.slots.clone());
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
    Ok(text)
}

/// Reads a plan from a file; see [`parse`].
///
/// # Errors
/// [`PlanFileError`].
pub fn read(
    path: &Path,
    hyper: &HyperParameters,
    source: impl Fn() -> Digest,
    source_type: impl SourceTypes,
) -> Result<Plan, PlanFileError> {
    let failed = |source| PlanFileError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = open::stream(path).map_err(|error| failed(error.into_io()))?;
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    parse(path, &bytes, hyper, source, source_type)
}

/// Reads a plan for the model of these hyper-parameters. `path` names the file in messages; `source`
/// gives the digest of the model, and is asked only where the plan names one.
///
/// # Errors
/// [`PlanFileError`]; everything that does not fit is in [`PlanFileError::Misfits`].
pub fn parse(
    path: &Path,
    bytes: &[u8],
    hyper: &HyperParameters,
    source: impl Fn() -> Digest,
    source_type: impl SourceTypes,
) -> Result<Plan, PlanFileError> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(PlanFileError::TooLarge { path: path.into() });
    }
    let syntax = |line, column, what: String| PlanFileError::Syntax {
        path: path.to_owned(),
        line,
        column,
        what: what.chars().take(200).collect(),
    };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        let column = before.iter().rev().take_while(|&&b| b != b'\n').count();
        syntax(line, column + 1, "the text is not UTF-8".to_owned())
    })?;
    let node: node::Node = serde_json::from_str(text).map_err(|error| {
        // The place stands in the message already, behind what is wrong.
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        syntax(error.line(), error.column(), what.to_owned())
    })?;
    let node::Node::Object(entries) = node else {
        let what = format!("expected an object, found {}", node.describe());
        return Err(syntax(1, 1, what));
    };
    check::plan(entries, &node::lines(text), hyper, source, &source_type).map_err(|misfits| {
        PlanFileError::Misfits {
            path: path.into(),
            misfits,
        }
    })
}

#[cfg(test)]
mod tests;

//! Manifest: the JSON description of an artifact.

use serde::{Deserialize, Serialize};

use super::quality::LONGEST_NUMBER;
use super::{ActiveFractionPoint, Digest, GeometryRecord, QualityRecord, SourceRecord};
use crate::DType;
use crate::bands::CodeLayout;
use crate::bounded_json;
use crate::limits::MAX_TEXTS_OF_MANIFEST;
use crate::model::{Form, HyperParameters, InputGroup, MatrixId, Role};

/// Contents and origin of an artifact, as JSON. A reader ignores unknown keys, because everything
/// it must understand is listed in [`requires`](Manifest::requires).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Manifest {
    /// Features that a reader must support, including
    /// [`required_features`](Manifest::required_features).
    pub requires: Vec<String>,
    /// Hyper-parameters of the forward pass.
    pub hyper: HyperParameters,
    /// All tensors, in execution order.
    pub tensors: Vec<TensorEntry>,
    /// All other stored data, in file order.
    pub sections: Vec<SectionEntry>,
    /// Decision and cost for each projection.
    pub plan: PlanRecord,
    /// Source and program from which the artifact was made.
    pub provenance: Provenance,
    /// Stored spectra against which a probe compares (1.3), if computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub geometry: Option<GeometryRecord>,
    /// Measured distance of the artifact from its source (1.5). In a draft it reserves space, see
    /// [`HtzWriter::write_quality`](super::HtzWriter::write_quality).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualityRecord>,
    /// Quality by active fraction (1.7), from base only. In a draft it reserves space, see
    /// [`HtzWriter::write_active_fractions`](super::HtzWriter::write_active_fractions).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dial: Vec<ActiveFractionPoint>,
    /// Source model (1.13), if its weights are stored after those of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceRecord>,
}

impl Manifest {
    /// Returns the features that such an artifact must require.
    pub fn required_features(hyper: &HyperParameters, tensors: &[TensorEntry]) -> Vec<String> {
        super::features::required_features(hyper, tensors)
    }

    /// Feature required if the vocabulary [needs it](crate::vocab::Vocabulary::needs_format_1_1).
    pub const VOCABULARY: &'static str = super::features::VOCABULARY;

    /// Feature required if the vocabulary
    /// [needs it](crate::vocab::Vocabulary::needs_tokenizer_rules).
    pub const TOKENIZER_RULES: &'static str = super::features::TOKENIZER_RULES;

    /// Feature required if the layer to probe was [chosen by the
    /// user](super::DepthSinkOrigin::Asked).
    pub const PROBE: &'static str = super::features::PROBE;

    /// Returns the tensor with a role.
    pub fn tensor(&self, role: Role) -> Option<&TensorEntry> {
        self.tensors.iter().find(|entry| entry.role == role)
    }

    /// Returns the section with a name.
    pub fn section(&self, name: &str) -> Option<&SectionEntry> {
        self.sections.iter().find(|entry| entry.name == name)
    }
}

/// A row-major matrix in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct TensorEntry {
    /// Name of the tensor in the source; informative only.
    pub name: String,
    /// Role in the model, unique among tensors.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub cols: u64,
    /// Codes of the column groups (1.6), possibly by row class (1.8). Present exactly for
    /// [`DType::Bands`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<CodeLayout>,
    /// Offset in the file; set by the writer.
    pub offset: u64,
    /// Length in bytes; set by the writer.
    pub length: u64,
    /// Digest of the bytes; set by the writer.
    pub sha256: Digest,
}

impl TensorEntry {
    /// Creates an entry for a draft; the writer sets offset and digest.
    pub fn new(
        name: impl Into<String>,
        role: Role,
        dtype: DType,
        rows: usize,
        cols: usize,
    ) -> TensorEntry {
        TensorEntry {
            name: name.into(),
            role,
            dtype,
            rows: rows as u64,
            cols: cols as u64,
            codes: None,
            offset: 0,
            length: 0,
            sha256: Digest::default(),
        }
    }

    /// Returns the entry with the codes of its column groups.
    pub fn with_codes(self, codes: Option<CodeLayout>) -> TensorEntry {
        TensorEntry { codes, ..self }
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.rows.saturating_mul(self.cols)
    }

    /// Returns the bytes implied by shape and type, if they fit.
    pub fn stored_bytes(&self) -> Option<u64> {
        match (&self.codes, self.dtype) {
            (None, DType::Bands) => return None,
            (None, _) => {}
            (Some(codes), DType::Bands) if codes.cols() as u64 == self.cols => {
                let rows = usize::try_from(self.rows).ok()?;
                return codes.has_rows(rows).then(|| codes.bytes(rows));
            }
            (Some(_), _) => return None,
        }
        let block = self.dtype.block_len() as u64;
        if !self.cols.is_multiple_of(block) {
            return None;
        }
        (self.cols / block)
            .checked_mul(self.dtype.block_bytes() as u64)?
            .checked_mul(self.rows)
    }
}

/// Encoding of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Not encoded.
    Raw,
    /// One zstd frame.
    Zstd,
}

/// Stored data other than a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SectionEntry {
    /// Unique name, for example [`TOKENIZER`](super::TOKENIZER).
    pub name: String,
    /// Readers that do not support the section must refuse the artifact.
    pub required: bool,
    /// Encoding of the bytes.
    pub encoding: Encoding,
    /// Offset in the file; set by the writer.
    pub offset: u64,
    /// Length in the file.
    pub length: u64,
    /// Length after decoding.
    pub decoded_length: u64,
    /// Digest of the stored bytes.
    pub sha256: Digest,
}

/// Request and decisions of the compression plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct PlanRecord {
    /// Name of the method: `low-rank` (earlier `gp`), `shared-basis` (earlier `grc`) or `quantise`.
    pub method: String,
    /// Requested budget.
    pub budget: Budget,
    /// Requested type of the factors.
    pub factor_type: DType,
    /// One record for each projection of each layer, in execution order.
    pub projections: Vec<MatrixRecord>,
    /// One record for each shared basis, in execution order.
    pub bases: Vec<BasisRecord>,
    /// Records of the embedding, which is also the head if tied, and of the head (1.4); absent if
    /// both are unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matrices: Vec<MatrixRecord>,
    /// Allocation of the budget (1.2); absent if uniform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationRecord>,
}

/// Allocation of the budget over projections and layers; informative.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct AllocationRecord {
    /// Name of the allocator.
    pub allocator: String,
    /// Requested budget that [`PlanRecord::budget`] cannot express, e.g. `bytes 5000000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// Minimum rank: a rank, or with a decimal point a fraction of the width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_floor: Option<String>,
    /// Maximum rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_cap: Option<u64>,
    /// Remarks on the plan as a whole.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "bounded_json::list::<_, _, MAX_TEXTS_OF_MANIFEST>"
    )]
    pub notes: Vec<String>,
}

/// Compression budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// The same rank in every projection.
    Rank(usize),
    /// Full rank: the factorisation is exact up to rounding.
    Full,
    /// Parameters after, relative to parameters before.
    Ratio(f64),
}

/// Compression of a matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct MatrixRecord {
    /// The matrix.
    pub id: MatrixId,
    /// Form in which it is stored.
    pub form: Form,
    /// Rank of the factors; absent if dense.
    pub rank: Option<usize>,
    /// Rows of `W` (outputs).
    pub rows: u64,
    /// Columns of `W` (inputs).
    pub cols: u64,
    /// Parameters of the source's `W`.
    pub parameters_before: u64,
    /// Parameters stored for this matrix alone.
    pub parameters_after: u64,
    /// Bytes of the source's `W` in its source type.
    pub bytes_before: u64,
    /// Bytes stored for this matrix alone.
    pub bytes_after: u64,
    /// `‖W − Ŵ‖ / ‖W‖` in the Frobenius norm for the stored `Ŵ`.
    pub error: Option<f64>,
    /// Reason why the form or type differs from the request.
    pub note: Option<String>,
}

/// Cost of a shared basis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct BasisRecord {
    /// Index of the layer.
    pub layer: usize,
    /// Projections that share the basis.
    pub group: InputGroup,
    /// Rows of the basis.
    pub rank: usize,
    /// Parameters stored.
    pub parameters: u64,
    /// Bytes stored.
    pub bytes: u64,
}

/// Source and program of an artifact, without times and paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Provenance {
    /// Name of the program.
    pub program: String,
    /// Version of the program.
    pub version: String,
    /// Digest of the source file.
    pub source_sha256: Digest,
    /// Size of the source file in bytes.
    pub source_bytes: u64,
    /// Format of the source, for example `gguf v3`.
    pub source_format: String,
    /// Instruction set that computed the factors, and after `; models on` the device that executed
    /// the source, if different.
    pub instruction_set: String,
    /// Linear-algebra library of the decompositions.
    pub linear_algebra: String,
    /// Calibration text (1.2), if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
    /// Error metric and corrections (1.3); absent if [`CalibrationRecord::gauge`] states all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub treatment: Option<TreatmentRecord>,
    /// Identifies the permutation of stored channels and units (1.6); absent if unchanged. The
    /// artifact computes the same function under any permutation, so this serves comparisons with
    /// the source's weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Digest>,
    /// Tuning after encoding (1.6), if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<TuningRecord>,
}

/// Tuning of norm weights and row scales on the source's logits. Errors of projections are those
/// before tuning.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct TuningRecord {
    /// Steps of gradient descent; 0 only in a writer's draft.
    pub steps: u64,
    /// Mean Kullback–Leibler divergence before tuning, in nats, on the validation split.
    pub kl_before: f64,
    /// The same after tuning.
    pub kl_after: f64,
}

impl TuningRecord {
    /// Returns a record for a draft, which reserves space.
    pub fn draft() -> TuningRecord {
        TuningRecord {
            steps: 0,
            kl_before: 0.0,
            kl_after: 0.0,
        }
    }

    pub(super) fn is_draft(&self) -> bool {
        self.steps == 0
    }

    pub(super) fn with_longest_numbers() -> TuningRecord {
        TuningRecord {
            steps: u64::MAX,
            kl_before: LONGEST_NUMBER,
            kl_after: LONGEST_NUMBER,
        }
    }
}

/// Treatment of weights beyond the choice of ranks; informative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct TreatmentRecord {
    /// Error metric: `none`, `axiom`, `activation`, `whiten`.
    pub gauge: String,
    /// Directions that the factors preserve exactly: `append`, that of the first position where
    /// they missed it; `channels:T`, a number of input channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// Biases compensate the loss of the factors on the mean input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bias: bool,
    /// Shrinkage of the second moment of the gauge `whiten` towards a multiple of the identity
    /// (1.5), from 0 (none) to 1; absent with other gauges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrinkage: Option<f64>,
}

/// Calibration texts that were run through the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct CalibrationRecord {
    /// Digest of the text; of several, that of the lines `DIGEST WEIGHT`.
    pub text_sha256: Digest,
    /// Number of tokens.
    pub tokens: u64,
    /// Tokens per window.
    pub context: u64,
    /// Error metric: `none`, `activation`, `whiten`.
    pub gauge: String,
}

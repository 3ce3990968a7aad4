//! The manifest: everything about an artifact except its numbers, as JSON.

use serde::{Deserialize, Serialize};

use super::quality::LONGEST_NUMBER;
use super::{DialPoint, Digest, GeometryRecord, QualityRecord, SourceRecord};
use crate::DType;
use crate::bands::Layout;
use crate::model::{Form, HyperParameters, InputGroup, MatrixId, Role, Slot};

/// What an artifact holds and how it came to be.
///
/// Serialised as JSON; a reader ignores keys it does not know, since everything a reader must
/// understand is announced in [`requires`](Manifest::requires).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Features that a reader must know to use the artifact, those of
    /// [`required_features`](Manifest::required_features) among them.
    pub requires: Vec<String>,
    /// The numbers that define the forward pass.
    pub hyper: HyperParameters,
    /// Every tensor, in the order of execution.
    pub tensors: Vec<TensorEntry>,
    /// Everything else that is stored, in the order of the file.
    pub sections: Vec<SectionEntry>,
    /// What was decided for every slot, and what it cost.
    pub plan: PlanRecord,
    /// What the artifact was made from, and by what.
    pub provenance: Provenance,
    /// What a probe compares with the stored numbers (1.3); absent where nobody computed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub geometry: Option<GeometryRecord>,
    /// How far the artifact is from its source (1.5); absent where nobody measured it. In the draft of a
    /// writer it reserves room, see [`HtzWriter::put_quality`](super::HtzWriter::put_quality).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualityRecord>,
    /// What the artifact is at parts of its bytes (1.7), from its bases alone on; empty where nobody measured
    /// it, or nothing is refined. In the draft of a writer it reserves room, see
    /// [`HtzWriter::put_dial`](super::HtzWriter::put_dial).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dial: Vec<DialPoint>,
    /// The model that the artifact was made from (1.13), where its weights lie behind those of the artifact; absent
    /// where they do not. Neither plan, quality and dial nor a size that was asked for know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceRecord>,
}

impl Manifest {
    /// The features that an artifact must require that has these hyper-parameters and tensors.
    pub fn required_features(hyper: &HyperParameters, tensors: &[TensorEntry]) -> Vec<String> {
        super::check::required_features(hyper, tensors)
    }

    /// The feature that an artifact must require beside those where its vocabulary
    /// [needs it](crate::vocab::Vocabulary::needs_format_1_1).
    pub const VOCABULARY: &'static str = super::check::VOCABULARY;

    /// The feature that an artifact must require beside those where the layer to probe was
    /// [asked](super::Origin::Asked) for.
    pub const PROBE: &'static str = super::check::PROBE;

    /// The tensor that plays `role`.
    pub fn tensor(&self, role: Role) -> Option<&TensorEntry> {
        self.tensors.iter().find(|entry| entry.role == role)
    }

    /// The section called `name`.
    pub fn section(&self, name: &str) -> Option<&SectionEntry> {
        self.sections.iter().find(|entry| entry.name == name)
    }
}

/// A row-major matrix in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// What the source calls the tensor, or the tensor it was made from; for people only.
    pub name: String,
    /// What it does in the model; no two tensors share a role.
    pub role: Role,
    /// How its numbers are stored.
    pub dtype: DType,
    /// Rows.
    pub rows: u64,
    /// Numbers in a row.
    pub cols: u64,
    /// The codes of its bands (1.6), perhaps in classes of rows (1.8), where it is in [`DType::Bands`] and only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<Layout>,
    /// Bytes from the beginning of the file; the writer's to fill.
    pub offset: u64,
    /// Bytes; the writer's to fill.
    pub length: u64,
    /// Digest of those bytes; the writer's to fill.
    pub sha256: Digest,
}

impl TensorEntry {
    /// An entry for the draft of a manifest: its place and digest are left to the writer.
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

    /// The same with the codes of its bands.
    pub fn with_codes(self, codes: Option<Layout>) -> TensorEntry {
        TensorEntry { codes, ..self }
    }

    /// Numbers in the tensor.
    pub fn parameters(&self) -> u64 {
        self.rows.saturating_mul(self.cols)
    }

    /// Bytes that the shape and the type call for; `None` where a row is no whole number of
    /// blocks, the product does not fit, or the codes are not those of its bands.
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

/// How a section's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// As they are.
    Raw,
    /// One zstd frame.
    Zstd,
}

/// Something stored that is no tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionEntry {
    /// Unique name, for example [`TOKENIZER`](super::TOKENIZER).
    pub name: String,
    /// Whether a reader that does not know the section must refuse the artifact.
    pub required: bool,
    /// How the bytes are stored.
    pub encoding: Encoding,
    /// Bytes from the beginning of the file; the writer's to fill.
    pub offset: u64,
    /// Bytes in the file.
    pub length: u64,
    /// Bytes after decoding.
    pub decoded_length: u64,
    /// Digest of the bytes in the file.
    pub sha256: Digest,
}

/// What was asked for and what was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Name of the method: `gp` (low rank per slot) or `grc` (bases shared by slots).
    pub method: String,
    /// What was asked for.
    pub budget: Budget,
    /// Type the factors were asked to be stored in.
    pub factor_type: DType,
    /// One record for each slot of each layer, in the order of execution.
    pub slots: Vec<SlotRecord>,
    /// One record for each shared basis, in the order of execution. Its parameters are its
    /// own: they are counted in no slot.
    pub bases: Vec<BasisRecord>,
    /// What became of the embedding and of the head (1.4), in the order of execution; absent where both
    /// are as in the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matrices: Vec<MatrixRecord>,
    /// How the budget was shared out (1.2); absent where every selected slot got the same share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationRecord>,
}

/// How the budget was shared out among slots and layers, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationRecord {
    /// Name of what decided.
    pub allocator: String,
    /// What was asked for, where [`PlanRecord::budget`] has no word for it, for example
    /// `bytes 5000000`; that then says what it came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// The smallest rank that was allowed: a rank, or with a point a fraction of the width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_floor: Option<String>,
    /// The largest rank that was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_cap: Option<u64>,
    /// What is to be said of the plan as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How much may remain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// The same rank in every slot.
    Rank(usize),
    /// The full rank: the factorisation is exact up to rounding.
    Full,
    /// Parameters after over parameters before.
    Ratio(f64),
}

/// What became of a slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// Index of the block.
    pub layer: usize,
    /// Which of the seven.
    pub slot: Slot,
    /// How it is stored.
    pub form: Form,
    /// Rank of the factors; absent where the form is dense.
    pub rank: Option<usize>,
    /// Rows of `W` (outputs).
    pub rows: u64,
    /// Columns of `W` (inputs).
    pub cols: u64,
    /// Numbers in the source's `W`.
    pub parameters_before: u64,
    /// Numbers stored for the slot alone.
    pub parameters_after: u64,
    /// Bytes of the source's `W`, in the type it has there.
    pub bytes_before: u64,
    /// Bytes stored for the slot alone.
    pub bytes_after: u64,
    /// `‖W − Ŵ‖ / ‖W‖` in the Frobenius norm, for the `Ŵ` that is stored; absent where nobody
    /// measured it.
    pub error: Option<f64>,
    /// Why the slot is not as asked for: dense, or of another type.
    pub note: Option<String>,
}

/// What became of a matrix outside of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixRecord {
    /// The embedding, which serves as head where the model ties them, or the head.
    pub matrix: MatrixId,
    /// How it is stored.
    pub form: Form,
    /// Rank of its factors; absent where there are none.
    pub rank: Option<usize>,
    /// Rows of `W`: tokens.
    pub rows: u64,
    /// Columns of `W`.
    pub cols: u64,
    /// Numbers in the source's `W`.
    pub parameters_before: u64,
    /// Numbers stored.
    pub parameters_after: u64,
    /// Bytes of the source's `W`, in the type it has there.
    pub bytes_before: u64,
    /// Bytes stored.
    pub bytes_after: u64,
    /// `‖W − Ŵ‖ / ‖W‖` in the Frobenius norm, for the `Ŵ` that is stored; absent where nobody
    /// measured it.
    pub error: Option<f64>,
    /// Why it is not as asked for.
    pub note: Option<String>,
}

/// What a shared basis costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BasisRecord {
    /// Index of the block.
    pub layer: usize,
    /// The slots that share it.
    pub group: InputGroup,
    /// Rows of the basis.
    pub rank: usize,
    /// Numbers stored.
    pub parameters: u64,
    /// Bytes stored.
    pub bytes: u64,
}

/// What an artifact was made from, and by what. It holds no time and no path, so that the same
/// source and the same options give the same bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Name of the program.
    pub program: String,
    /// Version of the program.
    pub version: String,
    /// Digest of the source file.
    pub source_sha256: Digest,
    /// Bytes of the source file.
    pub source_bytes: u64,
    /// Format of the source, for example `gguf v3`.
    pub source_format: String,
    /// Instruction set that computed the factors, and behind `; models on` what executed the source, where that was something else:
    /// others may round otherwise.
    pub instruction_set: String,
    /// Library that decomposed: others may round otherwise.
    pub linear_algebra: String,
    /// What text was calibrated on (1.2); absent where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
    /// Which errors counted and what was put right (1.3); absent where that is all in
    /// [`CalibrationRecord::gauge`], as the gauge `whiten` with its shrinkage is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub treatment: Option<TreatmentRecord>,
    /// Names the order in which channels and units are stored (1.6); absent where it is that of the source. The
    /// artifact computes the same in any, so this is for who compares its numbers with the source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Digest>,
    /// What was tuned when every matrix was stored (1.6); absent where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<TuningRecord>,
}

/// That the weights of norms are not those of the source, but were tuned on the logits of the source with all codes as
/// they are stored, and with them perhaps the scales of rows of slots; errors of slots are those before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningRecord {
    /// Steps of gradient descent that led to them; 0 only in the draft of a writer, where it reserves room.
    pub steps: u64,
    /// Mean Kullback–Leibler divergence before, nats, on held-out text that decided whether they are kept.
    pub kl_before: f64,
    /// The same with them.
    pub kl_after: f64,
}

impl TuningRecord {
    /// A record for the draft of a manifest, where it reserves room for what may be tuned.
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

    /// With the longest numbers.
    pub(super) fn longest() -> TuningRecord {
        TuningRecord {
            steps: u64::MAX,
            kl_before: LONGEST_NUMBER,
            kl_after: LONGEST_NUMBER,
        }
    }
}

/// How weights were treated beyond the choice of ranks, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreatmentRecord {
    /// Which errors counted: `none`, `axiom`, `activation`, `whiten`.
    pub gauge: String,
    /// What the factors of the slots that read the residual stream keep exact: `append`, the direction
    /// of the first position where they missed it; `channels:T`, so many input channels. Absent for
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// Whether biases put back what factors lose on the mean input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bias: bool,
    /// How far the second moment of the gauge `whiten` was shrunk towards a multiple of the identity (1.5),
    /// from 0, not at all, to 1; absent with other gauges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrinkage: Option<f64>,
}

/// The text or texts that flowed through the source before it was compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// Digest of the text; of several texts, that of the lines `DIGEST WEIGHT`, one for each.
    pub text_sha256: Digest,
    /// Tokens that were read.
    pub tokens: u64,
    /// Tokens of a window.
    pub context: u64,
    /// Which errors counted: `none`, `activation`, `whiten`.
    pub gauge: String,
}

//! Errors of loading and executing models.

use std::ops::Range;

use htc_formats::CodecError;
use htc_formats::model::Role;
use htc_formats::source::SourceError;
use htc_kernels::ShapeError;
use htc_kernels::cuda::DeviceError;
use thiserror::Error;

use crate::device::DeviceChoice;
use crate::exec::SequenceId;
use crate::speculate::MAX_DRAFT_LENGTH;

/// Result of an execution, by default with [`ExecError`].
pub type Result<T, E = ExecError> = std::result::Result<T, E>;

/// Error of loading, executing or adapting a model, or of sampling and generating with it.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum ExecError {
    /// The file is missing, damaged or not supported.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A tensor required by the architecture is missing.
    #[error("tensor {0} is missing; the file is incomplete, make it again")]
    Missing(Role),
    /// The shape of a tensor does not fit the others.
    #[error(
        "tensor {tensor}: expected {} rows of {}, found {} of {}; the file is damaged, make it again",
        expected[0], expected[1], found[0], found[1]
    )]
    TensorShape {
        /// Tensor name.
        tensor: String,
        /// Expected rows and columns.
        expected: [usize; 2],
        /// Found rows and columns.
        found: [usize; 2],
    },
    /// A tensor does not decode, or a backend rejects it.
    #[error("tensor {tensor}: {source}")]
    Tensor {
        tensor: String,
        source: Box<ExecError>,
    },
    /// A KV cache basis or its energies are invalid.
    #[error(
        "tensor {tensor}, head {head}: found {found}, expected {expected}; the file is damaged, make it again with \
         `kv_bases`, or go without"
    )]
    KvBasis {
        /// Tensor name.
        tensor: String,
        /// Kv head.
        head: usize,
        /// Expected content.
        expected: &'static str,
        /// Found content.
        found: String,
    },
    /// Buffers and matrices do not fit together.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Numbers of a tensor do not decode.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    /// A batch is too large.
    #[error("{found} tokens in one batch, at most {limit} are allowed")]
    Batch { found: usize, limit: usize },
    /// The sequence exceeds the session's context.
    #[error(
        "the sequence would have {found} positions and was begun as one of at most {limit}, which rotates \
         otherwise; begin it with its full context"
    )]
    Context { found: usize, limit: usize },
    /// An engine has no such sequence.
    #[error("sequence {sequence} is not in the engine, or was removed")]
    Sequence { sequence: SequenceId },
    /// A pass has several chunks of one sequence.
    #[error("sequence {sequence} has several chunks in one pass; join them")]
    RepeatedSequence { sequence: SequenceId },
    /// A chunk of a pass has no tokens.
    #[error("the chunk of sequence {sequence} has no tokens; leave it out")]
    EmptyChunk { sequence: SequenceId },
    /// A sequence exceeds the context of its engine.
    #[error(
        "sequence {sequence} would have {found} positions, at most {limit} fit the context; truncate or remove it"
    )]
    SequenceFull {
        /// The sequence.
        sequence: SequenceId,
        /// Requested positions.
        found: usize,
        /// Largest possible number.
        limit: usize,
    },
    /// A rank fraction is outside (0, 1].
    #[error("rank fraction {0} is not above 0 and at most 1")]
    RankFraction(f32),
    /// An active fraction is outside (0, 1].
    #[error("fraction {0} is not above 0 and at most 1")]
    Fraction(f64),
    /// An active fraction is too small for the model.
    #[error(
        "fraction {requested} is below {smallest:.3}, the least part of its bytes that this model can execute with; ask for \
         more, or compile it with `planes` 2 or to a smaller size"
    )]
    FractionBelow { requested: f64, smallest: f64 },
    /// A truncation is longer than the sequence.
    #[error("the sequence has {found} positions, the first {requested} of them cannot be kept")]
    Truncate { requested: usize, found: usize },
    /// A block has not read the earlier positions.
    #[error(
        "blocks {}..{} requested behind positions that only blocks {}..{} have read; reset the session first",
        requested.start, requested.end, read.start, read.end
    )]
    Blocks {
        /// Requested blocks.
        requested: Range<usize>,
        /// Blocks that have read the earlier positions.
        read: Range<usize>,
    },
    /// The model has no such block.
    #[error("block {layer} requested, the model has {layers}")]
    Layer { layer: usize, layers: usize },
    /// The last batch has no such rows of logits.
    #[error("logits of rows {start}..{end} requested, the last batch has {rows}")]
    Rows {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
        /// Rows of the last batch.
        rows: usize,
    },
    /// A key or value exceeds the type of the KV cache.
    #[error(
        "layer {layer}: a number of the {side} at position {position} is {value}, which is not finite in the \
         KV cache's type; if it is infinite or NaN, check the file with its author's digest"
    )]
    KvRange {
        /// Layer.
        layer: usize,
        /// `key` or `value`.
        side: &'static str,
        /// Position in the sequence.
        position: usize,
        /// The number.
        value: f32,
    },
    /// Unknown name of a kind.
    #[error(
        "no KV cache is called `{found}`; there are f32, f16, q8_0, q4_0, q8_0-rotated, q4_0-rotated, static:R, \
         static-hybrid:R and oja:R, with R a part of the head size such as 0.6, or of the energy such as e0.95"
    )]
    KvName { found: String },
    /// A fraction is outside (0, 1].
    #[error("rank of the KV cache is {found}, expected a fraction above 0 and at most 1")]
    KvFractionRange { found: f32 },
    /// An option is out of range.
    #[error("{what} is {found}, expected {expected}")]
    OptionRange {
        /// Name of the option.
        what: &'static str,
        /// Valid values.
        expected: &'static str,
        /// Given value.
        found: f64,
    },
    /// The kind needs bases, and the model has none.
    #[error(
        "the KV cache `{kind}` needs bases of keys and values, and the model has none; compile it with --kv-bases, \
         or use f16 or q8_0"
    )]
    NoKvBases { kind: String },
    /// The bases belong to another model.
    #[error(
        "bases of the KV cache: expected {expected} {what}, found {found}; they are of another model, compile with \
         --kv-bases"
    )]
    KvBasesShape {
        /// Property that differs.
        what: &'static str,
        /// Value of the model.
        expected: usize,
        /// Value of the bases.
        found: usize,
    },
    /// The bases are damaged.
    #[error(
        "bases of the KV cache, layer {layer}, {side} of kv head {head}: {problem}; the file is damaged, compile it \
         again"
    )]
    KvBases {
        /// Layer.
        layer: usize,
        /// Head.
        head: usize,
        /// `keys` or `values`.
        side: &'static str,
        /// Description of the problem.
        problem: String,
    },
    /// Heads are not whole blocks.
    #[error(
        "the KV cache `{kind}` stores heads in blocks of {block} numbers, and the model's heads have {head_size}; use \
         f16"
    )]
    KvHeadSize {
        /// Name of the kind.
        kind: String,
        /// Numbers of a block.
        block: usize,
        /// Dimension of a head.
        head_size: usize,
    },
    /// Too few positions to keep.
    #[error(
        "{found} positions of the KV cache `{kind}` cannot be kept: the first and last positions stay as they are, \
         ask for at least {least}"
    )]
    KeepTooSmall {
        /// Name of the kind.
        kind: String,
        /// Requested number.
        found: usize,
        /// Smallest valid number.
        least: usize,
    },
    /// No pass has recorded the importance of positions.
    #[error(
        "cannot evict positions of the KV cache: the last pass recorded no importance; read the prompt with read_prompt"
    )]
    NoImportance,
    /// The kind compresses between steps, so it cannot verify drafts.
    #[error(
        "drafts cannot be verified with the KV cache `{kind}`, which compresses positions between single steps; \
         generate without a draft, or use f32, f16, q8_0 or q4_0"
    )]
    VerifyUnsupported { kind: String },
    /// A cut before evicted positions.
    #[error(
        "the first {requested} positions cannot be kept: positions in front of position {evicted_at} were evicted; reset \
         the session and read them again"
    )]
    Evicted {
        /// Requested number of positions.
        requested: usize,
        /// Position count at the eviction.
        evicted_at: usize,
    },
    /// A model cannot be loaded.
    #[error(transparent)]
    Load(Box<ExecError>),
    /// The build does not include the device.
    #[error("this build has no device {device}; build it with the feature {feature}")]
    NotBuilt {
        /// The device.
        device: DeviceChoice,
        /// Feature that includes it.
        feature: &'static str,
    },
    /// Error of a device.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// A result is infinite or NaN.
    #[error(
        "the logits at position {position} are not finite: a tensor of the model holds NaN or infinite \
         numbers, or overflows; check the file with its author's digest"
    )]
    NotFinite {
        /// Position in the sequence.
        position: usize,
    },
    /// The prompt is empty and the model has no BOS token.
    #[error("the prompt is empty and the model has no beginning-of-sequence token; give a prompt")]
    EmptyPrompt,
    /// The prompt exceeds the context.
    #[error("the prompt has {found} tokens, the sequence may have {limit}; shorten the prompt")]
    PromptTooLong { found: usize, limit: usize },
    /// The temperature is negative or not finite.
    #[error("temperature is {found}, expected a finite number of at least 0; 0 is greedy")]
    Temperature { found: f32 },
    /// A probability is out of range.
    #[error("top-p is {found}, expected more than 0 and at most 1; 1 keeps every token")]
    TopP { found: f32 },
    /// Only a drawn token is known, not its distribution.
    #[error(
        "only a drawn token is known, not its distribution; request logits with `Sampler::logits_for_distribution`"
    )]
    Drawn,
    /// There are no logits.
    #[error("there are no logits to sample from, expected one for each token of the vocabulary")]
    NoLogits,
    /// A logit is not finite.
    #[error("logit of token {token} is {found}, expected a finite number; verify the model file")]
    LogitNotFinite { token: usize, found: f32 },
    /// The tokenizers differ.
    #[error(
        "the draft has another tokenizer: {what}; a draft and the model it drafts for need one vocabulary, take a \
         smaller artifact of the same model"
    )]
    DraftTokenizer { what: String },
    /// The vocabulary sizes differ.
    #[error("the draft has {found} tokens in its vocabulary, expected {expected} as the model has")]
    DraftVocabulary { expected: usize, found: usize },
    /// The draft length is out of range.
    #[error("a draft has 1 to {MAX_DRAFT_LENGTH} tokens, found {0}")]
    DraftLength(usize),
    /// The session has read positions that the draft has not.
    #[error(
        "the session has read {found} positions and its draft knows {expected} of them; begin both together"
    )]
    DraftPosition { expected: usize, found: usize },
    /// No layer of the draft has a basis.
    #[error(
        "the draft has no basis of Q, K and V to adapt; make one with `htc compile --method shared-basis`, or adapt by gradient"
    )]
    NoBasis,
    /// The draft is no compression of the model.
    #[error(
        "the draft has {found} {what}, expected {expected} as the model has: its basis can follow only what it was \
         made from"
    )]
    DraftShape {
        /// Property that differs.
        what: &'static str,
        /// Value of the model.
        expected: usize,
        /// Value of the draft.
        found: usize,
    },
    /// The channels of the residual stream are permuted differently.
    #[error(
        "the draft stores its channels in another order than the model; compile it with `--order off`"
    )]
    ChannelPermutation,
    /// The saved state belongs to other models or options.
    #[error(
        "the saved adaptation belongs to another {what}: expected {expected}, found {found}; pass the file of this pair"
    )]
    StateMismatch {
        /// Property that differs.
        what: &'static str,
        /// Expected value.
        expected: String,
        /// Value of the state.
        found: String,
    },
}

impl From<DeviceError> for ExecError {
    fn from(error: DeviceError) -> Self {
        ExecError::Device(Box::new(error))
    }
}

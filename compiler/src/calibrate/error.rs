//! Errors of passes of a text through a model.

use std::fmt;
use std::io;
use std::path::PathBuf;

use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use htc_formats::vocab::VocabularyError;
use htc_formats::{CodecError, DType};
use htc_kernels::PoolError;
use htc_loader::ExecError;
use thiserror::Error;

use crate::event::Cancelled;
use crate::math::FactoriseError;
use crate::options::TextSource;

/// Stage of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A block of the model.
    Layer(usize),
    /// The norm before the head.
    Head,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Layer(layer) => write!(f, "layer {layer}"),
            Stage::Head => f.write_str("before the head"),
        }
    }
}

/// Errors of passes of a text through a model: calibration, gradients, tuning and evaluation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PassError {
    /// The text cannot be read.
    #[error(transparent)]
    Text(#[from] crate::system::error::FileError),
    /// No text is given.
    #[error("there is no text to calibrate on; give one at least")]
    NoText,
    /// The text is shorter than a window.
    #[error("{found} tokens, one window needs {needed}; give a longer text or a smaller `context`")]
    TextTooShort {
        /// Tokens of the text.
        found: usize,
        /// Tokens per window.
        needed: usize,
    },
    /// A text of a calibration cannot be used.
    #[error("{text}: {error}")]
    OfText {
        /// Text.
        text: TextSource,
        /// Cause.
        error: Box<PassError>,
    },
    /// The tokenizer cannot be created.
    #[error("{}: {error}", path.display())]
    Tokenizer {
        /// Model path.
        path: PathBuf,
        /// Cause.
        error: VocabularyError,
    },
    /// The model cannot be executed.
    #[error("{}: {error}", path.display())]
    Load {
        /// Model path.
        path: PathBuf,
        /// Cause.
        error: ExecError,
    },
    /// A forward pass failed.
    #[error("{}: {stage}: {error}", path.display())]
    Exec {
        /// Model path.
        path: PathBuf,
        /// Stage.
        stage: Stage,
        /// Cause.
        error: ExecError,
    },
    /// The device failed to sum the moments.
    #[error("{}: {stage}: {error}; give another `device`", path.display())]
    DeviceSums {
        /// Model path.
        path: PathBuf,
        /// Stage.
        stage: Stage,
        /// Cause.
        error: FactoriseError,
    },
    /// An activation or a gradient is infinite or not a number.
    #[error(
        "{}: {place}: {quantity} is not finite on this text; the model is damaged, or computes beyond float32",
        path.display()
    )]
    NotFinite {
        /// Model path.
        path: PathBuf,
        /// Location of the first such number.
        place: String,
        /// Name of the number.
        quantity: &'static str,
    },
    /// Fewer tokens are requested than a window has.
    #[error(
        "`calibration_tokens` {tokens}: a window alone has {context} (`context`); ask for more, or for shorter windows"
    )]
    FewTokens {
        /// Requested tokens.
        tokens: usize,
        /// Tokens per window.
        context: usize,
    },
    /// A weight of a text is not a finite positive number.
    #[error("`calibration`: a text has a weight of {0}; give a finite number above 0")]
    InvalidWeight(f64),
    /// A text is given twice.
    #[error("`calibration` {0}: given twice; give it once, with a weight if it is to count more")]
    DuplicateText(TextSource),
    /// The held-out text is a calibration text.
    #[error("`held_out` {}: the same text as `calibration`; leave it out and the ends of the texts are held out, or give another", .0.display())]
    HeldOutIsText(PathBuf),
    /// The disk space is insufficient.
    #[error("{}: no space: {needed} bytes of statistics are needed, {free} are free there; free some, or give another `cache` DIR", path.display())]
    NoSpace {
        /// Folder path.
        path: PathBuf,
        /// Bytes of all layers and of two residual streams.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// The memory is insufficient.
    #[error("{}: no memory: calibrating takes about {needed} bytes for the sums of a layer, {available} are available; end other programs, or do without `calibration`", path.display())]
    NoMemory {
        /// Model path.
        path: PathBuf,
        /// Bytes of the sums and of a session.
        needed: u64,
        /// Available bytes.
        available: u64,
    },
    /// The windows are longer than the model's context.
    #[error("`context` {context}: the model was trained for {limit} positions; give at most that")]
    LongContext {
        /// Tokens per window.
        context: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// The disk space is insufficient for the residual streams of a backward pass.
    #[error("{}: no space: the backward pass needs {needed} bytes, most of them for the residual stream before every layer, {free} are free there; free some, give another `cache` DIR, or ask for fewer tokens", path.display())]
    NoSpaceForGradients {
        /// Cache folder.
        path: PathBuf,
        /// Bytes of all streams, two gradient files and the results.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// The memory is insufficient for a backward pass.
    #[error("{}: no memory: the backward pass takes about {needed} bytes for a layer, {available} are available; end other programs", path.display())]
    NoMemoryForGradients {
        /// Model path.
        path: PathBuf,
        /// Bytes of a layer's weights, activations and sums.
        needed: u64,
        /// Available bytes.
        available: u64,
    },
    /// A file of the cache changed while in use.
    #[error("{}: not what was written there; does another program use this folder? Start again", .0.display())]
    FileChanged(PathBuf),
    /// There is no cache folder.
    #[error(
        "neither XDG_CACHE_HOME nor HOME is set; say where statistics may lie with `cache` DIR"
    )]
    NoCache,
    /// The cache entry belongs to another user.
    #[error(
        "{}: these statistics are of another user ({owner}), who may have laid anything there; take them all the same with `trust_cache`, or give another folder with `cache`", path.display()
    )]
    ForeignOwner {
        /// Folder path.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
    },
    /// Another process holds the entry.
    #[error(
        "{}: another htc still holds this; wait longer with `lock_timeout`, or give another folder with `cache`", .0.display()
    )]
    Locked(PathBuf),
    /// A file of the cache cannot be written or read.
    #[error("{}: {error}; give another folder with `cache` DIR", path.display())]
    Cache {
        /// Path.
        path: PathBuf,
        /// I/O error.
        error: io::Error,
    },
    /// A write failed; [`Cache`](PassError::Cache) adds the path.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// A matrix is missing or not dense.
    #[error("{0} is missing; gradients are those of a model with all of its matrices dense")]
    Missing(Role),
    /// A tensor does not decode, or tuned numbers are out of the range of its type.
    #[error("{tensor}: {source}")]
    Codec {
        /// Tensor name.
        tensor: String,
        /// Cause.
        source: CodecError,
    },
    /// A norm has a type that cannot be tuned.
    #[error(
        "{role} is stored as {dtype}, expected f32, f16 or bf16 to tune it; `tune` 0 leaves it"
    )]
    NormType {
        /// Norm.
        role: Role,
        /// Its type.
        dtype: DType,
    },
    /// The state of a tuning cannot be saved.
    #[error(transparent)]
    SaveState(#[from] HtzError),
    /// Threads cannot be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The vocabularies of an evaluated model and of its reference differ.
    #[error(
        "`reference`: its vocabulary differs from the model's ({difference}); compare models with the same tokenizer"
    )]
    VocabularyMismatch {
        /// The first difference.
        difference: String,
    },
    /// A forward pass of an evaluation failed.
    #[error(transparent)]
    Evaluate(ExecError),
    /// A forward pass of the reference of an evaluation failed.
    #[error(transparent)]
    Reference(ExecError),
    /// Cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

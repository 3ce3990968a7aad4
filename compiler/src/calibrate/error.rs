//! Errors of a calibration.

use std::fmt;
use std::io;
use std::path::PathBuf;

use htc_formats::vocab::VocabularyError;
use htc_loader::ExecError;
use thiserror::Error;

use super::windows::TextTooShort;
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
            Stage::Head => f.write_str("in front of the head"),
        }
    }
}

/// Errors of a calibration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The text cannot be read.
    #[error(transparent)]
    Text(#[from] crate::system::error::FileError),
    /// No text is given.
    #[error("there is no text to calibrate on; give one at least")]
    NoText,
    /// The text is shorter than a window.
    #[error("{text}: {error}")]
    TooShort {
        /// Text.
        text: TextSource,
        /// Its length.
        error: TextTooShort,
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
    /// An activation is infinite or not a number.
    #[error(
        "{}: {stage}: an activation is not finite on this text; the model is damaged, or computes beyond float32",
        path.display()
    )]
    NotFinite {
        /// Model path.
        path: PathBuf,
        /// Stage.
        stage: Stage,
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
    /// The residual stream changed during the calibration.
    #[error("{}: not what was written there; does another program use this folder? Start again", .0.display())]
    StreamChanged(PathBuf),
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
    /// Cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

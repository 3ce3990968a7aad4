//! Why a calibration fails.

use std::fmt;
use std::io;
use std::path::PathBuf;

use htc_loader::tokenizer::TokenizerError;
use htc_loader::{ExecError, LoadError};
use thiserror::Error;

use super::windows::TextTooShort;
use crate::event::Cancelled;
use crate::math::FactoriseError;
use crate::request::TextSource;

/// What the text goes through, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A block of the model.
    Layer(usize),
    /// The norm in front of the head.
    Head,
}

/// `layer 3`.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Layer(layer) => write!(f, "layer {layer}"),
            Stage::Head => f.write_str("in front of the head"),
        }
    }
}

/// Why a calibration fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The text cannot be read.
    #[error(transparent)]
    Text(#[from] crate::system::text::TextError),
    /// No text is named.
    #[error("there is no text to calibrate on; give one at least")]
    NoText,
    /// The text is shorter than a window.
    #[error("{text}: {error}")]
    TooShort {
        /// The text.
        text: TextSource,
        /// How short.
        error: TextTooShort,
    },
    /// There is no tokenizer.
    #[error("{}: {error}", path.display())]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// Why.
        error: TokenizerError,
    },
    /// The model cannot be executed.
    #[error("{}: {error}", path.display())]
    Load {
        /// The model.
        path: PathBuf,
        /// Why.
        error: LoadError,
    },
    /// A forward pass failed.
    #[error("{}: {stage}: {error}", path.display())]
    Exec {
        /// The model.
        path: PathBuf,
        /// Where.
        stage: Stage,
        /// Why.
        error: ExecError,
    },
    /// The device does not sum what it computes.
    #[error("{}: {stage}: {error}; give another `device`", path.display())]
    Sums {
        /// The model.
        path: PathBuf,
        /// Where.
        stage: Stage,
        /// Why.
        error: FactoriseError,
    },
    /// An activation is infinite or not a number.
    #[error(
        "{}: {stage}: an activation is not finite on this text; the model is damaged, or computes beyond float32",
        path.display()
    )]
    NotFinite {
        /// The model.
        path: PathBuf,
        /// Where the first one is.
        stage: Stage,
    },
    /// Fewer tokens asked for than a window has.
    #[error(
        "`calibration_tokens` {tokens}: a window alone has {context} (`context`); ask for more, or for shorter windows"
    )]
    FewTokens {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens of a window.
        context: usize,
    },
    /// A weight says nothing.
    #[error("`calibration`: a text has a weight of {0}; give a finite number above 0")]
    Weight(f64),
    /// A text is calibrated on twice.
    #[error("`calibration` {0}: given twice; give it once, with a weight if it is to count more")]
    Twice(TextSource),
    /// What is to be held out is what is calibrated on.
    #[error("`held_out` {}: the same text as `calibration`; leave it out and the ends of the texts are held out, or give another", .0.display())]
    HeldOutIsText(PathBuf),
    /// There is no room for the statistics.
    #[error("{}: no space: {needed} bytes of statistics are needed, {free} are free there; free some, or give another `cache` DIR", path.display())]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes of all layers and of two residual streams.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// The machine has not as much memory.
    #[error("{}: no memory: calibrating takes about {needed} bytes for the sums of a layer, {available} are available; end other programs, or do without `calibration`", path.display())]
    NoMemory {
        /// The model.
        path: PathBuf,
        /// Bytes of the sums and of a session.
        needed: u64,
        /// What is available.
        available: u64,
    },
    /// Windows longer than what the model was trained for.
    #[error("`context` {context}: the model was trained for {limit} positions; give at most that")]
    LongContext {
        /// Tokens of a window.
        context: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// The residual stream changed while it was used.
    #[error("{}: not what was written there; does another program use this folder? Start again", .0.display())]
    Stream(PathBuf),
    /// There is no place for the cache.
    #[error(
        "neither XDG_CACHE_HOME nor HOME is set; say where statistics may lie with `cache` DIR"
    )]
    NoCache,
    /// What is in the cache is somebody else's.
    #[error(
        "{}: these statistics are of another user ({owner}), who may have laid anything there; take them all the same with `trust_cache`, or give another folder with `cache`", path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// The number of that user.
        owner: u32,
    },
    /// Another process works in the cache.
    #[error(
        "{}: another htc still holds this; wait longer with `lock_timeout`, or give another folder with `cache`", .0.display()
    )]
    Locked(PathBuf),
    /// A file of the cache cannot be written or read.
    #[error("{}: {error}; give another folder with `cache` DIR", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

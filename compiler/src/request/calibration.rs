//! Calibration options.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SHIPPED_VERSION;
use crate::system::disk;
use crate::system::show::file_name;

/// Source of a calibration text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextSource {
    /// A file.
    File(PathBuf),
    /// The text that ships with the program, [`super::shipped_text`].
    Shipped,
}

impl<P: Into<PathBuf>> From<P> for TextSource {
    fn from(path: P) -> Self {
        TextSource::File(path.into())
    }
}

impl TextSource {
    /// Returns the path if the source is a file.
    pub fn file(&self) -> Option<&Path> {
        match self {
            TextSource::File(path) => Some(path),
            TextSource::Shipped => None,
        }
    }

    /// Returns the display name: the file name, or the version of the shipped text.
    pub fn name(&self) -> String {
        match self {
            TextSource::File(path) => file_name(path),
            TextSource::Shipped => format!("shipped v{SHIPPED_VERSION}"),
        }
    }

    /// Returns true if both are the same text.
    pub(crate) fn is_same(&self, other: &TextSource) -> bool {
        match (self, other) {
            (TextSource::File(one), TextSource::File(other)) => disk::is_same_file(one, other),
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for TextSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextSource::File(path) => path.display().fmt(f),
            TextSource::Shipped => f.write_str("shipped"),
        }
    }
}

/// Calibration text.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationText {
    /// Source of the text.
    pub source: TextSource,
    /// Weight of each token relative to other texts: finite and above 0.
    pub weight: f64,
}

/// Calibration texts and the options for processing them.
#[derive(Clone, Debug)]
pub struct CalibrationOptions {
    /// Texts in reading order.
    pub texts: Vec<CalibrationText>,
    /// Maximum tokens of each text.
    pub tokens: usize,
    /// Tokens per window; by default [`DEFAULT_CONTEXT`], or the model's context if that is
    /// shorter.
    pub context: Option<usize>,
    /// Cache folder; `None` for the user's.
    pub cache: Option<PathBuf>,
    /// Accepts statistics that another user wrote into the cache.
    pub trust_cache: bool,
    /// Timeout for another process that computes the same statistics.
    pub lock_timeout: Duration,
    /// Held-out text; `None` for the ends of the calibration texts. Odd windows of each text
    /// (first, third, ...) are the validation split, even ones the test split.
    pub held_out: Option<PathBuf>,
}

/// Default maximum of tokens per text.
pub const DEFAULT_TOKENS: usize = 65_536;

/// Default window size in tokens.
pub const DEFAULT_CONTEXT: usize = 512;

/// Default lock timeout: one hour.
pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

impl CalibrationOptions {
    /// Returns options for a text with defaults.
    pub fn new(text: impl Into<TextSource>) -> Self {
        CalibrationOptions {
            texts: vec![CalibrationText {
                source: text.into(),
                weight: 1.0,
            }],
            tokens: DEFAULT_TOKENS,
            context: None,
            cache: None,
            trust_cache: false,
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            held_out: None,
        }
    }

    /// Returns the window size in tokens for a model with a context of `most` tokens.
    pub fn window_size(&self, most: usize) -> usize {
        self.context.unwrap_or(DEFAULT_CONTEXT.min(most))
    }

    /// Returns the files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let texts = self.texts.iter().filter_map(|text| text.source.file());
        texts.chain(self.held_out.as_deref())
    }

    /// Returns true if a path leads to one of the texts.
    pub fn is_text_file(&self, path: &Path) -> bool {
        self.files().any(|text| disk::is_same_file(text, path))
    }
}

//! What to calibrate on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SHIPPED_VERSION;
use crate::system::disk;
use crate::system::show::name_of;

/// Where a text to calibrate on comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextSource {
    /// A file.
    File(PathBuf),
    /// The program: a mix of kinds and languages, [`super::shipped_text`].
    Shipped,
}

impl<P: Into<PathBuf>> From<P> for TextSource {
    fn from(path: P) -> Self {
        TextSource::File(path.into())
    }
}

impl TextSource {
    /// The file, where it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            TextSource::File(path) => Some(path),
            TextSource::Shipped => None,
        }
    }

    /// Its name in reports: of a file without its folder, of the shipped text with its version.
    pub fn name(&self) -> String {
        match self {
            TextSource::File(path) => name_of(path),
            TextSource::Shipped => format!("shipped v{SHIPPED_VERSION}"),
        }
    }

    /// Whether both are the same text.
    pub(crate) fn is_same(&self, other: &TextSource) -> bool {
        match (self, other) {
            (TextSource::File(one), TextSource::File(other)) => disk::same_place(one, other),
            (one, other) => one == other,
        }
    }
}

/// As it is asked for.
impl fmt::Display for TextSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextSource::File(path) => path.display().fmt(f),
            TextSource::Shipped => f.write_str("shipped"),
        }
    }
}

/// A text to calibrate on.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationText {
    /// Where it is.
    pub source: TextSource,
    /// How much each of its tokens counts, beside those of the other texts: finite and above 0.
    pub weight: f64,
}

/// What to calibrate on.
#[derive(Clone, Debug)]
pub struct CalibrationOptions {
    /// The texts, in the order in which they are read.
    pub texts: Vec<CalibrationText>,
    /// Tokens of each text at most.
    pub tokens: usize,
    /// Tokens of a window; without it [`DEFAULT_CONTEXT`], or as many as the model reads at once where those
    /// are fewer.
    pub context: Option<usize>,
    /// Folder of the cache; `None` for the user's.
    pub cache: Option<PathBuf>,
    /// Whether statistics that another user wrote into the cache are taken.
    pub trust_cache: bool,
    /// How long to wait for another process that makes the same statistics.
    pub lock_timeout: Duration,
    /// Text to measure on; `None` for the ends of the texts. Of the windows of each text the first, third and
    /// so on decide, and those between them report.
    pub held_out: Option<PathBuf>,
}

/// Tokens read of a text where nothing else is asked for.
pub const DEFAULT_TOKENS: usize = 65_536;

/// Tokens of a window where nothing else is asked for.
pub const DEFAULT_CONTEXT: usize = 512;

/// How long another process is waited for where nothing else is asked for: an hour, since it works.
pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

impl CalibrationOptions {
    /// A text, with defaults for the rest.
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

    /// Tokens of a window for a model that reads so many at once.
    pub fn window(&self, most: usize) -> usize {
        self.context.unwrap_or(DEFAULT_CONTEXT.min(most))
    }

    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let texts = self.texts.iter().filter_map(|text| text.source.file());
        texts.chain(self.held_out.as_deref())
    }

    /// Whether a path leads to one of the texts.
    pub fn reads(&self, path: &Path) -> bool {
        self.files().any(|text| disk::same_place(text, path))
    }
}

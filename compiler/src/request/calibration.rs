//! What to calibrate on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::system::disk;

/// A text to calibrate on.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationText {
    /// The file.
    pub path: PathBuf,
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
    /// Tokens of a window.
    pub context: usize,
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
    pub fn new(path: PathBuf) -> Self {
        CalibrationOptions {
            texts: vec![CalibrationText { path, weight: 1.0 }],
            tokens: DEFAULT_TOKENS,
            context: DEFAULT_CONTEXT,
            cache: None,
            trust_cache: false,
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            held_out: None,
        }
    }

    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let texts = self.texts.iter().map(|text| text.path.as_path());
        texts.chain(self.held_out.as_deref())
    }

    /// Whether a path leads to one of the texts.
    pub fn reads(&self, path: &Path) -> bool {
        self.files().any(|text| disk::same_place(text, path))
    }
}

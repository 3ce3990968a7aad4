//! What to calibrate on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::system::disk;

/// What to calibrate on.
#[derive(Clone, Debug)]
pub struct CalibrationOptions {
    /// The text.
    pub text: PathBuf,
    /// Tokens of the text at most.
    pub tokens: usize,
    /// Tokens of a window.
    pub context: usize,
    /// Folder of the cache; `None` for the user's.
    pub cache: Option<PathBuf>,
    /// Whether statistics that another user wrote into the cache are taken.
    pub trust_cache: bool,
    /// How long to wait for another process that makes the same statistics.
    pub lock_timeout: Duration,
    /// Text to measure on what was decided; `None` for the end of the text.
    pub held_out: Option<PathBuf>,
}

/// Tokens read where nothing else is asked for.
pub const DEFAULT_TOKENS: usize = 65_536;

/// Tokens of a window where nothing else is asked for.
pub const DEFAULT_CONTEXT: usize = 512;

/// How long another process is waited for where nothing else is asked for: an hour, since it works.
pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

impl CalibrationOptions {
    /// A text, with defaults for the rest.
    pub fn new(text: PathBuf) -> Self {
        CalibrationOptions {
            text,
            tokens: DEFAULT_TOKENS,
            context: DEFAULT_CONTEXT,
            cache: None,
            trust_cache: false,
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            held_out: None,
        }
    }

    /// The texts that are read.
    pub fn texts(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.text)
            .chain(&self.held_out)
            .map(PathBuf::as_path)
    }

    /// Whether a path leads to one of the texts.
    pub fn reads(&self, path: &Path) -> bool {
        self.texts().any(|text| disk::same_place(text, path))
    }
}

//! Errors of files.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::text::MAX_TEXT;

/// Error of the files of this layer: texts, and the secret of the user.
#[derive(Debug, Error)]
pub enum FileError {
    /// Unreadable file.
    #[error("{path}: cannot be read: {source}; check the path")]
    Read {
        /// File path.
        path: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// Not UTF-8.
    #[error(
        "{path}: not UTF-8 text: byte {offset} begins no character; convert it to UTF-8 (iconv)"
    )]
    NotUtf8 {
        /// File path.
        path: PathBuf,
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// The file is larger than [`MAX_TEXT`].
    #[error("{path}: larger than {MAX_TEXT} bytes; give a part of it")]
    TooLarge {
        /// File path.
        path: PathBuf,
    },
    /// There is no state folder.
    #[error(
        "neither XDG_STATE_HOME nor HOME is set, which say where a secret of this user may lie"
    )]
    NoStateFolder,
    /// The file cannot be read or created.
    #[error("{}: {error}", path.display())]
    Secret {
        /// Path.
        path: PathBuf,
        /// I/O error.
        error: io::Error,
    },
    /// The file is readable by others.
    #[error("{}: others may read this secret of yours; remove it, and another is made", .0.display())]
    ReadableByOthers(PathBuf),
    /// The file has the wrong length.
    #[error("{}: no secret of htc; remove it, and another is made", .0.display())]
    SecretDamaged(PathBuf),
}

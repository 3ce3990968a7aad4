//! Errors of files.

use std::io;
use std::path::{Path, PathBuf};

use htc_formats::htz::HtzError;
use thiserror::Error;

/// Error of a file besides models: a text, a report, a list of gates, the secret of the user.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum FileError {
    /// Unreadable file.
    #[error("{path}: cannot be read: {source}; {remedy}")]
    Read {
        path: PathBuf,
        source: io::Error,
        remedy: &'static str,
    },
    /// The file or folder cannot be written.
    #[error("{path}: cannot be written: {source}")]
    Write { path: PathBuf, source: io::Error },
    /// Not UTF-8.
    #[error(
        "{path}: not UTF-8 text: byte {offset} begins no character; convert it to UTF-8 (iconv)"
    )]
    NotUtf8 { path: PathBuf, offset: usize },
    /// The file is larger than its kind may be.
    #[error("{path}: {limit}")]
    TooLarge { path: PathBuf, limit: String },
    /// The file is not JSON of the expected kind.
    #[error(
        "{path}: expected {expected}, found at line {line}, column {column}: {message}; {remedy}"
    )]
    Syntax {
        path: PathBuf,
        expected: &'static str,
        line: usize,
        column: usize,
        message: String,
        remedy: &'static str,
    },
    /// The file lacks what it is read for, or is of another kind.
    #[error("{path}: expected {expected}, found {found}; {remedy}")]
    Unsuitable {
        path: PathBuf,
        expected: &'static str,
        found: String,
        remedy: &'static str,
    },
    /// The file is of a known kind and damaged.
    #[error("{path}: {kind}, and damaged: {what}; make it anew with {command}")]
    Damaged {
        path: PathBuf,
        kind: &'static str,
        what: String,
        command: &'static str,
    },
    /// Another version of htc wrote the file.
    #[error(
        "{path}: {kind} of another version, expected {expected}, found {found}; make it anew with {command}"
    )]
    Version {
        path: PathBuf,
        kind: &'static str,
        expected: u32,
        found: u64,
        command: &'static str,
    },
    /// The artifact is damaged.
    #[error(transparent)]
    Artifact(#[from] HtzError),
    /// There is no state folder.
    #[error(
        "neither XDG_STATE_HOME nor HOME is set, which say where a secret of this user may lie"
    )]
    NoStateFolder,
    /// The file or folder cannot be read or created.
    #[error("{path}: {source}")]
    Access { path: PathBuf, source: io::Error },
    /// The file is readable by others.
    #[error("{0}: others may read this secret of yours; remove it, and another is made")]
    ReadableByOthers(PathBuf),
    /// The file has the wrong length.
    #[error("{0}: no secret of htc; remove it, and another is made")]
    SecretDamaged(PathBuf),
}

impl FileError {
    /// Returns the constructor of [`FileError::Read`] for a path.
    pub fn read(path: &Path, remedy: &'static str) -> impl Fn(io::Error) -> FileError {
        move |source| FileError::Read {
            path: path.into(),
            source,
            remedy,
        }
    }

    /// Returns [`FileError::TooLarge`] for a path.
    pub fn too_large(path: &Path, limit: String) -> FileError {
        let path = path.into();
        FileError::TooLarge { path, limit }
    }

    /// Returns the constructor of [`FileError::Write`] for a path.
    pub fn write(path: &Path) -> impl Fn(io::Error) -> FileError {
        move |source| FileError::Write {
            path: path.into(),
            source,
        }
    }

    /// Returns the constructor of [`FileError::Access`] for a path.
    pub fn access(path: &Path) -> impl Fn(io::Error) -> FileError {
        move |source| FileError::Access {
            path: path.into(),
            source,
        }
    }

    /// Returns the error of JSON that does not parse, with its message as `show` shows it.
    pub fn syntax(
        path: &Path,
        expected: &'static str,
        error: &serde_json::Error,
        show: impl Fn(&str) -> String,
        remedy: &'static str,
    ) -> FileError {
        let message = error.to_string();
        let end = message.rfind(" at line ").unwrap_or(message.len());
        FileError::Syntax {
            path: path.into(),
            expected,
            line: error.line(),
            column: error.column(),
            message: show(&message[..end]),
            remedy,
        }
    }
}

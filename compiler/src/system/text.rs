//! Text files given by the caller.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use htc_formats::open;
use thiserror::Error;

/// Texts beyond this many bytes are refused: 1 GiB.
pub const MAX_TEXT: u64 = 1 << 30;

/// Why a text cannot be used.
#[derive(Debug, Error)]
pub enum TextError {
    /// It cannot be read.
    #[error("{path}: cannot be read: {source}; check the path")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is not UTF-8.
    #[error(
        "{path}: not UTF-8 text: byte {offset} begins no character; convert it to UTF-8 (iconv)"
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where the text breaks.
        offset: usize,
    },
    /// It is larger than [`MAX_TEXT`].
    #[error("{path}: larger than {MAX_TEXT} bytes; give a part of it")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a whole UTF-8 text from a file.
///
/// # Errors
/// [`TextError`] where it cannot be read, is too large or not UTF-8.
pub fn read(path: &Path) -> Result<String, TextError> {
    read_from(open(path)?, path)
}

/// Opens a text: a file, or what the shell writes for `<(command)`.
///
/// # Errors
/// [`TextError::Read`] where it is absent, unreadable, or no regular file.
pub fn open(path: &Path) -> Result<File, TextError> {
    open::stream(path).map_err(|error| TextError::Read {
        path: path.into(),
        source: error.into_io(),
    })
}

/// Reads a whole UTF-8 text from a stream; `name` stands for it in errors.
///
/// # Errors
/// As [`read`].
pub fn read_from(stream: impl Read, name: &Path) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    stream
        .take(MAX_TEXT + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| TextError::Read {
            path: name.into(),
            source,
        })?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(TextError::TooLarge { path: name.into() });
    }
    String::from_utf8(bytes).map_err(|error| TextError::NotUtf8 {
        path: name.into(),
        offset: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_that_breaks_the_text_is_named() {
        let error = read_from(&b"ab\xffcd"[..], Path::new("t")).unwrap_err();
        assert!(
            matches!(error, TextError::NotUtf8 { offset: 2, .. }),
            "{error}"
        );
        assert_eq!(
            read_from("häuser".as_bytes(), Path::new("t")).unwrap(),
            "häuser"
        );
    }

    #[test]
    fn an_endless_stream_is_refused() {
        let error = read_from(io::repeat(b'a'), Path::new("t")).unwrap_err();
        assert!(matches!(error, TextError::TooLarge { .. }), "{error}");
    }
}

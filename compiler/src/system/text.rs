//! Reading of text files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use htc_formats::open;

use super::error::FileError;

/// Maximum size of a text: 1 GiB.
pub const MAX_TEXT: u64 = 1 << 30;

/// Reads a file or a pipe, up to one byte beyond a limit.
pub fn read_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open::open_stream(path).map_err(|error| error.into_io())?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the message of an error of JSON without its place.
pub fn json_message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    message[..end].to_owned()
}

/// Reads a whole UTF-8 text from a file.
///
/// # Errors
/// [`FileError::Read`], [`FileError::TooLarge`] and [`FileError::NotUtf8`].
pub fn read(path: &Path) -> Result<String, FileError> {
    read_from(open(path)?, path)
}

/// Opens a text: a file or a pipe.
pub fn open(path: &Path) -> Result<File, FileError> {
    open::open_stream(path).map_err(|error| FileError::Read {
        path: path.into(),
        source: error.into_io(),
    })
}

/// Reads a whole UTF-8 text from a stream; `name` is for errors.
pub fn read_from(stream: impl Read, name: &Path) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    stream
        .take(MAX_TEXT + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| FileError::Read {
            path: name.into(),
            source,
        })?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(FileError::TooLarge { path: name.into() });
    }
    String::from_utf8(bytes).map_err(|error| FileError::NotUtf8 {
        path: name.into(),
        offset: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests;

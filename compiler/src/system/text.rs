//! Reading of text files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use htc_formats::open;

use super::error::FileError;

/// Maximum size of a text: 1 GiB.
pub const MAX_TEXT: u64 = 1 << 30;

const REMEDY: &str = "check the path";

/// Reads a file or a pipe of at most `most` bytes; `limit` says so, and `remedy` what to do about a
/// file that cannot be read.
///
/// # Errors
/// [`FileError::Read`] and [`FileError::TooLarge`].
pub fn read_bytes(
    path: &Path,
    most: u64,
    limit: impl FnOnce() -> String,
    remedy: &'static str,
) -> Result<Vec<u8>, FileError> {
    read_stream(open_file(path, remedy)?, path, most, limit, remedy)
}

fn read_stream(
    stream: impl Read,
    path: &Path,
    most: u64,
    limit: impl FnOnce() -> String,
    remedy: &'static str,
) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = stream.take(most + 1).read_to_end(&mut bytes);
    read.map_err(FileError::read(path, remedy))?;
    if bytes.len() as u64 > most {
        return Err(FileError::too_large(path, limit()));
    }
    Ok(bytes)
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
    open_file(path, REMEDY)
}

/// Opens a text; `remedy` says what to do if that fails.
pub(crate) fn open_file(path: &Path, remedy: &'static str) -> Result<File, FileError> {
    let opened = open::open_stream(path).map_err(|error| error.into_io());
    opened.map_err(FileError::read(path, remedy))
}

/// Reads a whole UTF-8 text from a stream; `name` is for errors.
pub fn read_from(stream: impl Read, name: &Path) -> Result<String, FileError> {
    let limit = || format!("larger than {MAX_TEXT} bytes; give a part of it");
    let bytes = read_stream(stream, name, MAX_TEXT, limit, REMEDY)?;
    String::from_utf8(bytes).map_err(|error| FileError::NotUtf8 {
        path: name.into(),
        offset: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests;

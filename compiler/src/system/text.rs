//! Reading of text files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use htc_formats::open;

use super::error::FileError;
use super::show::{file_name, format_count};

/// Maximum size of a text: 1 GiB.
pub const MAX_TEXT: u64 = 1 << 30;

const REMEDY: &str = "check the path";

const BYTE_ORDER_MARK: char = '\u{feff}';

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

/// A text that is measured or calibrated on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// The text without a byte order mark.
    pub text: String,
    /// Remarks on characters that editors hide.
    pub remarks: Vec<String>,
}

/// Reads a text to measure or to calibrate on. A byte order mark at its beginning is removed, as it
/// is not part of the text. Line ends are kept: models read CRLF as other tokens than LF.
///
/// # Errors
/// As [`read`].
pub fn read_corpus(path: &Path) -> Result<Corpus, FileError> {
    let mut text = read(path)?;
    let mut remarks = Vec::new();
    let name = file_name(path);
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
        remarks.push(format!(
            "{name}: removed the byte order mark at its beginning"
        ));
    }
    match text.matches("\r\n").count() {
        0 => {}
        lines => remarks.push(format!(
            "{name}: {} with CR LF, which the model reads as they are; if they should be LF, convert the text",
            format_count(lines, "line")
        )),
    }
    Ok(Corpus { text, remarks })
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

//! Errors of codecs.

use crate::bands::{CodeKind, GROUP_COLS, MAX_CLASSES, TABLES_VERSION};
use crate::block;
use crate::dtype::DType;

/// Error of decoding or encoding numbers, in blocks or in column groups, or of reading values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum CodecError {
    /// The number of bytes does not match the number of values.
    #[error(
        "{dtype}: {bytes} bytes and {numbers} numbers do not match; \
         {} numbers take {} bytes", dtype.block_len(), dtype.block_bytes()
    )]
    Length {
        /// The format.
        dtype: DType,
        /// Number of bytes.
        bytes: usize,
        /// Number of values.
        numbers: usize,
    },
    /// The format is read-only.
    #[error(
        "{dtype} cannot be written; formats to write are {}",
        block::join_names(block::writable_types())
    )]
    ReadOnlyType { dtype: DType },
    /// The block format has no code for a number.
    #[error("{dtype}: the number {value} at position {index} has no code; it must be finite and below {:e} in magnitude", block::magnitude_limit(*dtype))]
    NoCode {
        /// The format.
        dtype: DType,
        /// Index of the number.
        index: usize,
        /// The number.
        value: f32,
    },
    /// The length of an array is not that of a block.
    #[error("{dtype}: {found} {array_name} for a block of {expected}")]
    Block {
        /// The format.
        dtype: DType,
        /// Name of the array: values, importances, codes or bytes.
        array_name: &'static str,
        /// Expected length.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// An importance is negative or not finite.
    #[error(
        "{dtype}: the importance {value} at place {index} of a block; it must be finite and not negative"
    )]
    Importance {
        /// The format.
        dtype: DType,
        /// Index in the block.
        index: usize,
        /// The importance.
        value: f32,
    },
    /// The format has no such code.
    #[error("{dtype}: code {code} at place {place} of a block; its codes are 0 to {last}")]
    Code {
        /// The format.
        dtype: DType,
        /// Index in the block.
        place: usize,
        /// The code.
        code: u8,
        /// The largest code.
        last: u8,
    },
    /// The number of bytes does not match rows and columns.
    #[error(
        "bands: {rows} rows of {cols} columns have {expected} bytes with these codes, found {found}"
    )]
    ColumnGroupLength {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Expected number of bytes.
        expected: u64,
        /// Number of bytes found.
        found: u64,
    },
    /// A scale is infinite or NaN.
    #[error("bands: the scale of {axis} {index} is {value}, expected a finite number")]
    Scale {
        /// `row` or `column`.
        axis: &'static str,
        /// Index of the row or column.
        index: usize,
        /// The scale.
        value: f32,
    },
    /// The row is out of range, or the buffer has the wrong length.
    #[error(
        "row {row} of {rows} with {cols} columns does not fit a buffer of {buffer_len} numbers"
    )]
    Row {
        /// Requested row.
        row: usize,
        /// Rows of the matrix.
        rows: usize,
        /// Length of the buffer.
        buffer_len: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// The counts of a class map do not match its rows.
    #[error("bands: the map of the rows' classes contradicts itself before row {row}")]
    InconsistentClassMap {
        /// First row after the contradiction.
        row: usize,
    },
    /// No code of this kind has this number of bits.
    #[error("{kind} of {found} bits; there are {kind} of {} to {} bits", kind.bits().start(), kind.bits().end())]
    Bits { kind: CodeKind, found: u8 },
    /// The text names no code.
    #[error("{found:?} is no code of a band, as levels4 or trellis3 are")]
    UnknownCode { found: String },
    /// The text is no list of codes.
    #[error("codes of bands: expected {expected}, found {found:?}")]
    MalformedCodes { expected: String, found: String },
    /// This build does not have the tables.
    #[error(
        "codes of bands: tables of version {found:?}, this build has those up to {TABLES_VERSION}; update htc"
    )]
    Tables { found: String },
    /// Trellises with tables of different versions in one matrix.
    #[error(
        "codes of bands: trellises with tables of version {first} and of version {second}; expected one"
    )]
    Mixed { first: u8, second: u8 },
    /// The number of column groups does not match the width.
    #[error(
        "{cols} columns, {groups} bands: a matrix in bands has one for every {GROUP_COLS} columns, the last of them \
         padded, and one at least"
    )]
    Width { cols: usize, groups: usize },
    /// The padding does not match the width.
    #[error(
        "codes of bands: {found} columns of padding behind {cols} columns, expected {expected}, as in \
         2:t3x5,l4x1-20"
    )]
    Padding {
        /// Columns of the matrix.
        cols: usize,
        /// Padding that the width requires.
        expected: usize,
        /// Padding found.
        found: usize,
    },
    /// Invalid row classes.
    #[error(
        "classes of rows: found {found}, expected 2 to {MAX_CLASSES} classes of one width, with a row each at least"
    )]
    Classes {
        /// Description of the classes found.
        found: String,
    },
    /// Fewer bytes are left than needed.
    #[error(
        "{needed} bytes are needed at byte {offset} and {available} are left; \
         the file is truncated or damaged, copy or download it again"
    )]
    Truncated {
        /// Start of the read, relative to the bytes of the [`Cursor`](crate::wire::Cursor).
        offset: usize,
        /// Bytes needed.
        needed: u64,
        /// Bytes left.
        available: usize,
    },
    /// A text is not UTF-8.
    #[error("the text at byte {offset} is not UTF-8; the file is damaged")]
    NotUtf8 {
        /// Start of the text.
        offset: usize,
    },
    /// A boolean is neither 0 nor 1.
    #[error("the boolean at byte {offset} is {found}, expected 0 or 1; the file is damaged")]
    NotBool {
        /// Offset of the byte.
        offset: usize,
        /// Its value.
        found: u8,
    },
}

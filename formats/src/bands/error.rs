//! Errors of codes.

use super::{CodeKind, GROUP_COLS, MAX_CLASSES, TABLES_VERSION};

/// Error returned for an invalid code, or for codes that do not fit a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodesError {
    /// No code of this kind has this number of bits.
    #[error("{kind} of {found} bits; there are {kind} of {} to {} bits", kind.bits().start(), kind.bits().end())]
    Bits {
        /// Kind of the code.
        kind: CodeKind,
        /// Requested number of bits.
        found: u8,
    },
    /// The text names no code.
    #[error("{found:?} is no code of a band, as levels4 or trellis3 are")]
    Unknown {
        /// The text.
        found: String,
    },
    /// The text is no list of codes.
    #[error("codes of bands: expected {expected}, found {found:?}")]
    Malformed {
        /// Expected text.
        expected: String,
        /// Text found.
        found: String,
    },
    /// This build does not have the tables.
    #[error(
        "codes of bands: tables of version {found:?}, this build has those up to {TABLES_VERSION}; update htc"
    )]
    Tables {
        /// Version of the tables.
        found: String,
    },
    /// Trellises with tables of different versions in one matrix.
    #[error(
        "codes of bands: trellises with tables of version {first} and of version {second}; expected one"
    )]
    Mixed {
        /// Version of the first trellis.
        first: u8,
        /// Another version found.
        second: u8,
    },
    /// The number of column groups does not match the width.
    #[error(
        "{cols} columns, {groups} bands: a matrix in bands has one for every {GROUP_COLS} columns, the last of them \
         padded, and one at least"
    )]
    Width {
        /// Columns of the matrix.
        cols: usize,
        /// Number of codes.
        groups: usize,
    },
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
}

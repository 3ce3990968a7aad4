//! What is wrong with codes.

use super::{BAND, Kind, MAX_CLASSES, TABLES_VERSION};

/// What is no code, or does not fit a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodesError {
    /// A number of bits that no code of the kind has.
    #[error("{kind} of {found} bits; there are {kind} of {} to {} bits", kind.bits().start(), kind.bits().end())]
    Bits {
        /// The kind.
        kind: Kind,
        /// What was asked for.
        found: u8,
    },
    /// A text that names no code.
    #[error("{found:?} is no code of a band, as levels4 or trellis3 are")]
    Unknown {
        /// The text.
        found: String,
    },
    /// A text that is no list of codes.
    #[error("codes of bands: expected {expected}, found {found:?}")]
    List {
        /// What would do.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// Tables that this build does not have.
    #[error(
        "codes of bands: tables of version {found:?}, this build has those up to {TABLES_VERSION}; update htc"
    )]
    Tables {
        /// The version.
        found: String,
    },
    /// Trellises with tables of several versions in one matrix.
    #[error(
        "codes of bands: trellises with tables of version {first} and of version {other}; expected one"
    )]
    Mixed {
        /// The version of the first trellis.
        first: u8,
        /// Another one.
        other: u8,
    },
    /// A width that calls for another number of bands.
    #[error(
        "{cols} columns, {bands} bands: a matrix in bands has one for every {BAND} columns, the last of them \
         padded, and one at least"
    )]
    Width {
        /// Columns of the matrix.
        cols: usize,
        /// Bands that have a code.
        bands: usize,
    },
    /// As many bands as a width calls for, of which the last has another padding.
    #[error(
        "codes of bands: {found} columns of padding behind {cols} columns, expected {expected}, as in \
         2:t3x5,l4x1-20"
    )]
    Padding {
        /// Columns of the matrix.
        cols: usize,
        /// Columns that fill its last band up.
        expected: usize,
        /// Those that the codes say.
        found: usize,
    },
    /// Classes of rows that are none.
    #[error(
        "classes of rows: found {found}, expected 2 to {MAX_CLASSES} classes of one width, with a row each at least"
    )]
    Classes {
        /// What was found.
        found: String,
    },
}

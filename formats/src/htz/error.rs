//! Errors of reading and writing artifacts.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::{Digest, FORMAT_MAJOR, MAX_MANIFEST_BYTES, SectionEntry, TensorEntry};
use crate::CodecError;
use crate::escape::escape_truncated;
use crate::learnt::VERSION;
use crate::limits::MAX_TRAINED_DRAFT_BYTES;
use crate::model::HyperError;
use crate::open::OpenError;
use crate::vocab::VocabularyError;

/// Error returned when an artifact or a file of a trained draft is rejected or cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HtzError {
    /// The error was found in this file.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The artifact.
        path: PathBuf,
        /// The error.
        error: Box<HtzError>,
    },
    /// The file is no artifact.
    #[error("not an .htz artifact: it begins with {found}; make one with `htc compile`")]
    Magic {
        /// First bytes, escaped.
        found: String,
    },
    /// Bytes do not decode.
    #[error(transparent)]
    Decode(#[from] CodecError),
    /// The major version is not supported.
    #[error(
        "format {found}.x is not supported, only 1.x and {FORMAT_MAJOR}.x; use the release of htc \
         that made the artifact, or compile the model again"
    )]
    Major {
        /// Major version of the file.
        found: u16,
    },
    /// A field of the header is invalid.
    #[error("header: {field} is {found}, expected {expected}; make the artifact again")]
    Header {
        /// Name of the field.
        field: &'static str,
        /// Expected value.
        expected: String,
        /// Value found.
        found: u64,
    },
    /// The length of the file is wrong.
    #[error(
        "the file has {found} bytes, expected {expected}; it was not copied completely, copy it again"
    )]
    FileLength {
        /// Expected bytes.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The manifest is not valid JSON for its schema.
    #[error("the manifest cannot be read: {detail}; make the artifact again")]
    ManifestSyntax {
        /// Message of the parser, on one line.
        detail: String,
    },
    /// A feature is used but not required.
    #[error(
        "the artifact uses the feature {feature:?} and does not require it; \
         the program that wrote it is faulty, write it again"
    )]
    FeatureNotRequired {
        /// The feature.
        feature: String,
    },
    /// The artifact requires an unknown feature or section.
    #[error(
        "the artifact (format {major}.{minor}) needs {feature:?}, which this build does not know; update htc"
    )]
    Unsupported {
        /// The feature or section.
        feature: String,
        /// Major version of the file.
        major: u16,
        /// Minor version of the file.
        minor: u16,
    },
    /// A hyper-parameter is invalid.
    #[error(transparent)]
    Hyper(#[from] HyperError),
    /// The vocabulary is absent, inconsistent, or does not match the embedding.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// A tensor is missing, superfluous, repeated or out of order.
    #[error("tensor table: entry {index} is {found}, expected {expected}")]
    TensorOrder {
        /// Index in the table.
        index: usize,
        /// Roles allowed there.
        expected: String,
        /// Role found.
        found: String,
    },
    /// A property of a record is invalid or contradicts the rest of the artifact.
    #[error("{record}: {property} is {found}, expected {expected}")]
    Property {
        /// The record.
        record: Record,
        /// Name of the property, for example `treatment.shrinkage`.
        property: &'static str,
        /// Expected value.
        expected: String,
        /// Value found.
        found: String,
    },
    /// The record of the source's weights is invalid or contradicts the artifact.
    #[error("source: {fault}")]
    Source {
        /// The error.
        fault: Box<HtzError>,
    },
    /// The header, the manifest, a tensor or a section does not match its digest.
    #[error(
        "{item} is damaged: its digest is {found}, it should be {expected}; copy the file again"
    )]
    Digest {
        /// The item: `the header`, `tensor blk.0.attn_q.weight`, `section tokenizer`.
        item: String,
        /// Stored digest.
        expected: Digest,
        /// Computed digest.
        found: Digest,
    },
    /// A padding byte is not zero.
    #[error(
        "the padding is damaged: byte {offset} is {found:#04x}, expected 0x00; copy the file again"
    )]
    Padding {
        /// Offset in the file.
        offset: u64,
        /// The byte.
        found: u8,
    },

    /// A tensor was written out of order.
    #[error("wrote {found}, but it is the turn of {expected}")]
    OutOfOrder {
        /// Expected tensor.
        expected: String,
        /// Tensor written.
        found: String,
    },
    /// The model has too many matrices for one artifact.
    #[error(
        "the manifest would have {found} bytes, expected at most {MAX_MANIFEST_BYTES}: the model \
         has too many matrices for one artifact; compile without `with_source`, or choose a smaller model"
    )]
    ManifestTooLarge {
        /// Bytes needed.
        found: u64,
    },
    /// The final manifest exceeds its reserved space.
    #[error(
        "the manifest needs {needed} bytes and {reserved} were reserved; put notes into the draft"
    )]
    ManifestSpace {
        /// Bytes reserved.
        reserved: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The file is not one of a trained draft.
    #[error("not a trained draft; pass another file, or delete this one to start over")]
    NotTrainedDraft,
    /// The version of a file of a trained draft is not supported.
    #[error("trained draft of version {found}, expected {VERSION}; delete the file to start over")]
    TrainedDraftVersion {
        /// Version of the file.
        found: u16,
    },
    /// A file of a trained draft is too large.
    #[error("the trained draft has {found} bytes, expected at most {MAX_TRAINED_DRAFT_BYTES}")]
    TrainedDraftTooLarge {
        /// Bytes of the file.
        found: u64,
    },
    /// The content of a file of a trained draft is invalid.
    #[error("the trained draft is damaged: {damage}; delete the file to start over")]
    DamagedTrainedDraft {
        /// Description of the error.
        damage: String,
    },
    /// The file already exists.
    #[error("{} exists already; choose another name or allow overwriting", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The path cannot name an artifact.
    #[error("{} is {found}, not the name of a file; choose another name", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Kind of file found.
        found: &'static str,
    },
    /// The folder does not exist.
    #[error("the folder {} does not exist; create it first", path.display())]
    FolderMissing {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is not writable.
    #[error("the folder {} cannot be written to ({source}); choose another folder", path.display())]
    NotWritable {
        /// The folder.
        path: PathBuf,
        /// System error.
        source: io::Error,
    },
    /// The disk is full.
    #[error("no space left for {} ({needed} bytes); free some or choose another disk", path.display())]
    DiskFull {
        /// The artifact.
        path: PathBuf,
        /// Bytes of the whole artifact.
        needed: u64,
    },
    /// The file cannot be opened or mapped.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Any other failure of the system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Action attempted.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// System error.
        source: io::Error,
    },
}

/// Record of an artifact in which an error was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The tensor with this role.
    Tensor(String),
    /// The section with this name.
    Section(String),
    /// This record of the plan, for example `blk.3.attn_q`.
    Plan(String),
    /// This record of the geometry, for example `blk.3.attn_q`.
    Geometry(String),
    /// The compiled kernels.
    Kernels,
    /// The provenance.
    Provenance,
    /// The quality.
    Quality,
    /// The active-fraction points.
    ActiveFraction,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Tensor(role) => write!(f, "tensor {role}"),
            Record::Section(name) => write!(f, "section {name:?}"),
            Record::Plan(place) => write!(f, "plan, {place}"),
            Record::Geometry(place) => write!(f, "geometry, {place}"),
            Record::Kernels => f.write_str("compiled kernels"),
            Record::Provenance => f.write_str("provenance"),
            Record::Quality => f.write_str("quality"),
            Record::ActiveFraction => f.write_str("dial"),
        }
    }
}

impl Record {
    pub(super) fn error(
        &self,
        property: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> HtzError {
        HtzError::Property {
            record: self.clone(),
            property,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    pub(super) fn expect_equal<T: PartialEq + ToString>(
        &self,
        property: &'static str,
        expected: T,
        found: T,
    ) -> Result<(), HtzError> {
        if expected == found {
            return Ok(());
        }
        Err(self.error(property, expected, found))
    }
}

impl TensorEntry {
    pub(super) fn error(
        &self,
        property: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> HtzError {
        Record::Tensor(self.role.to_string()).error(property, expected, found)
    }
}

impl SectionEntry {
    pub(super) fn error(
        &self,
        property: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> HtzError {
        Record::Section(escape_truncated(&self.name)).error(property, expected, found)
    }
}

impl HtzError {
    /// Returns the error without the name of the file.
    pub fn without_path(&self) -> &HtzError {
        match self {
            HtzError::InFile { error: fault, .. } => fault.without_path(),
            other => other,
        }
    }

    /// Adds the name of the file.
    pub fn in_file(self, path: &Path) -> HtzError {
        HtzError::InFile {
            path: path.to_owned(),
            error: Box::new(self),
        }
    }
}

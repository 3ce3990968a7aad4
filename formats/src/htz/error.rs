//! What can be wrong with an artifact, or with writing one.

use std::io;
use std::path::{Path, PathBuf};

use super::Digest;
use crate::map::MapError;
use crate::model::HyperError;
use crate::vocab::VocabularyError;
use crate::wire::WireError;

/// Why an artifact was refused or could not be written.
///
/// Every message is one line and names the remedy where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HtzError {
    /// The fault was found in this file.
    #[error("{}: {fault}", path.display())]
    InFile {
        /// The artifact.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<HtzError>,
    },
    /// The file is something else.
    #[error("not an .htz artifact: it begins with {found}; make one with `htc compile`")]
    Magic {
        /// The first bytes, escaped.
        found: String,
    },
    /// The file ends within the header.
    #[error(transparent)]
    Truncated(#[from] WireError),
    /// The header does not match its own digest.
    #[error(
        "the header is damaged: its digest is {found}, it should be {expected}; copy the file again"
    )]
    HeaderDigest {
        /// Digest stored in the header.
        expected: Digest,
        /// Digest of the header.
        found: Digest,
    },
    /// The file is of another major version.
    #[error(
        "format {found}.x is not supported, only {supported}.x; use the release of htc that made \
         the artifact, or compile the model again"
    )]
    Major {
        /// Major version that this build reads.
        supported: u16,
        /// Major version of the file.
        found: u16,
    },
    /// A field of the header has an impossible value.
    #[error("header: {field} is {found}, expected {expected}; make the artifact again")]
    Header {
        /// Name of the field.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: u64,
    },
    /// The file was cut off, or has bytes to spare.
    #[error(
        "the file has {found} bytes, expected {expected}; it was not copied completely, copy it again"
    )]
    FileLength {
        /// Bytes that there should be.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// The manifest does not match its digest.
    #[error(
        "the manifest is damaged: its digest is {found}, it should be {expected}; copy the file again"
    )]
    ManifestDigest {
        /// Digest stored in the header.
        expected: Digest,
        /// Digest of the manifest.
        found: Digest,
    },
    /// The manifest is not the JSON it should be.
    #[error("the manifest cannot be read: {detail}; make the artifact again")]
    ManifestSyntax {
        /// What the parser said, on one line.
        detail: String,
    },
    /// The manifest does not say that a reader must know something that is in it.
    #[error(
        "the artifact uses the feature {feature:?} and does not require it; \
         the program that wrote it is faulty, write it again"
    )]
    Undeclared {
        /// The feature.
        feature: String,
    },
    /// The artifact needs something that this build does not know.
    #[error(
        "the artifact (format {major}.{minor}) needs {feature:?}, which this build does not know; update htc"
    )]
    Unsupported {
        /// The feature or the section.
        feature: String,
        /// Major version of the file.
        major: u16,
        /// Minor version of the file.
        minor: u16,
    },
    /// A hyper-parameter is impossible.
    #[error(transparent)]
    Hyper(#[from] HyperError),
    /// The vocabulary is absent or contradicts itself or the embedding.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// A tensor is missing, superfluous, repeated or out of order.
    #[error("tensor table: entry {index} is {found}, expected {expected}")]
    TensorOrder {
        /// Index in the table.
        index: usize,
        /// Roles that may stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A property of a tensor contradicts another or the hyper-parameters.
    #[error("tensor {tensor}: {property} is {found}, expected {expected}")]
    Tensor {
        /// Role of the tensor.
        tensor: String,
        /// Which property.
        property: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A property of a section is impossible.
    #[error("section {section:?}: {property} is {found}, expected {expected}")]
    Section {
        /// Name of the section.
        section: String,
        /// Which property.
        property: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The plan contradicts the tensors.
    #[error("plan, {place}: {property} is {found}, expected {expected}")]
    Plan {
        /// Which record, for example `layers.3.q`.
        place: String,
        /// Which property.
        property: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The geometry record is impossible or contradicts the tensors.
    #[error("geometry, {place}: {property} is {found}, expected {expected}")]
    Geometry {
        /// Which record, for example `layers.3.q`.
        place: String,
        /// Which property.
        property: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A property of what the artifact was made from is impossible.
    #[error("provenance: {property} is {found}, expected {expected}")]
    Provenance {
        /// Which property, for example `treatment.shrinkage`.
        property: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The quality record is impossible.
    #[error("quality: {property} is {found}, expected {expected}")]
    Quality {
        /// Which property, for example `kl.interval`.
        property: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The points of the dial are none of this artifact.
    #[error("dial: {property} is {found}, expected {expected}")]
    Dial {
        /// Which property.
        property: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// What is said of the source's weights is impossible, or contradicts what lies in the artifact.
    #[error("source: {fault}")]
    OfSource {
        /// What is wrong with its tensors.
        fault: Box<HtzError>,
    },
    /// The bytes of a tensor or section do not match their digest.
    #[error(
        "{item} is damaged: its digest is {found}, it should be {expected}; copy the file again"
    )]
    ItemDigest {
        /// `tensor layers.0.q.weight`, `section tokenizer`.
        item: String,
        /// Digest in the manifest.
        expected: Digest,
        /// Digest of the bytes.
        found: Digest,
    },
    /// A byte between two items is not zero.
    #[error(
        "the padding is damaged: byte {offset} is {found:#04x}, expected 0x00; copy the file again"
    )]
    Padding {
        /// Bytes from the beginning of the file.
        offset: u64,
        /// What stands there.
        found: u8,
    },

    /// A tensor was written out of turn.
    #[error("wrote {found}, but it is the turn of {expected}")]
    WrongTurn {
        /// Whose turn it is.
        expected: String,
        /// What was written.
        found: String,
    },
    /// What was filled in at the end does not fit the room that was reserved for it.
    #[error(
        "the manifest needs {needed} bytes and {reserved} were reserved; put notes into the draft"
    )]
    ManifestRoom {
        /// Bytes reserved.
        reserved: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// There is a file already.
    #[error("{} exists already; choose another name or allow overwriting", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The path cannot be the name of an artifact.
    #[error("{} is {found}, not the name of a file; choose another name", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// There is no such folder.
    #[error("the folder {} does not exist; create it first", path.display())]
    FolderMissing {
        /// The folder.
        path: PathBuf,
    },
    /// The folder may not be written to.
    #[error("the folder {} cannot be written to ({source}); choose another folder", path.display())]
    NotWritable {
        /// The folder.
        path: PathBuf,
        /// What the system said.
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
    /// The file cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Any other failure of the system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HtzError {
    /// The fault itself, without the file it was found in.
    pub fn fault(&self) -> &HtzError {
        match self {
            HtzError::InFile { fault, .. } => fault.fault(),
            other => other,
        }
    }

    /// Names the file the fault was found in.
    pub fn in_file(self, path: &Path) -> HtzError {
        HtzError::InFile {
            path: path.to_owned(),
            fault: Box::new(self),
        }
    }
}

//! Source weights in an artifact, in optional sections: one per tensor, or several if it exceeds
//! the maximum section size. Tensors common to both models are stored once.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::check;
use super::layout::{ALIGNMENT, MAX_SECTION_BYTES};
use super::{Digest, Encoding, Htz, HtzError, Manifest, SectionEntry, TensorEntry};
use crate::DType;
use crate::model::{MatrixId, Part, Role};
use crate::source::ModelFile;

pub(super) const SECTION_PREFIX: &str = "source.";

const _: () = assert!(MAX_SECTION_BYTES.is_multiple_of(ALIGNMENT));

/// Source model stored in an artifact (1.13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SourceRecord {
    /// All tensors of the source's forward pass, in execution order.
    pub tensors: Vec<SourceTensor>,
}

/// A tensor of the source, in its source type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SourceTensor {
    /// Name in the source; informative only.
    pub name: String,
    /// Role in the source.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub cols: u64,
    /// The bytes are those of the artifact's tensor with the same role.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

impl SourceTensor {
    pub(super) fn entry(&self) -> TensorEntry {
        let mut entry = TensorEntry::new(&self.name, self.role, self.dtype, 0, 0);
        (entry.rows, entry.cols) = (self.rows, self.cols);
        entry.length = entry.stored_bytes().unwrap_or(0);
        entry
    }

    /// Iterates over the lengths of its sections, possibly more than any file has.
    fn section_lengths(&self) -> impl Iterator<Item = u64> {
        let length = if self.shared { 0 } else { self.entry().length };
        let starts = (0..length.div_ceil(MAX_SECTION_BYTES)).map(|part| part * MAX_SECTION_BYTES);
        starts.map(move |start| (length - start).min(MAX_SECTION_BYTES))
    }

    fn section_name(&self, part: usize) -> String {
        match part {
            0 => format!("{SECTION_PREFIX}{}", self.role),
            part => format!("{SECTION_PREFIX}{}.{part}", self.role),
        }
    }
}

impl SourceRecord {
    /// Creates the record of a source; tensors with equal bytes and role are shared.
    pub fn new(source: &ModelFile, artifact: &Htz) -> SourceRecord {
        let own = by_role(artifact.manifest());
        let tensors = source.tensors.iter().map(|tensor| {
            let mut found = SourceTensor {
                name: tensor.name.clone(),
                role: tensor.role,
                dtype: tensor.dtype,
                rows: tensor.rows as u64,
                cols: tensor.cols as u64,
                shared: false,
            };
            let same = |entry: &&TensorEntry| {
                has_same_type_and_shape(entry, &found)
                    && artifact.tensor_bytes(entry) == source.bytes(tensor)
            };
            found.shared = own.get(&tensor.role).filter(|entry| same(entry)).is_some();
            found
        });
        SourceRecord {
            tensors: tensors.collect(),
        }
    }

    /// Returns the source's tensor table without offsets.
    pub fn entries(&self) -> Vec<TensorEntry> {
        self.tensors.iter().map(SourceTensor::entry).collect()
    }

    pub(super) fn sections(&self) -> Vec<SectionEntry> {
        let of_tensor = |tensor: &SourceTensor| {
            let parts = tensor.section_lengths().enumerate();
            let sections = parts.map(|(part, length)| SectionEntry {
                name: tensor.section_name(part),
                required: false,
                encoding: Encoding::Raw,
                offset: 0,
                length,
                decoded_length: length,
                sha256: Digest::default(),
            });
            sections.collect::<Vec<_>>()
        };
        self.tensors.iter().flat_map(of_tensor).collect()
    }
}

impl<B: Deref<Target: Deref<Target = [u8]>>> Htz<B> {
    /// Returns the size of the artifact without its source.
    pub fn bytes_without_source(&self) -> u64 {
        let first = self.manifest().source_sections().first();
        first.map_or(self.file_length(), |entry| entry.offset)
    }
}

impl Manifest {
    /// Returns the bytes of the sections with source weights.
    pub fn source_bytes(&self) -> u64 {
        let sections = self.source_sections().iter();
        sections.fold(0, |sum, entry| sum.saturating_add(entry.length))
    }

    /// Returns the sections with source weights.
    pub fn source_sections(&self) -> &[SectionEntry] {
        let first = match self.source {
            Some(_) => first_section(&self.sections),
            None => self.sections.len(),
        };
        self.sections.get(first..).unwrap_or_default()
    }

    /// Returns the offset of each source tensor in the file; empty without a source.
    pub(super) fn source_offsets(&self) -> Result<Vec<u64>, HtzError> {
        let Some(record) = &self.source else {
            return Ok(Vec::new());
        };
        let own = by_role(self);
        let mut sections = self.source_sections().iter();
        let mut places = Vec::with_capacity(record.tensors.len());
        for tensor in &record.tensors {
            let mut offset = 0;
            if tensor.shared {
                let found = own
                    .get(&tensor.role)
                    .filter(|own| has_same_type_and_shape(own, tensor));
                let Some(found) = found else {
                    let expected = format!("one of {} with its type and shape", tensor.role);
                    return Err(fault(tensor, "tensor that it shares", expected, "none"));
                };
                offset = found.offset;
            }
            for (part, length) in tensor.section_lengths().enumerate() {
                let expected = tensor.section_name(part);
                let Some(found) = sections.next() else {
                    return Err(fault(tensor, "section", expected, "missing"));
                };
                if found.name != expected || found.encoding != Encoding::Raw {
                    let found = format!("{:?}", found.name);
                    let expected = format!("{expected:?}, raw");
                    return Err(fault(tensor, "section", expected, found));
                }
                if found.length != length {
                    return Err(fault(tensor, "length of a section", length, found.length));
                }
                if part == 0 {
                    offset = found.offset;
                }
            }
            places.push(offset);
        }
        match sections.next() {
            None => Ok(places),
            Some(entry) => {
                Err(entry.error("place", "none behind the source's tensors", "behind them"))
            }
        }
    }

    pub(super) fn check_source(&self) -> Result<(), HtzError> {
        let Some(record) = &self.source else {
            return Ok(());
        };
        let in_source = |fault| HtzError::Source {
            fault: Box::new(fault),
        };
        if let Some(tensor) = record
            .tensors
            .iter()
            .find(|t| !is_uncompressed_role(t.role))
        {
            let expected = "one of a model that is not compressed";
            return Err(fault(tensor, "role", expected, tensor.role));
        }
        let entries = record.entries();
        check::check_tensor_table(&self.hyper, &entries).map_err(in_source)?;
        for feature in Manifest::required_features(&self.hyper, &entries) {
            if !self.requires.contains(&feature) {
                return Err(HtzError::FeatureNotRequired { feature });
            }
        }
        self.source_offsets().map(|_| ())
    }
}

fn first_section(sections: &[SectionEntry]) -> usize {
    let first = sections
        .iter()
        .position(|of| of.name.starts_with(SECTION_PREFIX));
    first.unwrap_or(sections.len())
}

fn by_role(manifest: &Manifest) -> BTreeMap<Role, &TensorEntry> {
    let tensors = manifest.tensors.iter();
    tensors.map(|entry| (entry.role, entry)).collect()
}

fn has_same_type_and_shape(entry: &TensorEntry, tensor: &SourceTensor) -> bool {
    (entry.dtype, entry.rows, entry.cols) == (tensor.dtype, tensor.rows, tensor.cols)
        && entry.codes.is_none()
}

fn is_uncompressed_role(role: Role) -> bool {
    match role {
        Role::Basis { .. }
        | Role::OutputFactor { .. }
        | Role::KvBasis { .. }
        | Role::KvEnergies { .. }
        | Role::Refinement { .. } => false,
        role => MatrixId::from_role(role)
            .is_none_or(|(_, part)| matches!(part, Part::Weight | Part::Bias)),
    }
}

fn fault(
    tensor: &SourceTensor,
    property: &'static str,
    expected: impl Display,
    found: impl Display,
) -> HtzError {
    HtzError::Source {
        fault: Box::new(tensor.entry().error(property, expected, found)),
    }
}

//! Reader of artifacts: validation, access and verification.

use std::fmt::Display;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use super::layout::{Header, KERNELS, METADATA_SECTIONS, TOKENIZER};
use super::{
    HtzError, KernelCode, Manifest, SectionEntry, TensorEntry, check, features, section, version_1,
};
use crate::bands;
use crate::bounded_json;
use crate::escape::escape_truncated;
use crate::limits::MAX_TEXTS_OF_MANIFEST;
use crate::map::MappedFile;
use crate::metadata::SourceMetadata;
use crate::vocab::{Vocabulary, VocabularyError};

/// A validated artifact: its bytes and its manifest.
///
/// [`verify_all`](Htz::verify_all) checks the digests of all bytes. `B` holds the bytes: a shared
/// mapping, or for instance `&Vec<u8>`.
#[derive(Debug)]
pub struct Htz<B = Arc<MappedFile>> {
    bytes: B,
    manifest: Manifest,
    format: (u16, u16),
    data_offset: usize,
}

impl Htz {
    /// Maps and validates the artifact at `path`.
    ///
    /// # Errors
    /// [`HtzError::Open`], and the errors of [`parse`](Htz::parse) inside [`HtzError::InFile`].
    pub fn open(path: impl AsRef<Path>) -> Result<Htz, HtzError> {
        Htz::from_map(MappedFile::open(path)?)
    }

    /// Validates the artifact in a mapped file.
    pub fn from_map(map: MappedFile) -> Result<Htz, HtzError> {
        let map = Arc::new(map);
        Htz::parse(Arc::clone(&map)).map_err(|fault| fault.in_file(map.path()))
    }

    /// Header and manifest; their digests cover the whole artifact.
    pub fn header_and_manifest(&self) -> &[u8] {
        self.bytes.get(..self.data_offset).unwrap_or(&[])
    }

    /// The shared mapping.
    pub fn map(&self) -> &Arc<MappedFile> {
        &self.bytes
    }
}

impl<B: Deref<Target: Deref<Target = [u8]>>> Htz<B> {
    /// Validates the artifact in `bytes`, in the order of the specification.
    pub fn parse(bytes: B) -> Result<Htz<B>, HtzError> {
        let file: &[u8] = &bytes;
        let header = Header::decode(file)?;
        let data_offset = usize::try_from(header.data_offset()).unwrap_or(usize::MAX);
        let text = file.get(super::HEADER_BYTES..data_offset).unwrap_or(&[]);
        header.manifest_sha256.verify("the manifest", text)?;
        let manifest = parse_manifest(text, &header)?;
        check::check_contents(&manifest)?;
        let end = check::check_layout(&manifest, header.data_offset())?;
        if end != header.file_length {
            return Err(HtzError::FileLength {
                expected: end,
                found: header.file_length,
            });
        }
        Ok(Htz {
            bytes,
            manifest,
            format: (header.major, header.minor),
            data_offset,
        })
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(super) fn file_length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Major and minor version of the file's format.
    pub fn format(&self) -> (u16, u16) {
        self.format
    }

    /// Returns the bytes of a tensor of this artifact.
    pub fn tensor_bytes(&self, entry: &TensorEntry) -> &[u8] {
        self.range(entry.offset, entry.length)
    }

    /// Returns the stored bytes of a section of this artifact.
    pub fn section_bytes(&self, entry: &SectionEntry) -> &[u8] {
        self.range(entry.offset, entry.length)
    }

    fn range(&self, offset: u64, length: u64) -> &[u8] {
        let range = || -> Option<Range<usize>> {
            let start = usize::try_from(offset).ok()?;
            Some(start..start.checked_add(usize::try_from(length).ok()?)?)
        };
        range()
            .and_then(|range| self.bytes.get(range))
            .unwrap_or(&[])
    }

    /// Verifies the digest of a section and decodes it.
    ///
    /// # Errors
    /// [`HtzError::Digest`], [`HtzError::Property`].
    pub fn section(&self, entry: &SectionEntry) -> Result<Vec<u8>, HtzError> {
        self.verify_section(entry)?;
        section::decode(entry, self.section_bytes(entry))
    }

    /// Returns the vocabulary.
    pub fn vocabulary(&self) -> Result<Vocabulary, HtzError> {
        let entry = self
            .manifest
            .section(TOKENIZER)
            .ok_or(VocabularyError::Absent)?;
        let Manifest {
            hyper, requires, ..
        } = &self.manifest;
        section::parse_vocabulary(&self.section(entry)?, hyper.vocabulary, requires)
    }

    /// Returns the GPU kernels compiled ahead of time, if any.
    pub fn kernels(&self) -> Result<Option<KernelCode>, HtzError> {
        let Some(entry) = self.manifest.section(KERNELS) else {
            return Ok(None);
        };
        section::parse_kernels(&self.section(entry)?).map(Some)
    }

    /// Returns the metadata of the source, if the artifact holds them.
    ///
    /// # Errors
    /// [`HtzError::Digest`], [`HtzError::Property`].
    pub fn source_metadata(&self) -> Result<Option<SourceMetadata>, HtzError> {
        let is_metadata = |name: &str| METADATA_SECTIONS.contains(&name);
        let mut sections = self.manifest.sections.iter();
        let Some(entry) = sections.find(|entry| is_metadata(&entry.name)) else {
            return Ok(None);
        };
        section::check_length_of_metadata(&entry.name, entry.decoded_length)?;
        section::parse_source_metadata(&entry.name, &self.section(entry)?).map(Some)
    }

    /// Compares a tensor of this artifact with its digest.
    ///
    /// # Errors
    /// [`HtzError::Digest`].
    pub fn verify_tensor(&self, entry: &TensorEntry) -> Result<(), HtzError> {
        let item = format_args!("tensor {}", entry.role);
        entry.sha256.verify(item, self.tensor_bytes(entry))
    }

    /// Compares a section of this artifact with its digest.
    ///
    /// # Errors
    /// [`HtzError::Digest`].
    pub fn verify_section(&self, entry: &SectionEntry) -> Result<(), HtzError> {
        let item = format!("section {}", escape_truncated(&entry.name));
        entry.sha256.verify(item, self.section_bytes(entry))
    }

    /// Checks that all padding bytes are zero.
    ///
    /// # Errors
    /// [`HtzError::Padding`].
    pub fn verify_padding(&self) -> Result<(), HtzError> {
        let tensors = self.manifest.tensors.iter().map(|e| (e.offset, e.length));
        let sections = self.manifest.sections.iter().map(|e| (e.offset, e.length));
        let mut end = self.data_offset as u64;
        for (offset, length) in tensors.chain(sections) {
            let padding = self.range(end, offset.saturating_sub(end));
            if let Some(at) = padding.iter().position(|&byte| byte != 0) {
                return Err(HtzError::Padding {
                    offset: end + at as u64,
                    found: padding[at],
                });
            }
            end = offset.saturating_add(length);
        }
        Ok(())
    }

    /// Verifies the digests of all tensors and sections, and the padding.
    ///
    /// `progress` receives every item, damaged or not; the first error is returned.
    ///
    /// # Errors
    /// [`HtzError::Digest`] or [`HtzError::Padding`].
    pub fn verify_all(&self, mut progress: impl FnMut(VerifiedItem<'_>)) -> Result<(), HtzError> {
        let mut first = Ok(());
        let mut report = |item: String, bytes: u64, result: Result<(), HtzError>| {
            progress(VerifiedItem {
                item: &item,
                bytes,
                error: result.as_ref().err(),
            });
            if first.is_ok() {
                first = result;
            }
        };
        // Items are disjoint.
        let mut padding = (self.bytes.len() - self.data_offset) as u64;
        for entry in &self.manifest.tensors {
            let item = format!("tensor {}", entry.role);
            report(item, entry.length, self.verify_tensor(entry));
            padding -= entry.length;
        }
        for entry in &self.manifest.sections {
            let item = format!("section {}", escape_truncated(&entry.name));
            report(item, entry.length, self.verify_section(entry));
            padding -= entry.length;
        }
        report("padding".to_owned(), padding, self.verify_padding());
        first
    }
}

/// Report of [`Htz::verify_all`] on an item.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedItem<'a> {
    /// `tensor blk.0.attn_q.weight`, `section tokenizer` or `padding`.
    pub item: &'a str,
    /// Number of bytes read.
    pub bytes: u64,
    /// The error, if any.
    pub error: Option<&'a HtzError>,
}

/// Parses the manifest. The bytes of the file bound the column groups that it describes: a short
/// text can stand for many, and each has a byte at least.
fn parse_manifest(text: &[u8], header: &Header) -> Result<Manifest, HtzError> {
    #[derive(Deserialize)]
    struct Requirements {
        #[serde(deserialize_with = "bounded_json::list::<_, _, MAX_TEXTS_OF_MANIFEST>")]
        requires: Vec<String>,
        sections: Vec<Section>,
    }
    #[derive(Deserialize)]
    struct Section {
        name: String,
        required: bool,
    }
    let syntax = |error: &dyn Display| HtzError::ManifestSyntax {
        detail: escape_truncated(&error.to_string()),
    };
    // So that skipped keys are checked too.
    let text = str::from_utf8(text).map_err(|error| syntax(&error))?;
    if !text.trim_end_matches(' ').ends_with('}') {
        return Err(syntax(
            &"something other than spaces follows the JSON object",
        ));
    }
    // A feature may change the rest of the manifest.
    let needs: Requirements = serde_json::from_str(text).map_err(|error| syntax(&error))?;
    let sections = needs.sections.iter().map(|s| (s.name.as_str(), s.required));
    features::check_requirements(&needs.requires, sections, header)?;
    let groups = count_column_groups(text).map_err(|error| syntax(&error))?;
    let file_bytes = header.file_length;
    if groups as u64 > file_bytes {
        return Err(syntax(&format!(
            "codes describe {groups} column groups, expected at most {file_bytes}, the bytes of \
             the file"
        )));
    }
    let manifest = match header.major {
        1 => version_1::parse_manifest(text),
        _ => serde_json::from_str(text),
    };
    manifest.map_err(|error| syntax(&error))
}

/// Returns the number of column groups of all tensors, without expanding their codes or keeping the
/// tensors.
fn count_column_groups(manifest: &str) -> serde_json::Result<usize> {
    #[derive(Deserialize)]
    struct Groups {
        #[serde(deserialize_with = "sum_column_groups")]
        tensors: usize,
    }
    Ok(serde_json::from_str::<Groups>(manifest)?.tensors)
}

fn sum_column_groups<'de, D: Deserializer<'de>>(tensors: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    struct Tensor {
        codes: Option<String>,
    }
    bounded_json::fold(tensors, 0_usize, |groups, Tensor { codes }| {
        let of_tensor = codes.map_or(0, |codes| bands::count_groups(&codes));
        *groups = groups.saturating_add(of_tensor);
        Ok(())
    })
}

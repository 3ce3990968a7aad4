//! Sections: data other than tensors, encoded and decoded within bounds.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read as _;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

use super::check::max_decoded_length;
use super::features::{TOKENIZER_RULES, VOCABULARY};
use super::layout::{FOLDER_METADATA, GGUF_METADATA, KERNELS, MAX_SECTION_BYTES, TOKENIZER};
use super::{Digest, Encoding, HtzError, KernelCode, Record, SectionEntry};
use crate::bounded_json;
use crate::escape::escape_truncated;
use crate::gguf::{Contents, Writer};
use crate::limits::{MAX_MERGES, MAX_METADATA_FILES, MAX_SOURCE_METADATA_BYTES, MAX_VOCABULARY};
use crate::metadata::SourceMetadata;
use crate::vocab::{Vocabulary, VocabularyError};

const ZSTD_LEVEL: i32 = 19;

/// A section ready to be written.
#[derive(Clone, Debug)]
pub struct Section {
    entry: SectionEntry,
    bytes: Vec<u8>,
}

impl Section {
    /// Creates a section of `data`, compressed if that makes it smaller.
    ///
    /// # Errors
    /// [`HtzError::Property`] for more than [`MAX_SECTION_BYTES`].
    pub fn new(name: &str, required: bool, data: &[u8]) -> Result<Section, HtzError> {
        let decoded_length = data.len() as u64;
        let record = Record::Section(escape_truncated(name));
        if decoded_length > MAX_SECTION_BYTES {
            let expected = format!("at most {MAX_SECTION_BYTES}");
            return Err(record.error("length", expected, decoded_length));
        }
        let frame = zstd::bulk::compress(data, ZSTD_LEVEL).map_err(|error| {
            let found = escape_truncated(&error.to_string());
            record.error("compression", "success", found)
        })?;
        let length = frame.len() as u64;
        let (encoding, bytes) =
            if length < decoded_length && decoded_length <= max_decoded_length(length) {
                (Encoding::Zstd, frame)
            } else {
                (Encoding::Raw, data.to_vec())
            };
        let entry = SectionEntry {
            name: name.to_owned(),
            required,
            encoding,
            offset: 0,
            length: bytes.len() as u64,
            decoded_length,
            sha256: Digest::of_bytes(&bytes),
        };
        Ok(Section { entry, bytes })
    }

    /// Creates the section [`TOKENIZER`].
    pub fn tokenizer(vocabulary: &Vocabulary) -> Result<Section, HtzError> {
        vocabulary.validate()?;
        let json = serde_json::to_vec(vocabulary).map_err(syntax)?;
        Section::new(TOKENIZER, true, &json)
    }

    /// Creates the optional section [`KERNELS`].
    pub fn kernels(code: &KernelCode) -> Result<Section, HtzError> {
        Section::new(KERNELS, false, &code.to_bytes())
    }

    /// Creates the optional section [`GGUF_METADATA`] or [`FOLDER_METADATA`].
    ///
    /// # Errors
    /// [`HtzError::Property`] for more than [`MAX_SOURCE_METADATA_BYTES`].
    pub fn source_metadata(metadata: &SourceMetadata) -> Result<Section, HtzError> {
        let (name, data) = match metadata {
            SourceMetadata::Gguf(entries) => {
                let mut writer = Writer::new();
                for (key, value) in entries {
                    writer.metadata(key.clone(), value.clone());
                }
                let data = writer.to_bytes();
                let data = data.map_err(|error| invalid_metadata(GGUF_METADATA, &error))?;
                (GGUF_METADATA, data)
            }
            SourceMetadata::Folder(files) => {
                let data = serde_json::to_vec(files);
                let data = data.map_err(|error| invalid_metadata(FOLDER_METADATA, &error))?;
                (FOLDER_METADATA, data)
            }
        };
        check_length_of_metadata(name, data.len() as u64)?;
        Section::new(name, false, &data)
    }

    /// Entry in the manifest; the writer sets its offset.
    pub fn entry(&self) -> &SectionEntry {
        &self.entry
    }

    /// Stored bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) fn decode(entry: &SectionEntry, bytes: &[u8]) -> Result<Vec<u8>, HtzError> {
    match entry.encoding {
        Encoding::Raw => Ok(bytes.to_vec()),
        Encoding::Zstd => {
            let broken = |error: std::io::Error| {
                let found = escape_truncated(&error.to_string());
                entry.error("content", "one zstd frame", found)
            };
            let mut rest = bytes;
            let mut data = Vec::new();
            // A growing buffer exists twice for a moment.
            let length = usize::try_from(entry.decoded_length.saturating_add(1));
            data.try_reserve_exact(length.unwrap_or(usize::MAX))
                .map_err(|error| broken(std::io::Error::other(error)))?;
            // One byte more than stated suffices to detect a wrong length.
            let mut decoder = zstd::stream::read::Decoder::with_buffer(&mut rest)
                .map_err(broken)?
                .single_frame();
            decoder
                .window_log_max(window_log(entry.decoded_length))
                .map_err(broken)?;
            decoder
                .take(entry.decoded_length.saturating_add(1))
                .read_to_end(&mut data)
                .map_err(broken)?;
            if data.len() as u64 != entry.decoded_length {
                let found = match data.len() as u64 {
                    length if length > entry.decoded_length => "more".to_owned(),
                    length => length.to_string(),
                };
                let expected = format!("{} bytes", entry.decoded_length);
                return Err(entry.error("content", expected, found));
            }
            if !rest.is_empty() {
                let found = format!("{} bytes behind it", rest.len());
                return Err(entry.error("content", "one zstd frame", found));
            }
            Ok(data)
        }
    }
}

/// Returns the logarithm of the largest window allowed for a frame of `decoded_length` bytes. The
/// decoder allocates the window before reading content.
fn window_log(decoded_length: u64) -> u32 {
    const MIN_WINDOW_LOG: u32 = 10;
    decoded_length
        .min(MAX_SECTION_BYTES)
        .next_power_of_two()
        .ilog2()
        .max(MIN_WINDOW_LOG)
}

pub(super) fn parse_vocabulary(
    data: &[u8],
    tokens: usize,
    features: &[String],
) -> Result<Vocabulary, HtzError> {
    // Counts before storing: an empty text has three bytes here and 24 in memory.
    let counted: VocabularyCounts = serde_json::from_slice(data).map_err(syntax)?;
    if counted.tokens.0 > tokens {
        return Err(HtzError::Vocabulary(VocabularyError::Rows {
            tokens: counted.tokens.0,
            rows: tokens,
        }));
    }
    counted.check()?;
    let vocabulary: Vocabulary = serde_json::from_slice(data).map_err(syntax)?;
    vocabulary.validate()?;
    vocabulary.check_rows(tokens)?;
    for (feature, needed) in [
        (VOCABULARY, vocabulary.needs_format_1_1()),
        (TOKENIZER_RULES, vocabulary.needs_tokenizer_rules()),
    ] {
        if needed && !features.iter().any(|declared| declared == feature) {
            return Err(HtzError::FeatureNotRequired {
                feature: feature.to_owned(),
            });
        }
    }
    Ok(vocabulary)
}

pub(super) fn parse_kernels(data: &[u8]) -> Result<KernelCode, HtzError> {
    KernelCode::parse(data).map_err(|error| {
        let found = escape_truncated(&error.to_string());
        Record::Section(KERNELS.to_owned()).error("content", "compiled kernels", found)
    })
}

/// Checks the decoded length of the section `name` of metadata.
pub(super) fn check_length_of_metadata(name: &str, found: u64) -> Result<(), HtzError> {
    if found <= MAX_SOURCE_METADATA_BYTES {
        return Ok(());
    }
    let expected = format!("at most {MAX_SOURCE_METADATA_BYTES}");
    Err(Record::Section(name.to_owned()).error("decoded length", expected, found))
}

/// Parses the decoded bytes of the section `name` of metadata.
pub(super) fn parse_source_metadata(name: &str, data: &[u8]) -> Result<SourceMetadata, HtzError> {
    let metadata = if name == GGUF_METADATA {
        let contents = Contents::parse(data).map_err(|error| invalid_metadata(name, &error))?;
        if let Some(tensor) = contents.tensors().first() {
            let problem = format!("tensor {:?}", tensor.name);
            return Err(invalid_metadata(name, &problem));
        }
        SourceMetadata::Gguf(contents.metadata().to_vec())
    } else {
        let files = files_of_folder(data).map_err(|error| invalid_metadata(name, &error))?;
        SourceMetadata::Folder(files)
    };
    let checked = metadata.check();
    checked.map_err(|problem| invalid_metadata(name, &problem))?;
    Ok(metadata)
}

fn files_of_folder(data: &[u8]) -> serde_json::Result<BTreeMap<String, String>> {
    let mut json = serde_json::Deserializer::from_slice(data);
    let files = bounded_json::deserialize(&mut json, MAX_METADATA_FILES + 1)?;
    json.end()?;
    BTreeMap::deserialize(files)
}

fn invalid_metadata(name: &str, error: &dyn Display) -> HtzError {
    let found = escape_truncated(&error.to_string());
    Record::Section(name.to_owned()).error("content", "metadata of the source", found)
}

#[derive(Deserialize)]
struct VocabularyCounts {
    tokens: ListLength,
    #[serde(default)]
    scores: ListLength,
    #[serde(default)]
    merges: ListLength,
    #[serde(default)]
    end_of_generation: ListLength,
    #[serde(default)]
    strip_before: ListLength,
    #[serde(default)]
    strip_after: ListLength,
    #[serde(default)]
    match_normalized: ListLength,
}

impl VocabularyCounts {
    fn check(&self) -> Result<(), HtzError> {
        let VocabularyCounts {
            tokens: _,
            scores,
            merges,
            end_of_generation,
            strip_before,
            strip_after,
            match_normalized,
        } = self;
        for (property, count, most) in [
            ("scores", scores, MAX_VOCABULARY),
            ("merges", merges, MAX_MERGES),
            ("end_of_generation", end_of_generation, MAX_VOCABULARY),
            ("strip_before", strip_before, MAX_VOCABULARY),
            ("strip_after", strip_after, MAX_VOCABULARY),
            ("match_normalized", match_normalized, MAX_VOCABULARY),
        ] {
            if count.0 > most {
                let expected = format!("at most {most}");
                return Err(
                    Record::Section(TOKENIZER.to_owned()).error(property, expected, count.0)
                );
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct ListLength(usize);

impl<'de> Deserialize<'de> for ListLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = |count: &mut usize, _: IgnoredAny| {
            *count += 1;
            Ok(())
        };
        bounded_json::fold(deserializer, 0, count).map(ListLength)
    }
}

fn syntax(error: serde_json::Error) -> HtzError {
    let found = escape_truncated(&error.to_string());
    Record::Section(TOKENIZER.to_owned()).error("content", "a vocabulary", found)
}

#[cfg(test)]
mod tests;

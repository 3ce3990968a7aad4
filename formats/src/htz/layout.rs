//! Constants of the format, and the fixed header.

use super::{Digest, HtzError};
use crate::wire::{self, Cursor};

/// Magic of every artifact, which detects text-mode transfers.
pub const MAGIC: [u8; 8] = *b"\x89HTZ\r\n\x1a\n";

/// Major version that this crate writes. It reads this one and version 1.
pub const FORMAT_MAJOR: u16 = 2;

/// Highest minor version that this crate writes. Any minor version with known features is read.
pub const FORMAT_MINOR: u16 = 1;

/// Size of the header.
pub const HEADER_BYTES: usize = 128;

/// Alignment of tensors and sections in bytes.
pub const ALIGNMENT: u64 = 256;

/// Maximum size of a manifest: 256 MiB. 32,768 experts are 98,304 matrices, which leaves 2,730 bytes
/// for each. Entry, record and spectrum of a matrix take about 700 bytes, every further tensor of it
/// (of factors or a refinement) 280, and its source 550 if that is stored too.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// Maximum size of a manifest of format 1: 16 MiB.
pub const MAX_MANIFEST_1_BYTES: u64 = 16 << 20;

/// Maximum size of a section after decoding.
pub const MAX_SECTION_BYTES: u64 = 256 << 20;

/// Maximum expansion of a compressed section, see [`UNBOUNDED_EXPANSION_BYTES`].
pub const MAX_SECTION_EXPANSION: u64 = 64;

/// Decoded size up to which a section may be compressed by any factor.
pub const UNBOUNDED_EXPANSION_BYTES: u64 = 1 << 20;

/// Section with the [`Vocabulary`](crate::vocab::Vocabulary) as JSON.
pub const TOKENIZER: &str = "tokenizer";

/// Section with [`KernelCode`](super::KernelCode).
pub const KERNELS: &str = "kernels";

/// Section with the metadata of a GGUF source (2.1), as a GGUF without tensors.
pub const GGUF_METADATA: &str = "metadata.gguf";

/// Section with the metadata of a source folder (2.1), as a JSON object of texts by file name.
pub const FOLDER_METADATA: &str = "metadata.folder";

/// Sections with the metadata of a source; an artifact has at most one.
pub(super) const METADATA_SECTIONS: [&str; 2] = [GGUF_METADATA, FOLDER_METADATA];

const DIGESTED_BYTES: usize = HEADER_BYTES - 32;

const RESERVED_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub major: u16,
    pub minor: u16,
    pub manifest_length: u64,
    pub file_length: u64,
    pub manifest_sha256: Digest,
}

impl Header {
    /// Returns the bytes of the header, of the current major version, whatever `self` has.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        wire::put_u16(&mut bytes, FORMAT_MAJOR);
        wire::put_u16(&mut bytes, self.minor);
        wire::put_u32(&mut bytes, HEADER_BYTES as u32);
        wire::put_u64(&mut bytes, HEADER_BYTES as u64);
        wire::put_u64(&mut bytes, self.manifest_length);
        wire::put_u64(&mut bytes, self.file_length);
        bytes.extend_from_slice(&self.manifest_sha256.0);
        bytes.extend_from_slice(&[0; RESERVED_BYTES]);
        let digest = Digest::of_bytes(&bytes);
        bytes.extend_from_slice(&digest.0);
        bytes
    }

    /// Parses and validates the header.
    pub fn decode(file: &[u8]) -> Result<Header, HtzError> {
        let start = &file[..file.len().min(MAGIC.len())];
        // A file that ends within the magic counts as truncated.
        if !MAGIC.starts_with(start) {
            return Err(HtzError::Magic {
                found: format!("\"{}\"", start.escape_ascii()),
            });
        }
        let mut cursor = Cursor::new(file);
        let covered = cursor.array::<DIGESTED_BYTES>()?;
        let expected = Digest(cursor.array()?);
        expected.verify("the header", &covered)?;
        let refuse = |field, expected: String, found| {
            Err(HtzError::Header {
                field,
                expected,
                found,
            })
        };
        let mut cursor = Cursor::new(&covered[MAGIC.len()..]);
        let major = cursor.u16()?;
        if major != FORMAT_MAJOR && major != 1 {
            return Err(HtzError::Major { found: major });
        }
        let minor = cursor.u16()?;
        let length = cursor.u32()?;
        let manifest_offset = cursor.u64()?;
        for (field, found) in [
            ("length of the header", length.into()),
            ("offset of the manifest", manifest_offset),
        ] {
            if found != HEADER_BYTES as u64 {
                return refuse(field, HEADER_BYTES.to_string(), found);
            }
        }
        let header = Header {
            major,
            minor,
            manifest_length: cursor.u64()?,
            file_length: cursor.u64()?,
            manifest_sha256: Digest(cursor.array()?),
        };
        let reserved = cursor.array::<RESERVED_BYTES>()?;
        if let Some(&byte) = reserved.iter().find(|&&byte| byte != 0) {
            return refuse("reserved byte", "0".to_owned(), byte.into());
        }
        let manifest_length = header.manifest_length;
        let limit = match major {
            1 => MAX_MANIFEST_1_BYTES,
            _ => MAX_MANIFEST_BYTES,
        };
        if manifest_length > limit {
            let expected = format!("at most {limit}");
            return refuse("length of the manifest", expected, manifest_length);
        }
        if !header.data_offset().is_multiple_of(ALIGNMENT) {
            let expected = format!("a multiple of {ALIGNMENT} less {HEADER_BYTES}");
            return refuse("length of the manifest", expected, manifest_length);
        }
        let file_length = file.len() as u64;
        if header.file_length != file_length {
            return Err(HtzError::FileLength {
                expected: header.file_length,
                found: file_length,
            });
        }
        if header.data_offset() > file_length {
            let expected = format!("at most {}", file_length - HEADER_BYTES as u64);
            return refuse("length of the manifest", expected, manifest_length);
        }
        Ok(header)
    }

    /// Returns the end of the manifest, where the data begin.
    pub fn data_offset(&self) -> u64 {
        HEADER_BYTES as u64 + self.manifest_length
    }
}

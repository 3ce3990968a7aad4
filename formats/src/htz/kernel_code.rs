//! Kernels compiled ahead of time, stored in a section of an artifact or in a cache file.

use std::fmt;
use std::str::FromStr;

use super::{Digest, HtzError, Record};
use crate::wire::{self, Cursor};

const VERSION: u32 = 1;

/// Maximum images of a record: the parts of the kernels, twice for each architecture.
const MAX_IMAGES: u32 = 4096;

/// NVIDIA GPU architecture, by compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuArchitecture {
    /// Major number; code does not run on another.
    pub major: u8,
    /// Minor number; code runs on higher ones.
    pub minor: u8,
}

impl GpuArchitecture {
    /// Returns the capability in the form `9.0`.
    pub fn capability(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for GpuArchitecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

impl FromStr for GpuArchitecture {
    type Err = String;

    /// Parses `sm_90` or `sm_120`; the last digit is the minor number.
    fn from_str(text: &str) -> Result<GpuArchitecture, String> {
        let digits = text
            .strip_prefix("sm_")
            .filter(|digits| matches!(digits.len(), 2 | 3) && !digits.starts_with('0'));
        let number = digits.and_then(|digits| digits.parse::<u16>().ok());
        let number =
            number.ok_or_else(|| format!("an architecture is written as sm_90, not {text:?}"))?;
        Ok(GpuArchitecture {
            major: (number / 10) as u8,
            minor: (number % 10) as u8,
        })
    }
}

/// Format of compiled code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeFormat {
    /// Machine code of one architecture.
    Cubin,
    /// Text that the driver compiles for its device.
    Ptx,
}

impl fmt::Display for CodeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CodeFormat::Cubin => "cubin",
            CodeFormat::Ptx => "PTX",
        })
    }
}

/// A compiled part of the kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeImage {
    /// Target architecture.
    pub architecture: GpuArchitecture,
    /// Format of the code.
    pub form: CodeFormat,
    /// Name of the source file.
    pub unit: String,
    /// The code.
    pub bytes: Vec<u8>,
}

/// Kernels compiled ahead of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCode {
    /// Digest of the sources and options; kernels of other sources take other arguments.
    pub sources: Digest,
    /// Description of the compiler.
    pub compiler: String,
    /// The compiled parts.
    pub images: Vec<CodeImage>,
}

impl KernelCode {
    /// Returns the architectures with code, sorted, without duplicates.
    pub fn architectures(&self) -> Vec<GpuArchitecture> {
        let mut all: Vec<_> = self.images.iter().map(|image| image.architecture).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the bytes of the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let text = |out: &mut Vec<u8>, text: &str| {
            wire::put_u32(out, text.len() as u32);
            out.extend_from_slice(text.as_bytes());
        };
        wire::put_u32(&mut out, VERSION);
        out.extend_from_slice(&self.sources.0);
        text(&mut out, &self.compiler);
        wire::put_u32(&mut out, self.images.len() as u32);
        for image in &self.images {
            wire::put_u8(&mut out, image.architecture.major);
            wire::put_u8(&mut out, image.architecture.minor);
            let form = match image.form {
                CodeFormat::Cubin => 0,
                CodeFormat::Ptx => 1,
            };
            wire::put_u8(&mut out, form);
            text(&mut out, &image.unit);
            wire::put_u64(&mut out, image.bytes.len() as u64);
            out.extend_from_slice(&image.bytes);
        }
        out
    }

    /// Parses a record that takes up all bytes.
    pub fn parse(bytes: &[u8]) -> Result<KernelCode, HtzError> {
        let mut cursor = Cursor::new(bytes);
        let version = cursor.u32()?;
        if version != VERSION {
            return Err(Record::Kernels.error("version", VERSION, version));
        }
        let sources = Digest(cursor.array()?);
        let length = cursor.u32()?;
        let compiler = cursor.str(length.into())?.to_owned();
        let count = cursor.u32()?;
        if count > MAX_IMAGES {
            let expected = format!("at most {MAX_IMAGES}");
            return Err(Record::Kernels.error("the number of images", expected, count));
        }
        // The stated count may be wrong.
        let mut images = Vec::new();
        for _ in 0..count {
            let [major, minor, form] = cursor.array()?;
            let form = match form {
                0 => CodeFormat::Cubin,
                1 => CodeFormat::Ptx,
                other => {
                    return Err(Record::Kernels.error("the form of an image", "0 or 1", other));
                }
            };
            let length = cursor.u32()?;
            let unit = cursor.str(length.into())?.to_owned();
            let length = cursor.u64()?;
            images.push(CodeImage {
                architecture: GpuArchitecture { major, minor },
                form,
                unit,
                bytes: cursor.bytes(length)?.to_vec(),
            });
        }
        if cursor.remaining() > 0 {
            return Err(Record::Kernels.error(
                "the number of bytes behind it",
                0,
                cursor.remaining(),
            ));
        }
        Ok(KernelCode {
            sources,
            compiler,
            images,
        })
    }
}

#[cfg(test)]
mod tests;

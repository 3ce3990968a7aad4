//! Kernels that were compiled ahead of time, as a section of an artifact or a file of a cache holds them.

use std::fmt;
use std::str::FromStr;

use super::Digest;
use crate::wire::{self, Cursor, WireError};

/// Version of the record.
const VERSION: u32 = 1;

/// Most images of a record: the parts of the kernels, for each architecture twice.
const MAX_IMAGES: u32 = 4096;

/// What a GPU of NVIDIA executes: its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    /// Code of one major number does not run on another.
    pub major: u8,
    /// Code of a lower minor number runs on a higher one.
    pub minor: u8,
}

impl Architecture {
    /// As `9.0`.
    pub fn capability(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Architecture {
    /// As `sm_90`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

impl FromStr for Architecture {
    type Err = String;

    /// Of `sm_90`, `sm_120`: the last digit is the minor number.
    fn from_str(text: &str) -> Result<Architecture, String> {
        let digits = text
            .strip_prefix("sm_")
            .filter(|digits| matches!(digits.len(), 2 | 3) && !digits.starts_with('0'));
        let number = digits.and_then(|digits| digits.parse::<u16>().ok());
        let number =
            number.ok_or_else(|| format!("an architecture is written as sm_90, not {text:?}"))?;
        Ok(Architecture {
            major: (number / 10) as u8,
            minor: (number % 10) as u8,
        })
    }
}

/// How code is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeForm {
    /// Instructions of one architecture.
    Cubin,
    /// Text that a driver compiles for its device.
    Ptx,
}

impl fmt::Display for CodeForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CodeForm::Cubin => "cubin",
            CodeForm::Ptx => "PTX",
        })
    }
}

/// A part of the kernels, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeImage {
    /// For which architecture.
    pub architecture: Architecture,
    /// How it is written.
    pub form: CodeForm,
    /// Name of the source it was compiled from.
    pub unit: String,
    /// The code.
    pub bytes: Vec<u8>,
}

/// Kernels that were compiled ahead of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCode {
    /// Digest of the sources and options they were compiled from: others need other arguments.
    pub sources: Digest,
    /// What compiled them, for people.
    pub compiler: String,
    /// The code.
    pub images: Vec<CodeImage>,
}

/// Why bytes are no such record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelCodeError {
    /// It ends early, or is no text where it should be.
    #[error("compiled kernels: {0}")]
    Wire(#[from] WireError),
    /// A number that it cannot have.
    #[error("compiled kernels: {property} is {found}, expected {expected}")]
    Number {
        /// Which.
        property: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: u64,
    },
}

impl KernelCode {
    /// The architectures it has code for, in order, each once.
    pub fn architectures(&self) -> Vec<Architecture> {
        let mut all: Vec<_> = self.images.iter().map(|image| image.architecture).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// As bytes.
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
                CodeForm::Cubin => 0,
                CodeForm::Ptx => 1,
            };
            wire::put_u8(&mut out, form);
            text(&mut out, &image.unit);
            wire::put_u64(&mut out, image.bytes.len() as u64);
            out.extend_from_slice(&image.bytes);
        }
        out
    }

    /// Of bytes, all of them.
    ///
    /// # Errors
    /// [`KernelCodeError`].
    pub fn parse(bytes: &[u8]) -> Result<KernelCode, KernelCodeError> {
        let number = |property, expected: &dyn fmt::Display, found| KernelCodeError::Number {
            property,
            expected: expected.to_string(),
            found,
        };
        let mut cursor = Cursor::new(bytes);
        let version = cursor.u32()?;
        if version != VERSION {
            return Err(number("version", &VERSION, version.into()));
        }
        let sources = Digest(cursor.array()?);
        let length = cursor.u32()?;
        let compiler = cursor.str(length.into())?.to_owned();
        let count = cursor.u32()?;
        if count > MAX_IMAGES {
            let expected = format!("at most {MAX_IMAGES}");
            return Err(number("the number of images", &expected, count.into()));
        }
        // Grows with what is there: a count is no reason to allocate.
        let mut images = Vec::new();
        for _ in 0..count {
            let [major, minor, form] = cursor.array()?;
            let form = match form {
                0 => CodeForm::Cubin,
                1 => CodeForm::Ptx,
                other => return Err(number("the form of an image", &"0 or 1", other.into())),
            };
            let length = cursor.u32()?;
            let unit = cursor.str(length.into())?.to_owned();
            let length = cursor.u64()?;
            images.push(CodeImage {
                architecture: Architecture { major, minor },
                form,
                unit,
                bytes: cursor.bytes(length)?.to_vec(),
            });
        }
        if cursor.remaining() > 0 {
            let found = cursor.remaining() as u64;
            return Err(number("the number of bytes behind it", &0, found));
        }
        Ok(KernelCode {
            sources,
            compiler,
            images,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code() -> KernelCode {
        let image = |minor, form, bytes: &[u8]| CodeImage {
            architecture: Architecture { major: 8, minor },
            form,
            unit: "elementwise".to_owned(),
            bytes: bytes.to_vec(),
        };
        KernelCode {
            sources: Digest::of(b"sources"),
            compiler: "NVRTC 13.0".to_owned(),
            images: vec![
                image(9, CodeForm::Cubin, b"\x7fELF"),
                image(0, CodeForm::Ptx, b"// PTX"),
                image(0, CodeForm::Cubin, b""),
            ],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = code().to_bytes();
        assert_eq!(KernelCode::parse(&bytes).unwrap(), code());
        let named = code().architectures();
        let named: Vec<_> = named.iter().map(ToString::to_string).collect();
        assert_eq!(named, ["sm_80", "sm_89"]);
    }

    #[test]
    fn what_is_cut_or_continued_is_refused() {
        let mut bytes = code().to_bytes();
        for length in 0..bytes.len() {
            let fault = KernelCode::parse(&bytes[..length]).unwrap_err();
            assert!(matches!(fault, KernelCodeError::Wire(_)), "{length}");
        }
        bytes.push(0);
        let fault = KernelCode::parse(&bytes).unwrap_err().to_string();
        assert!(fault.contains("behind it is 1, expected 0"), "{fault}");
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let bytes = code().to_bytes();
        let count = 4 + 32 + 4 + "NVRTC 13.0".len();
        for (at, number, expected) in [
            (0, 2_u32, "version is 2, expected 1"),
            (
                count,
                u32::MAX,
                "images is 4294967295, expected at most 4096",
            ),
            (
                count + 4,
                0x0002_0008,
                "form of an image is 2, expected 0 or 1",
            ),
            (count + 4 + 3, u32::MAX, "4294967295 bytes are needed"),
        ] {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let fault = KernelCode::parse(&bytes).unwrap_err().to_string();
            assert!(fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn architectures_are_written_as_compilers_write_them() {
        for (text, major, minor) in [("sm_80", 8, 0), ("sm_89", 8, 9), ("sm_120", 12, 0)] {
            let architecture = Architecture { major, minor };
            assert_eq!(text.parse(), Ok(architecture));
            assert_eq!(architecture.to_string(), text);
        }
        for text in [
            "",
            "90",
            "sm_",
            "sm_9",
            "sm_90a",
            "sm_09",
            "compute_90",
            "sm_1200",
            "sm_-1",
        ] {
            assert!(text.parse::<Architecture>().is_err(), "{text}");
        }
    }
}

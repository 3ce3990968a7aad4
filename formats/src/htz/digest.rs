//! SHA-256 digests, written as 64 lower-case hexadecimal digits.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use super::HtzError;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Computes the digest of `bytes`.
    pub fn of_bytes(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// Checks that the bytes of an item, e.g. `section tokenizer`, have this digest.
    pub(super) fn verify(self, item: impl fmt::Display, bytes: &[u8]) -> Result<(), HtzError> {
        let found = Digest::of_bytes(bytes);
        if found == self {
            return Ok(());
        }
        Err(HtzError::Digest {
            item: item.to_string(),
            expected: self,
            found,
        })
    }
}

/// Incremental SHA-256 hasher.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next part.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all parts.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            write!(text, "{byte:02x}")?;
        }
        f.pad(&text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || "a SHA-256 digest is 64 lower-case hexadecimal digits".to_owned();
        // Digests can be compared as text.
        let nibble = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(malformed()),
        };
        if text.len() != 64 {
            return Err(malformed());
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Digest(digest))
    }
}

crate::serde_as_text!(Digest);

#[cfg(test)]
mod tests;

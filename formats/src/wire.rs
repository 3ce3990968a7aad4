//! Checked little-endian reads and writes, and alignment.

use crate::CodecError;

/// Bounds-checked reader of little-endian values; a failed read does not move it.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! numbers {
    ($($name:ident),*) => {$(
        #[doc = concat!("Reads one `", stringify!($name), "`.")]
        ///
        /// # Errors
        ///
        /// [`CodecError::Truncated`] at the end of the bytes.
        pub fn $name(&mut self) -> Result<$name, CodecError> {
            Ok($name::from_le_bytes(self.array()?))
        }
    )*};
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Number of bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Number of bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the next `count` bytes.
    ///
    /// # Errors
    /// [`CodecError::Truncated`] if fewer are left.
    pub fn bytes(&mut self, count: u64) -> Result<&'a [u8], CodecError> {
        let taken = usize::try_from(count)
            .ok()
            .and_then(|n| self.bytes[self.at..].get(..n))
            .ok_or(CodecError::Truncated {
                offset: self.at,
                needed: count,
                available: self.remaining(),
            })?;
        self.at += taken.len();
        Ok(taken)
    }

    /// Returns the next `N` bytes as an array.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] if fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (taken, _) =
            self.bytes[self.at..]
                .split_first_chunk::<N>()
                .ok_or(CodecError::Truncated {
                    offset: self.at,
                    needed: N as u64,
                    available: self.remaining(),
                })?;
        self.at += N;
        Ok(*taken)
    }

    numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

    /// Reads one boolean byte.
    pub fn bool(&mut self) -> Result<bool, CodecError> {
        let offset = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => {
                self.at = offset;
                Err(CodecError::NotBool { offset, found })
            }
        }
    }

    /// Returns the next `count` bytes as UTF-8 text.
    pub fn str(&mut self, count: u64) -> Result<&'a str, CodecError> {
        let offset = self.at;
        std::str::from_utf8(self.bytes(count)?).map_err(|_| {
            self.at = offset;
            CodecError::NotUtf8 { offset }
        })
    }
}

/// Returns the least multiple of `alignment` that is at least `value`, if possible.
pub const fn align_up(value: u64, alignment: u64) -> Option<u64> {
    value.checked_next_multiple_of(alignment)
}

/// Returns the `N` bytes from `at` on, which must be within the block.
#[inline(always)]
pub(crate) fn subarray<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[at..at + N]);
    taken
}

macro_rules! writers {
    ($($name:ident $kind:ident),*) => {$(
        #[doc = concat!("Appends one `", stringify!($kind), "`.")]
        pub fn $name(out: &mut Vec<u8>, value: $kind) {
            out.extend_from_slice(&value.to_le_bytes());
        }
    )*};
}

writers!(
    put_u8 u8, put_u16 u16, put_u32 u32, put_u64 u64, put_i8 i8, put_i16 i16, put_i32 i32,
    put_i64 i64, put_f32 f32, put_f64 f64
);

#[cfg(test)]
mod tests;

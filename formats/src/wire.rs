//! Byte order, checked reads and alignment: the only place that turns bytes into numbers.
//!
//! Every file of the project is little-endian.

/// A read that could not be done. Offsets are from the start of the bytes the [`Cursor`] got.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes are left than the read needs.
    #[error(
        "{needed} bytes are needed at byte {offset} and {available} are left; \
         the file is truncated or damaged, copy or download it again"
    )]
    Truncated {
        /// Where the read began.
        offset: usize,
        /// Bytes it needed.
        needed: u64,
        /// Bytes that were left.
        available: usize,
    },
    /// Text that is not UTF-8.
    #[error("the text at byte {offset} is not UTF-8; the file is damaged")]
    NotUtf8 {
        /// Where the text begins.
        offset: usize,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("the boolean at byte {offset} is {found}, expected 0 or 1; the file is damaged")]
    NotBool {
        /// Where the byte is.
        offset: usize,
        /// What it holds.
        found: u8,
    },
}

/// Reads little-endian values one after another, never behind the end.
///
/// A read that fails leaves the cursor where it was.
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
        /// [`WireError::Truncated`] at the end of the bytes.
        pub fn $name(&mut self) -> Result<$name, WireError> {
            Ok($name::from_le_bytes(self.array()?))
        }
    )*};
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Takes the next `count` bytes. The count is a `u64` because that is what files hold.
    ///
    /// # Errors
    ///
    /// [`WireError::Truncated`] when fewer are left.
    pub fn bytes(&mut self, count: u64) -> Result<&'a [u8], WireError> {
        let taken = usize::try_from(count)
            .ok()
            .and_then(|n| self.bytes[self.at..].get(..n))
            .ok_or(WireError::Truncated {
                offset: self.at,
                needed: count,
                available: self.remaining(),
            })?;
        self.at += taken.len();
        Ok(taken)
    }

    /// Takes the next `N` bytes as an array.
    ///
    /// # Errors
    ///
    /// [`WireError::Truncated`] when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, _) =
            self.bytes[self.at..]
                .split_first_chunk::<N>()
                .ok_or(WireError::Truncated {
                    offset: self.at,
                    needed: N as u64,
                    available: self.remaining(),
                })?;
        self.at += N;
        Ok(*taken)
    }

    numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

    /// Reads one boolean byte.
    ///
    /// # Errors
    ///
    /// [`WireError`] at the end of the bytes or when the byte is neither 0 nor 1.
    pub fn bool(&mut self) -> Result<bool, WireError> {
        let offset = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => {
                self.at = offset;
                Err(WireError::NotBool { offset, found })
            }
        }
    }

    /// Takes the next `count` bytes as UTF-8 text.
    ///
    /// # Errors
    ///
    /// [`WireError`] when fewer are left or when they are not UTF-8.
    pub fn str(&mut self, count: u64) -> Result<&'a str, WireError> {
        let offset = self.at;
        std::str::from_utf8(self.bytes(count)?).map_err(|_| {
            self.at = offset;
            WireError::NotUtf8 { offset }
        })
    }
}

/// The least multiple of `alignment` that is not below `value`; `None` when it does not fit or
/// `alignment` is 0.
pub const fn align_up(value: u64, alignment: u64) -> Option<u64> {
    value.checked_next_multiple_of(alignment)
}

/// The `N` bytes from `at` on; the caller has chosen `at + N` within the block.
#[inline(always)]
pub(crate) fn sub<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
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

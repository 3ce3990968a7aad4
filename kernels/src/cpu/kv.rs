//! Keys and values of one layer.

use std::ops::Range;

use thiserror::Error;

use super::Cpu;
use crate::error::{ShapeError, expect, product};

/// Numbers of keys or values.
#[derive(Clone, Copy, Debug)]
pub enum KvNumbers<'a> {
    /// The bits of float16, as [`Cpu::to_f16`](super::Cpu::to_f16) gives them.
    F16(&'a [u16]),
    /// float32: twice the memory and no rounding, for comparisons.
    F32(&'a [f32]),
}

impl<'a> KvNumbers<'a> {
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        match self {
            KvNumbers::F16(numbers) => KvNumbers::F16(&numbers[range]),
            KvNumbers::F32(numbers) => KvNumbers::F32(&numbers[range]),
        }
    }
}

impl<'a> From<&'a [u16]> for KvNumbers<'a> {
    fn from(numbers: &'a [u16]) -> Self {
        KvNumbers::F16(numbers)
    }
}

impl<'a> From<&'a [f32]> for KvNumbers<'a> {
    fn from(numbers: &'a [f32]) -> Self {
        KvNumbers::F32(numbers)
    }
}

/// A view of the keys and values of one layer, each `[kv_heads, capacity, head_size]`: the
/// positions of one head lie together, so that a decoding step reads each head as one stream.
///
/// Position `p` of head `h` starts at number `(h * capacity + p) * head_size`. Which positions
/// are valid is the caller's to know; kernels read positions `0 .. len` only.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    keys: KvNumbers<'a>,
    values: KvNumbers<'a>,
    kv_heads: usize,
    head_size: usize,
    capacity: usize,
}

impl<'a> KvView<'a> {
    /// A view over exactly `kv_heads * capacity * head_size` keys and as many values.
    ///
    /// # Errors
    /// When `keys` or `values` has another length, or `kv_heads` or `head_size` is 0.
    pub fn new<T>(
        keys: &'a [T],
        values: &'a [T],
        kv_heads: usize,
        head_size: usize,
        capacity: usize,
    ) -> Result<Self, ShapeError>
    where
        KvNumbers<'a>: From<&'a [T]>,
    {
        let len = product("keys (numbers)", &[kv_heads, capacity, head_size])?;
        expect("keys (numbers)", len, keys.len())?;
        expect("values (numbers)", len, values.len())?;
        for (what, found) in [
            ("kv heads, at least", kv_heads),
            ("head size, at least", head_size),
        ] {
            if found == 0 {
                return Err(ShapeError {
                    what,
                    expected: 1,
                    found,
                });
            }
        }
        Ok(KvView {
            keys: keys.into(),
            values: values.into(),
            kv_heads,
            head_size,
            capacity,
        })
    }

    /// Number of kv heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Numbers in one key, and in one value.
    pub fn head_size(&self) -> usize {
        self.head_size
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Keys and values `[capacity, head_size]` of one head.
    ///
    /// # Panics
    /// When `head >= kv_heads()`, as indexing does.
    pub fn head(&self, head: usize) -> (KvNumbers<'a>, KvNumbers<'a>) {
        let len = self.capacity * self.head_size;
        let range = head * len..(head + 1) * len;
        (self.keys.slice(range.clone()), self.values.slice(range))
    }

    /// Keys and values of all heads, where they are float16.
    pub(crate) fn halves(&self) -> Option<(&'a [u16], &'a [u16])> {
        match (self.keys, self.values) {
            (KvNumbers::F16(keys), KvNumbers::F16(values)) => Some((keys, values)),
            _ => None,
        }
    }

    /// The number of query heads, after a check of `q [n, heads, head_size]` at positions
    /// `position ..` and of `out`.
    pub(crate) fn check_queries(
        &self,
        q: usize,
        n: usize,
        position: usize,
        out: usize,
    ) -> Result<usize, ShapeError> {
        expect("out (numbers)", q, out)?;
        let group = product("q (numbers)", &[n, self.kv_heads, self.head_size])?;
        crate::error::expect_rows("q (numbers, a multiple of the kv heads)", group, q)?;
        let end = position.saturating_add(n);
        if end > self.capacity {
            return Err(ShapeError {
                what: "positions (at most)",
                expected: self.capacity,
                found: end,
            });
        }
        Ok(q.checked_div(n * self.head_size).unwrap_or(0))
    }
}

/// Why [`Cpu::to_f16`](super::Cpu::to_f16) refuses.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum F16Error {
    /// The result has another length.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A number is not finite or would not be as float16.
    #[error("number {index} is {value}; float16 holds finite numbers of at most 65504")]
    Range {
        /// Which number.
        index: usize,
        /// The number.
        value: f32,
    },
}

impl Cpu {
    /// `out = x` as the bits of float16, rounded to nearest with ties to even: keys and values as a
    /// [`KvView`] holds them.
    ///
    /// An infinite key would give every query a weight of 1 or 0 whatever the rest of it says, and
    /// nothing would tell; so a number that is not finite after rounding is an error.
    ///
    /// # Errors
    /// [`F16Error::Shape`] when the lengths differ; [`F16Error::Range`] for the first number that
    /// float16 does not hold. What is in `out` then is unspecified.
    pub fn to_f16(&self, x: &[f32], out: &mut [u16]) -> Result<(), F16Error> {
        const INFINITE: u16 = 0x7C00;
        expect("out (numbers)", x.len(), out.len())?;
        (self.kernels.heads.narrow)(x, out);
        let largest = out
            .iter()
            .fold(0, |largest, half| largest.max(half & 0x7FFF));
        if largest < INFINITE {
            return Ok(());
        }
        let index = out
            .iter()
            .position(|half| half & 0x7FFF >= INFINITE)
            .unwrap_or(0);
        Err(F16Error::Range {
            index,
            value: x[index],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let buffer = [0_u16; 24];
        let kv = KvView::new(&buffer, &buffer, 2, 3, 4).unwrap();
        assert_eq!(kv.check_queries(12, 1, 3, 12), Ok(4));
        assert_eq!(kv.check_queries(0, 0, 0, 0), Ok(0));
        assert!(kv.check_queries(12, 1, 4, 12).is_err());
        assert!(kv.check_queries(12, usize::MAX, 4, 12).is_err());
        assert!(kv.check_queries(9, 1, 0, 9).is_err());
        assert!(kv.check_queries(12, 1, 0, 11).is_err());
        assert!(KvView::new(&buffer, &buffer[1..], 2, 3, 4).is_err());
        assert!(KvView::new(&buffer[..0], &[], 0, 3, 4).is_err());
        assert!(KvView::new(&buffer[..0], &[], 2, 0, 4).is_err());
        assert!(KvView::new(&buffer, &buffer, usize::MAX, 3, 4).is_err());
    }
}

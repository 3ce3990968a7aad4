//! Keys and values of one layer.

use std::ops::Range;

use htc_formats::DType;
use thiserror::Error;

use super::Cpu;
use super::kernels::Kernels;
use super::low_rank::LowRankView;
use crate::error::{ShapeError, check_numbers, check_size, checked_product};

/// Stored keys or values.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum KvNumbers<'a> {
    /// Bits of float16, as returned by [`Cpu::to_f16`](super::Cpu::to_f16).
    F16(&'a [u16]),
    /// float32: twice the memory and no rounding, for comparisons.
    F32(&'a [f32]),
    /// Blocks of [`DType::Q8_0`]: 34 bytes for 32 numbers.
    Q8_0(&'a [u8]),
    /// Blocks of [`DType::Q4_0`]: 18 bytes for 32 numbers.
    Q4_0(&'a [u8]),
}

impl<'a> KvNumbers<'a> {
    /// Returns the number of values, in whole blocks.
    pub fn len(self) -> usize {
        match self {
            KvNumbers::F16(numbers) => numbers.len(),
            KvNumbers::F32(numbers) => numbers.len(),
            KvNumbers::Q8_0(bytes) => count_numbers(DType::Q8_0, bytes.len()),
            KvNumbers::Q4_0(bytes) => count_numbers(DType::Q4_0, bytes.len()),
        }
    }

    /// Returns true if there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    fn block_len(self) -> usize {
        match self {
            KvNumbers::F16(_) | KvNumbers::F32(_) => 1,
            KvNumbers::Q8_0(_) => DType::Q8_0.block_len(),
            KvNumbers::Q4_0(_) => DType::Q4_0.block_len(),
        }
    }

    /// Returns a range of whole blocks.
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        match self {
            KvNumbers::F16(numbers) => KvNumbers::F16(&numbers[range]),
            KvNumbers::F32(numbers) => KvNumbers::F32(&numbers[range]),
            KvNumbers::Q8_0(bytes) => KvNumbers::Q8_0(&bytes[byte_range(DType::Q8_0, range)]),
            KvNumbers::Q4_0(bytes) => KvNumbers::Q4_0(&bytes[byte_range(DType::Q4_0, range)]),
        }
    }

    /// Returns float32 values, decoded into `buffer` if necessary.
    pub(super) fn decode_f32<'r>(self, kernels: &Kernels, buffer: &'r mut [f32]) -> &'r [f32]
    where
        'a: 'r,
    {
        let decode = |dtype, bytes, buffer: &'r mut [f32]| {
            let decoded = &mut buffer[..self.len()];
            (kernels.decode)(dtype, bytes, decoded);
            &*decoded
        };
        match self {
            KvNumbers::F32(numbers) => numbers,
            KvNumbers::F16(halves) => {
                let decoded = &mut buffer[..halves.len()];
                (kernels.attention.f16_to_f32)(halves, decoded);
                decoded
            }
            KvNumbers::Q8_0(bytes) => decode(DType::Q8_0, bytes, buffer),
            KvNumbers::Q4_0(bytes) => decode(DType::Q4_0, bytes, buffer),
        }
    }
}

fn count_numbers(dtype: DType, bytes: usize) -> usize {
    bytes / dtype.block_bytes() * dtype.block_len()
}

fn byte_range(dtype: DType, numbers: Range<usize>) -> Range<usize> {
    let at = |number: usize| number / dtype.block_len() * dtype.block_bytes();
    at(numbers.start)..at(numbers.end)
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

/// View of the keys and values of one layer, each `[kv_heads, capacity, head_size]`: the positions
/// of one head are contiguous, so that a decoding step reads each head as one stream.
///
/// Position `p` of head `h` starts at number `(h * capacity + p) * head_size`. The caller tracks
/// the valid positions; kernels read positions `0 .. len` only.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    keys: KvNumbers<'a>,
    values: KvNumbers<'a>,
    kv_heads: usize,
    head_size: usize,
    capacity: usize,
    low_rank: Option<LowRankView<'a>>,
}

impl<'a> KvView<'a> {
    /// Views exactly `kv_heads * capacity * head_size` keys and as many values.
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
        KvView::from_numbers(keys.into(), values.into(), kv_heads, head_size, capacity)
    }

    /// Same as [`KvView::new`] for any storage type.
    ///
    /// # Errors
    /// As [`KvView::new`], and when heads are not whole blocks.
    pub fn from_numbers(
        keys: KvNumbers<'a>,
        values: KvNumbers<'a>,
        kv_heads: usize,
        head_size: usize,
        capacity: usize,
    ) -> Result<Self, ShapeError> {
        let shape = [kv_heads, capacity, head_size];
        check_numbers("keys (numbers)", &shape, keys.len())?;
        check_numbers("values (numbers)", &shape, values.len())?;
        let block = keys.block_len().max(values.block_len());
        crate::error::check_rows("head size (a multiple of the block)", block, head_size)?;
        for (what, found) in [
            ("kv heads, at least", kv_heads),
            ("head size, at least", head_size),
        ] {
            if found == 0 {
                return Err(ShapeError::new(what, 1, found));
            }
        }
        Ok(KvView {
            keys,
            values,
            kv_heads,
            head_size,
            capacity,
            low_rank: None,
        })
    }

    /// Adds low-rank positions: the first [`front`](super::LowRankShape::front) positions of the sequence
    /// are the first full ones of this view, then come those of `low_rank`, then the other full
    /// ones.
    ///
    /// # Errors
    /// When the heads of `low_rank` differ in number or size.
    pub fn with_low_rank(mut self, low_rank: LowRankView<'a>) -> Result<Self, ShapeError> {
        let shape = low_rank.shape;
        check_size("kv heads in low rank", self.kv_heads, shape.kv_heads)?;
        check_size("head size in low rank", self.head_size, shape.head_size)?;
        self.low_rank = Some(low_rank);
        Ok(self)
    }

    /// Number of KV heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Numbers in one key, and in one value.
    pub fn head_size(&self) -> usize {
        self.head_size
    }

    /// Low-rank positions.
    pub fn low_rank(&self) -> Option<&LowRankView<'a>> {
        self.low_rank.as_ref()
    }

    /// Number of low-rank positions, and of the full positions before them.
    pub(crate) fn compressed(&self) -> [usize; 2] {
        self.low_rank
            .map_or([0; 2], |low| [low.shape.positions, low.shape.front])
    }

    /// Row among the full positions of the first full position from `position`.
    pub(crate) fn full_row(&self, position: usize) -> usize {
        let [compressed, front] = self.compressed();
        if position <= front {
            position
        } else {
            front.max(position.saturating_sub(compressed))
        }
    }

    /// Row among the low-rank positions of the first one from `position`.
    pub(crate) fn low_row(&self, position: usize) -> usize {
        let [compressed, front] = self.compressed();
        position.saturating_sub(front).min(compressed)
    }

    /// Capacity of full positions.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Keys and values `[capacity, head_size]` of one head.
    ///
    /// # Panics
    /// When `head >= kv_heads()`.
    pub fn head(&self, head: usize) -> (KvNumbers<'a>, KvNumbers<'a>) {
        let len = self.capacity * self.head_size;
        let range = head * len..(head + 1) * len;
        (self.keys.slice(range.clone()), self.values.slice(range))
    }

    /// Returns empty keys and values of the stored types.
    pub(crate) fn head_types(&self) -> [KvNumbers<'a>; 2] {
        [self.keys.slice(0..0), self.values.slice(0..0)]
    }

    /// Rows `rows` of the keys and values of one head.
    pub(crate) fn rows(&self, head: usize, rows: Range<usize>) -> [KvNumbers<'a>; 2] {
        let start = head * self.capacity;
        let range = (start + rows.start) * self.head_size..(start + rows.end) * self.head_size;
        [self.keys.slice(range.clone()), self.values.slice(range)]
    }

    /// Checks `q [n, heads, head_size]` at positions `position ..` and `out`; returns the number of
    /// query heads.
    pub(crate) fn check_queries(
        &self,
        q: usize,
        n: usize,
        position: usize,
        out: usize,
    ) -> Result<usize, ShapeError> {
        check_size("out (numbers)", q, out)?;
        let group = checked_product("q (numbers)", &[n, self.kv_heads, self.head_size])?;
        crate::error::check_rows("q (numbers, a multiple of the kv heads)", group, q)?;
        let end = position.saturating_add(n);
        let [compressed, front] = self.compressed();
        if end - position > self.capacity || end.saturating_sub(compressed) > self.capacity {
            let most = self.capacity.saturating_add(compressed);
            return Err(ShapeError::new("positions (at most)", most, end));
        }
        let least = compressed.saturating_add(front);
        if position < least && compressed > 0 {
            let what =
                "positions before the queries (those in low rank and in front of them, at least)";
            return Err(ShapeError::new(what, least, position));
        }
        Ok(q.checked_div(n * self.head_size).unwrap_or(0))
    }
}

/// Error of [`Cpu::to_f16`](super::Cpu::to_f16).
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum F16Error {
    /// The result has another length.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A number is not finite or overflows float16.
    #[error("number {index} is {value}; float16 holds finite numbers of at most 65504")]
    Range {
        /// Index of the number.
        index: usize,
        /// Its value.
        value: f32,
    },
}

impl Cpu {
    /// Converts `x` to float16 bits, rounded to nearest with ties to even, as stored in a
    /// [`KvView`].
    ///
    /// A number that is not finite after rounding is an error: an infinite key would silently give
    /// every query a weight of 1 or 0.
    ///
    /// # Errors
    /// [`F16Error::Shape`] when the lengths differ; [`F16Error::Range`] for the first number out of
    /// range; `out` is then unspecified.
    pub fn to_f16(&self, x: &[f32], out: &mut [u16]) -> Result<(), F16Error> {
        const INFINITE: u16 = 0x7C00;
        check_size("out (numbers)", x.len(), out.len())?;
        (self.kernels.attention.f32_to_f16)(x, out);
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

impl Cpu {
    /// Decodes stored numbers to float32, exactly except for the products of codes and scales.
    ///
    /// # Errors
    /// When the lengths differ.
    pub fn to_f32(&self, numbers: KvNumbers<'_>, out: &mut [f32]) -> Result<(), ShapeError> {
        check_size("out (numbers)", numbers.len(), out.len())?;
        if let KvNumbers::F32(numbers) = numbers {
            out.copy_from_slice(numbers);
        }
        numbers.decode_f32(self.kernels, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

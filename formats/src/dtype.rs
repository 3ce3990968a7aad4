//! Element types a tensor may be stored in, and the arithmetic of their blocks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the numbers of a tensor are stored.
///
/// A row of a matrix is a whole number of blocks; a block holds
/// [`block_len`](DType::block_len) numbers in [`block_bytes`](DType::block_bytes) bytes.
/// The layouts are those of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    #[serde(rename = "bf16")]
    BF16,
    /// 32 signed bytes and one f16 scale.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 32 four-bit numbers and one f16 scale.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// 256 four-bit numbers, eight 6-bit scales and minima, two f16 super-scales.
    #[serde(rename = "q4_k")]
    Q4K,
    /// 256 five-bit numbers, eight 6-bit scales and minima, two f16 super-scales.
    #[serde(rename = "q5_k")]
    Q5K,
    /// 256 six-bit numbers, sixteen 8-bit scales, one f16 super-scale.
    #[serde(rename = "q6_k")]
    Q6K,
}

impl DType {
    /// Every type, in the order of GGUF's type identifiers' introduction.
    pub const ALL: [DType; 8] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
    ];

    /// Numbers in a block.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q8_0 | DType::Q4_0 => 32,
            DType::Q4K | DType::Q5K | DType::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q8_0 => 34,
            DType::Q4_0 => 18,
            DType::Q4K => 144,
            DType::Q5K => 176,
            DType::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` numbers; `None` when `cols` is not a whole number of blocks
    /// or the product does not fit.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes of a matrix of `rows` rows of `cols` numbers, under the conditions of
    /// [`row_bytes`](DType::row_bytes).
    pub const fn matrix_bytes(self, rows: usize, cols: usize) -> Option<usize> {
        match self.row_bytes(cols) {
            Some(row) => row.checked_mul(rows),
            None => None,
        }
    }

    /// The name used on the command line and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::Q8_0 => "q8_0",
            DType::Q4_0 => "q4_0",
            DType::Q4K => "q4_k",
            DType::Q5K => "q5_k",
            DType::Q6K => "q6_k",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == text)
            .ok_or_else(|| format!("unknown element type {text:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_json_agree() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{}\"", dtype.name()));
            assert_eq!(serde_json::from_str::<DType>(&json).unwrap(), dtype);
        }
    }

    #[test]
    fn a_row_is_a_whole_number_of_blocks() {
        assert_eq!(DType::Q8_0.row_bytes(64), Some(68));
        assert_eq!(DType::Q8_0.row_bytes(63), None);
        assert_eq!(DType::Q6K.matrix_bytes(3, 512), Some(3 * 420));
        assert_eq!(DType::F32.matrix_bytes(usize::MAX, 2), None);
    }
}

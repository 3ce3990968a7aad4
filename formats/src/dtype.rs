//! Element types of tensors, and their block sizes.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($variant:ident $name:literal $len:literal $bytes:literal $doc:literal;)*) => {
        /// Element type of a tensor.
        ///
        /// A row of a matrix is a whole number of blocks; a block holds
        /// [`block_len`](DType::block_len) numbers in [`block_bytes`](DType::block_bytes) bytes.
        /// The layouts are those of GGUF.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
        #[allow(non_camel_case_types, reason = "names as GGUF has them, in a table")]
        pub enum DType {
            $(
                #[doc = $doc]
                #[serde(rename = $name)]
                $variant,
            )*
            /// Not a block type: a matrix in [column groups](crate::bands), whose separately stored
            /// codes determine its size.
            #[serde(rename = "bands")]
            Bands,
        }

        impl DType {
            /// All block types, whose matrices can be split by rows.
            pub const ALL: &[DType] = &[$(DType::$variant,)*];

            /// Numbers in a block.
            pub const fn block_len(self) -> usize {
                match self { $(DType::$variant => $len,)* DType::Bands => crate::bands::GROUP_COLS }
            }

            /// Bytes of a block; 0 for column groups.
            pub const fn block_bytes(self) -> usize {
                match self { $(DType::$variant => $bytes,)* DType::Bands => 0 }
            }

            /// Name on the command line and in the manifest.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* DType::Bands => "bands" }
            }
        }
    };
}

// Variant, name, numbers per block, bytes per block, description of a block.
dtypes! {
    F32 "f32" 1 4 "IEEE 754 binary32.";
    F16 "f16" 1 2 "IEEE 754 binary16.";
    BF16 "bf16" 1 2 "bfloat16: the upper half of a binary32.";
    F64 "f64" 1 8 "IEEE 754 binary64; decodes to the nearest binary32.";
    I8 "i8" 1 1 "Signed byte.";
    I16 "i16" 1 2 "Signed 16-bit integer.";
    I32 "i32" 1 4 "Signed 32-bit integer; decodes to the nearest binary32.";
    I64 "i64" 1 8 "Signed 64-bit integer; decodes to the nearest binary32.";
    Q4_0 "q4_0" 32 18 "32 four-bit numbers and one f16 scale.";
    Q4_1 "q4_1" 32 20 "32 four-bit numbers, one f16 scale and one f16 minimum.";
    Q5_0 "q5_0" 32 22 "32 five-bit numbers and one f16 scale.";
    Q5_1 "q5_1" 32 24 "32 five-bit numbers, one f16 scale and one f16 minimum.";
    Q8_0 "q8_0" 32 34 "32 signed bytes and one f16 scale.";
    Q8_1 "q8_1" 32 36 "32 signed bytes, one f16 scale and the f16 sum of the numbers.";
    Q2K "q2_k" 256 84 "256 two-bit numbers, sixteen 4-bit scales and minima, two f16 super-scales.";
    Q3K "q3_k" 256 110 "256 three-bit numbers, sixteen 6-bit scales, one f16 super-scale.";
    Q4K "q4_k" 256 144 "256 four-bit numbers, eight 6-bit scales and minima, two f16 super-scales.";
    Q5K "q5_k" 256 176 "256 five-bit numbers, eight 6-bit scales and minima, two f16 super-scales.";
    Q6K "q6_k" 256 210 "256 six-bit numbers, sixteen 8-bit scales, one f16 super-scale.";
    Q8K "q8_k" 256 292 "256 signed bytes, one f32 scale and sixteen 16-bit sums.";
    IQ1S "iq1_s" 256 50 "Groups of eight ternary numbers from a table of 2048; 1.56 bits each.";
    IQ1M "iq1_m" 256 56 "As `iq1_s` with finer scales; 1.75 bits each.";
    IQ2XXS "iq2_xxs" 256 66 "Groups of eight from a table of 256 with signs; 2.06 bits each.";
    IQ2XS "iq2_xs" 256 74 "Groups of eight from a table of 512 with signs; 2.31 bits each.";
    IQ2S "iq2_s" 256 82 "Groups of eight from a table of 1024 with signs; 2.56 bits each.";
    IQ3XXS "iq3_xxs" 256 98 "Groups of four from a table of 256 with signs; 3.06 bits each.";
    IQ3S "iq3_s" 256 110 "Groups of four from a table of 512 with signs; 3.44 bits each.";
    IQ4NL "iq4_nl" 32 18 "32 four-bit indices into a table of sixteen levels, one f16 scale.";
    IQ4XS "iq4_xs" 256 136 "256 indices as in `iq4_nl`, eight 6-bit scales, one f16 super-scale.";
    TQ1_0 "tq1_0" 256 54 "256 ternary numbers, five to a byte, one f16 scale.";
    TQ2_0 "tq2_0" 256 66 "256 ternary numbers of two bits, one f16 scale.";
    MXFP4 "mxfp4" 32 17 "32 four-bit floats (E2M1) and one power-of-two scale (E8M0).";
}

impl DType {
    /// Returns the bytes of a row of `cols` numbers; `None` for partial blocks, on overflow, and
    /// for column groups.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if matches!(self, DType::Bands) || !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Returns the bytes of a matrix, under the conditions of [`row_bytes`](DType::row_bytes).
    pub const fn matrix_bytes(self, rows: usize, cols: usize) -> Option<usize> {
        match self.row_bytes(cols) {
            Some(row) => row.checked_mul(rows),
            None => None,
        }
    }
}

crate::display_name!(DType);

impl FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DType::ALL
            .iter()
            .copied()
            .find(|d| d.name() == text)
            .ok_or_else(|| format!("unknown element type {text:?}"))
    }
}

#[cfg(test)]
mod tests;

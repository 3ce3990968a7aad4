//! Element types of ggml: names and block sizes, including types that cannot be decoded.

use crate::dtype::DType;

macro_rules! ggml_types {
    ($($id:literal $variant:ident $name:literal $len:literal $bytes:literal;)*) => {
        /// An element type of ggml, under ggml's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs, reason = "ggml's own names, in a table")]
        #[repr(u32)]
        pub enum GgmlType { $($variant = $id,)* }

        impl GgmlType {
            /// All types, by identifier.
            pub const ALL: &[GgmlType] = &[$(GgmlType::$variant,)*];

            /// Returns the type of an identifier.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(GgmlType::$variant),)*
                    _ => None,
                }
            }

            /// ggml's name, in capitals.
            pub const fn name(self) -> &'static str {
                match self { $(GgmlType::$variant => $name,)* }
            }

            /// Numbers in a block.
            pub const fn block_len(self) -> u64 {
                match self { $(GgmlType::$variant => $len,)* }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> u64 {
                match self { $(GgmlType::$variant => $bytes,)* }
            }
        }
    };
}

// Identifier, variant, name, numbers per block, bytes per block: `ggml_type` in ggml.h and the
// block structures in ggml-common.h. The interleaved forms of Q4_0 and IQ4_NL (31 to 33, 36 to 38)
// were withdrawn, but files with them exist. 4 and 5 never occurred in GGUF.
ggml_types! {
    0 F32 "F32" 1 4;
    1 F16 "F16" 1 2;
    2 Q4_0 "Q4_0" 32 18;
    3 Q4_1 "Q4_1" 32 20;
    6 Q5_0 "Q5_0" 32 22;
    7 Q5_1 "Q5_1" 32 24;
    8 Q8_0 "Q8_0" 32 34;
    9 Q8_1 "Q8_1" 32 36;
    10 Q2_K "Q2_K" 256 84;
    11 Q3_K "Q3_K" 256 110;
    12 Q4_K "Q4_K" 256 144;
    13 Q5_K "Q5_K" 256 176;
    14 Q6_K "Q6_K" 256 210;
    15 Q8_K "Q8_K" 256 292;
    16 IQ2_XXS "IQ2_XXS" 256 66;
    17 IQ2_XS "IQ2_XS" 256 74;
    18 IQ3_XXS "IQ3_XXS" 256 98;
    19 IQ1_S "IQ1_S" 256 50;
    20 IQ4_NL "IQ4_NL" 32 18;
    21 IQ3_S "IQ3_S" 256 110;
    22 IQ2_S "IQ2_S" 256 82;
    23 IQ4_XS "IQ4_XS" 256 136;
    24 I8 "I8" 1 1;
    25 I16 "I16" 1 2;
    26 I32 "I32" 1 4;
    27 I64 "I64" 1 8;
    28 F64 "F64" 1 8;
    29 IQ1_M "IQ1_M" 256 56;
    30 BF16 "BF16" 1 2;
    31 Q4_0_4_4 "Q4_0_4_4" 32 18;
    32 Q4_0_4_8 "Q4_0_4_8" 32 18;
    33 Q4_0_8_8 "Q4_0_8_8" 32 18;
    34 TQ1_0 "TQ1_0" 256 54;
    35 TQ2_0 "TQ2_0" 256 66;
    36 IQ4_NL_4_4 "IQ4_NL_4_4" 32 18;
    37 IQ4_NL_4_8 "IQ4_NL_4_8" 32 18;
    38 IQ4_NL_8_8 "IQ4_NL_8_8" 32 18;
    39 MXFP4 "MXFP4" 32 17;
    40 NVFP4 "NVFP4" 64 36;
    41 Q1_0 "Q1_0" 128 18;
}

impl GgmlType {
    /// Identifier in the file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Returns the decodable [`DType`], if any. The names of both tables agree but for case.
    pub fn dtype(self) -> Option<DType> {
        DType::ALL
            .iter()
            .copied()
            .find(|&dtype| self.is_same(dtype))
    }

    fn is_same(self, dtype: DType) -> bool {
        self.name().eq_ignore_ascii_case(dtype.name())
    }

    /// Returns the bytes of `rows` rows of `cols` numbers, if possible.
    pub const fn matrix_bytes(self, rows: u64, cols: u64) -> Option<u64> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        match (cols / self.block_len()).checked_mul(self.block_bytes()) {
            Some(row) => row.checked_mul(rows),
            None => None,
        }
    }

    /// Returns GGUF's type, or `None` for column groups. The names of both tables agree but for
    /// case.
    pub fn from_dtype(dtype: DType) -> Option<GgmlType> {
        let mut types = GgmlType::ALL.iter().copied();
        types.find(|found| found.is_same(dtype))
    }
}

crate::display_name!(GgmlType);

#[cfg(test)]
mod tests;

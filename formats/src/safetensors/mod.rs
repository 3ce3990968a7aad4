//! Bounded reader of safetensors (README of the `safetensors` project), and of model folders in the
//! layout of Hugging Face.
//!
//! A file consists of the length of the header as a `u64`, the header, and the data of the tensors
//! without gaps. The header is a JSON object with element type, shape and data offsets of every
//! tensor; texts under the key `__metadata__` are ignored. A model is one such file, or several
//! with an [index](Index), and a `config.json`: a [`ModelFolder`].

mod error;
mod folder;
mod header;
mod index;

use std::ops::Range;

pub use error::SafetensorsError;
pub(crate) use folder::is_computed_buffer;
pub use folder::{CONFIG, INDEX, ModelFolder, Shard, WEIGHTS};
pub use index::Index;

use crate::dtype::DType;

/// Validated header of a safetensors file.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Sorted by name.
    tensors: Vec<TensorInfo>,
}

/// An entry of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor, unique in its file.
    pub name: String,
    /// Element type.
    pub element: Element,
    /// Dimensions, rows first; empty for a scalar. Any may be 0.
    pub shape: Vec<u64>,
    /// Byte range in the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Returns the supported type.
    ///
    /// # Errors
    /// [`SafetensorsError::UnsupportedType`].
    pub fn dtype(&self) -> Result<DType, SafetensorsError> {
        self.element
            .dtype()
            .ok_or_else(|| SafetensorsError::UnsupportedType {
                tensor: self.name.clone(),
                found: self.element,
            })
    }
}

impl Contents {
    /// Parses and validates the bytes of a whole file.
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        header::parse(bytes)
    }

    /// Tensors, sorted by name.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let found = self
            .tensors
            .binary_search_by(|tensor| tensor.name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[found])
    }
}

macro_rules! elements {
    ($($variant:ident $name:literal $bits:literal $dtype:expr;)*) => {
        /// Element types of safetensors, under their own names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, missing_docs, reason = "names as the format has them")]
        pub enum Element { $($variant,)* }

        impl Element {
            /// All types.
            pub const ALL: &[Element] = &[$(Element::$variant,)*];

            /// Name in the header.
            pub const fn name(self) -> &'static str {
                match self { $(Element::$variant => $name,)* }
            }

            /// Bits of a number.
            pub const fn bits(self) -> u64 {
                match self { $(Element::$variant => $bits,)* }
            }

            /// Returns the supported type, if any.
            pub const fn dtype(self) -> Option<DType> {
                match self { $(Element::$variant => $dtype,)* }
            }
        }
    };
}

// Variant, name, bits of a number, decoded type.
elements! {
    F64 "F64" 64 Some(DType::F64);
    F32 "F32" 32 Some(DType::F32);
    F16 "F16" 16 Some(DType::F16);
    BF16 "BF16" 16 Some(DType::BF16);
    F8_E5M2 "F8_E5M2" 8 None;
    F8_E4M3 "F8_E4M3" 8 None;
    F8_E8M0 "F8_E8M0" 8 None;
    F8_E4M3FNUZ "F8_E4M3FNUZ" 8 None;
    F8_E5M2FNUZ "F8_E5M2FNUZ" 8 None;
    F6_E2M3 "F6_E2M3" 6 None;
    F6_E3M2 "F6_E3M2" 6 None;
    F4 "F4" 4 None;
    C64 "C64" 64 None;
    I64 "I64" 64 None;
    U64 "U64" 64 None;
    I32 "I32" 32 None;
    U32 "U32" 32 None;
    I16 "I16" 16 None;
    U16 "U16" 16 None;
    I8 "I8" 8 None;
    U8 "U8" 8 None;
    BOOL "BOOL" 8 None;
}

crate::display_name!(Element);

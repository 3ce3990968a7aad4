//! safetensors, and the folders in which Hugging Face's tools keep models: a bounded reader.
//!
//! A file is, in this order: the length of the header as a `u64`, the header, and the data of the
//! tensors without gaps. The header is a JSON object that gives every tensor its element type,
//! its shape, and where its bytes are, from the start of the data; the key `__metadata__` holds
//! texts that nothing here reads. A model is one such file, or several with an
//! [index](Index) that says which tensor is in which, beside a `config.json`: a [`Folder`].
//!
//! The reader validates a header before it returns, so that whoever holds [`Contents`] can take
//! slices of the file without asking again. The format is specified in the README of the
//! `safetensors` project.

mod error;
mod folder;
mod header;
mod index;

use std::fmt;
use std::ops::Range;

pub use error::{FolderError, IndexError, SafetensorsError};
pub(crate) use folder::is_computed_buffer;
pub use folder::{CONFIG, Folder, INDEX, Shard, WEIGHTS};
pub use index::Index;

use crate::dtype::DType;

/// What is in a safetensors file, validated; the data of the tensors are in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Sorted by name.
    tensors: Vec<TensorInfo>,
}

/// An entry of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name; unique in its file.
    pub name: String,
    /// How its numbers are stored.
    pub element: Element,
    /// Lengths, rows first; none of a single number. Any may be 0.
    pub shape: Vec<u64>,
    /// Where its bytes are, from the start of the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// The type as one that models are read in.
    ///
    /// # Errors
    ///
    /// [`SafetensorsError::UnsupportedType`] names the type and the tensor.
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
    /// Reads and validates the bytes of a whole file.
    ///
    /// # Errors
    ///
    /// [`SafetensorsError`], whose variants are what is checked.
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        header::parse(bytes)
    }

    /// The tensors in the order of their names.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of a name.
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
        /// The element types that safetensors defines, by its own names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, missing_docs, reason = "names as the format has them")]
        pub enum Element { $($variant,)* }

        impl Element {
            /// Every type.
            pub const ALL: &[Element] = &[$(Element::$variant,)*];

            /// The name in the header.
            pub const fn name(self) -> &'static str {
                match self { $(Element::$variant => $name,)* }
            }

            /// Bits of a number.
            pub const fn bits(self) -> u64 {
                match self { $(Element::$variant => $bits,)* }
            }

            /// The type as one that models are read in.
            pub const fn dtype(self) -> Option<DType> {
                match self { $(Element::$variant => $dtype,)* }
            }
        }
    };
}

// Variant, name, bits of a number, and what it is read as.
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

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

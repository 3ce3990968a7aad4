//! GGUF, versions 2 and 3, little-endian (the `ggml` project's `docs/gguf.md`): a bounded reader
//! and a writer.
//!
//! A file consists of magic, version, number of tensors, number of metadata entries, the entries,
//! the tensor table, padding, and tensor data. The reader validates all of it up front.

mod error;
mod ggml_type;
mod reader;
mod split;
mod value;
mod writer;

use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

pub use error::GgufError;
pub use ggml_type::GgmlType;
pub use split::SplitModel;
pub use value::{Array, FromValue, Value, ValueType};
pub use writer::Writer;

use crate::dtype::DType;
use crate::map::MappedFile;
use crate::source::SourceError;

/// Magic bytes of GGUF files.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Default alignment of tensor data.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Metadata key of the alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// Validated contents of a GGUF file, without tensor data.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    version: u32,
    alignment: u64,
    data_offset: u64,
    metadata: Vec<(String, Value)>,
    // Indices into `metadata` and `tensors`, sorted by name.
    key_order: Vec<u32>,
    tensors: Vec<TensorInfo>,
    tensor_order: Vec<u32>,
}

/// An entry of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor, unique in its file.
    pub name: String,
    /// Element type.
    pub ggml_type: GgmlType,
    /// Dimensions in the order of the file: `dims[0]` is the length of a row. One to four, none 0.
    pub dims: Vec<u64>,
    /// Byte range in the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Length of a row.
    pub fn cols(&self) -> usize {
        self.dims[0] as usize
    }

    /// Number of rows: the product of all further dimensions.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product::<u64>() as usize
    }

    /// Returns the decodable type.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedType`].
    pub fn dtype(&self) -> Result<DType, GgufError> {
        self.ggml_type
            .dtype()
            .ok_or_else(|| GgufError::UnsupportedType {
                tensor: self.name.clone(),
                found: self.ggml_type,
            })
    }
}

impl Contents {
    /// Parses and validates the bytes of a whole file.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        reader::parse(bytes)
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Offset of the tensor data; it may exceed the file size without tensors.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Metadata in file order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self
            .key_order
            .binary_search_by(|&i| self.metadata[i as usize].0.as_str().cmp(key))
            .ok()?;
        Some(&self.metadata[self.key_order[found] as usize].1)
    }

    /// Returns the value of a key, if present.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        self.get(key)
            .map(|value| {
                T::from_value(value).ok_or_else(|| GgufError::WrongType {
                    key: key.to_owned(),
                    expected: T::EXPECTED,
                    found: value.describe(),
                })
            })
            .transpose()
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?.ok_or_else(|| GgufError::MissingKey {
            key: key.to_owned(),
            expected: T::EXPECTED,
        })
    }

    /// Tensors in the order of the table.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let found = self
            .tensor_order
            .binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[self.tensor_order[found] as usize])
    }
}

/// A mapped GGUF file. Dereferences to its [`Contents`].
#[derive(Clone, Debug)]
pub struct Gguf {
    map: Arc<MappedFile>,
    contents: Contents,
}

impl Gguf {
    /// Maps and validates the file at `path`.
    ///
    /// # Errors
    ///
    /// [`SourceError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        Gguf::from_map(MappedFile::open(path)?)
    }

    fn from_map(map: MappedFile) -> Result<Self, SourceError> {
        let map = Arc::new(map);
        let contents = Contents::parse(&map).map_err(|error| SourceError::Gguf {
            path: map.path().to_path_buf(),
            error,
        })?;
        Ok(Gguf { map, contents })
    }

    /// The mapped file.
    pub fn map(&self) -> &Arc<MappedFile> {
        &self.map
    }

    /// Returns the bytes of a tensor of this file.
    ///
    /// # Panics
    /// May panic for a tensor of another file.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.map[tensor.range.clone()]
    }
}

impl Deref for Gguf {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

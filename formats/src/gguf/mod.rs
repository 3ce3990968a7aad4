//! GGUF, versions 2 and 3, little-endian: a bounded reader and a writer.
//!
//! A file is, in this order: the magic, the version, the number of tensors, the number of
//! metadata entries, the entries, the tensor table, padding, and the data of the tensors. The
//! reader validates all of it before it returns, in the order of the file, so that whoever holds
//! a [`Gguf`] can take slices of it without asking again. The format is specified in the `ggml`
//! project's `docs/gguf.md`.

mod error;
mod ggml_type;
mod reader;
mod split;
mod value;
mod writer;

use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

pub use error::{GgufError, OpenError, SplitError};
pub use ggml_type::GgmlType;
pub use split::Split;
pub use value::{Array, FromValue, Value, ValueType};
pub use writer::{WriteError, Writer};

use crate::dtype::DType;
use crate::map::MappedFile;

/// The four bytes every GGUF file starts with.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of tensor data in files that do not state one.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The metadata key that states another alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// Everything in a GGUF file except the data of its tensors, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    version: u32,
    alignment: u64,
    data_offset: u64,
    metadata: Vec<(String, Value)>,
    // Positions in `metadata` and `tensors`, sorted by name.
    key_order: Vec<u32>,
    tensors: Vec<TensorInfo>,
    tensor_order: Vec<u32>,
}

/// A row of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name; unique in its file.
    pub name: String,
    /// How its numbers are stored.
    pub ggml_type: GgmlType,
    /// Lengths in the order of the file: `dims[0]` is the length of a row. One to four, none 0.
    pub dims: Vec<u64>,
    /// Where its bytes are, from the start of the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Length of a row.
    pub fn cols(&self) -> usize {
        // Lossless: the reader has checked that all numbers together fit a `usize`.
        self.dims[0] as usize
    }

    /// Rows, all further dimensions taken together.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product::<u64>() as usize
    }

    /// The type as one that this project can decode.
    ///
    /// # Errors
    ///
    /// [`GgufError::UnsupportedType`] names the type and the tensor.
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
    /// Reads and validates the bytes of a whole file.
    ///
    /// # Errors
    ///
    /// [`GgufError`], whose variants are what is checked.
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

    /// Where tensor data begins. In a file without tensors this may lie behind its end, since
    /// padding of nothing may be left out.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// The metadata in the order of the file.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self
            .key_order
            .binary_search_by(|&i| self.metadata[i as usize].0.as_str().cmp(key))
            .ok()?;
        Some(&self.metadata[self.key_order[found] as usize].1)
    }

    /// The value of a key as a `T`; `None` when the key is absent.
    ///
    /// # Errors
    ///
    /// [`GgufError::WrongType`] names the key, what was expected and what was found.
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

    /// The value of a key as a `T`.
    ///
    /// # Errors
    ///
    /// [`GgufError::MissingKey`] when the key is absent, else as [`optional`](Self::optional).
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?.ok_or_else(|| GgufError::MissingKey {
            key: key.to_owned(),
            expected: T::EXPECTED,
        })
    }

    /// The tensors in the order of the file's table.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let found = self
            .tensor_order
            .binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[self.tensor_order[found] as usize])
    }
}

/// A mapped GGUF file. What it says about itself is in its [`Contents`], to which it
/// dereferences.
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
    /// [`OpenError`], which names the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Gguf::of(MappedFile::open(path)?)
    }

    /// Validates a mapped file.
    fn of(map: MappedFile) -> Result<Self, OpenError> {
        let map = Arc::new(map);
        let contents = Contents::parse(&map).map_err(|error| OpenError::Invalid {
            path: map.path().to_path_buf(),
            error,
        })?;
        Ok(Gguf { map, contents })
    }

    /// The mapping.
    pub fn map(&self) -> &Arc<MappedFile> {
        &self.map
    }

    /// The bytes of a tensor of this file.
    ///
    /// # Panics
    ///
    /// May panic when `tensor` is of another file.
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

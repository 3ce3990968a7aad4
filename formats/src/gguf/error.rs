//! Errors of GGUF files.

use super::ggml_type::GgmlType;
use crate::CodecError;
use crate::dtype::DType;
use crate::limits;

/// Error in the contents of a GGUF file or of a split model, in a request for them, or of writing one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum GgufError {
    /// The magic is wrong.
    #[error("not a GGUF file: it starts with \"{}\", expected \"GGUF\"", found.escape_ascii())]
    NotGguf {
        /// First bytes, at most four.
        found: Vec<u8>,
    },
    /// The file is big-endian.
    #[error("big-endian GGUF is not supported; convert the file to little-endian")]
    BigEndian,
    /// The version is not supported.
    #[error("GGUF version {found} is not supported, expected 2 or 3; convert the model anew")]
    Version { found: u32 },
    /// A value could not be read.
    #[error("{item}: {error}")]
    Read { item: String, error: CodecError },
    /// A count exceeds the rest of the file.
    #[error(
        "{place}: {found} stated, the rest of the file can hold {possible} at most; \
         the file is truncated or damaged"
    )]
    Count {
        /// Item counted.
        place: String,
        /// The count.
        found: u64,
        /// Maximum for the remaining bytes.
        possible: u64,
    },
    /// A number exceeds one of [`limits`].
    #[error("{place}: {found} found, {limit} is the most that is supported")]
    Limit {
        /// Item limited.
        place: String,
        /// The number.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The type of a value is not defined by GGUF.
    #[error("metadata {key:?}: unknown value type {found}, expected 0 to 12")]
    ValueType { key: String, found: u32 },
    /// Arrays are nested deeper than [`limits::MAX_ARRAY_DEPTH`].
    #[error(
        "metadata {key:?}: arrays are nested deeper than {} levels",
        limits::MAX_ARRAY_DEPTH
    )]
    Nesting { key: String },
    /// A key occurs twice.
    #[error("metadata {key:?} stands in the file twice")]
    DuplicateKey { key: String },
    /// The alignment is no power of two or too large.
    #[error(
        "metadata \"general.alignment\" is {found}, expected a power of two from 1 to {}",
        limits::MAX_ALIGNMENT
    )]
    Alignment { found: u64 },
    /// A required key is missing.
    #[error("metadata {key:?} is missing, expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// Expected type.
        expected: &'static str,
    },
    /// A value has the wrong type.
    #[error("metadata {key:?}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// Expected type.
        expected: &'static str,
        /// Type and value found.
        found: String,
    },
    /// A tensor name occurs twice.
    #[error("tensor {tensor:?} stands in the table twice")]
    DuplicateTensor { tensor: String },
    /// The number of dimensions is 0 or too large.
    #[error(
        "tensor {tensor:?}: {found} dimensions, expected 1 to {}",
        limits::MAX_DIMENSIONS
    )]
    Dimensions { tensor: String, found: u32 },
    /// A dimension is 0, or their product overflows.
    #[error("tensor {tensor:?}: impossible shape {dims:?}")]
    Shape {
        tensor: String,
        /// Dimensions in the order of the file.
        dims: Vec<u64>,
    },
    /// A shape that a type does not allow, in a file to write.
    #[error("tensor {tensor:?}: impossible shape {dims:?} for type {ggml_type}")]
    ShapeForType {
        tensor: String,
        ggml_type: GgmlType,
        dims: Vec<u64>,
    },
    /// The data to write do not have the length of the tensor.
    #[error("tensor {tensor:?}: {found} bytes of data, expected {expected}")]
    DataLength {
        tensor: String,
        expected: u64,
        found: u64,
    },
    /// A system call failed while writing.
    #[error("GGUF could not be written: {0}")]
    Write(String),
    /// The block size of a type is unknown, and with it the end of the tensor.
    #[error(
        "tensor {tensor:?}: unknown type identifier {found}; the file needs a newer version of \
         this program or is damaged"
    )]
    UnknownType { tensor: String, found: u32 },
    /// The type is known but not supported.
    #[error(
        "tensor {tensor:?}: type {found} is not supported; supported are {}",
        supported()
    )]
    UnsupportedType { tensor: String, found: GgmlType },
    /// A row is not a whole number of blocks.
    #[error("tensor {tensor:?}: a row of {row} numbers is not a multiple of {ggml_type}'s {block}")]
    Row {
        /// The tensor.
        tensor: String,
        /// Its type.
        ggml_type: GgmlType,
        /// Length of a row.
        row: u64,
        /// Length of a block.
        block: u64,
    },
    /// An offset is not aligned.
    #[error("tensor {tensor:?}: offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Offset relative to the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Data extend beyond the end of the file.
    #[error(
        "tensor {tensor:?}: its data end at byte {end}, the file has {length}; \
         the file is truncated, copy or download it again"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// End of its data, saturating.
        end: u64,
        /// Size of the file in bytes.
        length: u64,
    },
    /// Two tensors overlap.
    #[error("tensors {first:?} and {second:?} overlap; the file is damaged")]
    Overlap {
        /// Tensor that starts first.
        first: String,
        /// Tensor that starts within it.
        second: String,
    },
    /// The names of the other parts cannot be derived from this one.
    #[error("this is a part of a model, its name must end in \"{expected}\"; rename it back")]
    PartName {
        /// Expected end of the name.
        expected: String,
    },
    /// The model has too many parts.
    #[error(
        "the model has {found} parts, {} is the most that is supported",
        limits::MAX_FILES
    )]
    PartCount { found: usize },
    /// A part is missing.
    #[error("this part of the model is missing, there are {count}; download it")]
    MissingPart { count: usize },
    /// The file is no part of a model.
    #[error("this file is no part of the model: metadata {key:?} is missing; download it again")]
    NotAPart { key: &'static str },
    /// Metadata of a part differs from the expected value.
    #[error(
        "metadata {key:?} is {found}, expected {expected} as in the other parts or by the name of \
         the file; it is of another model, download it again"
    )]
    PartDiffers {
        /// The key.
        key: String,
        /// Expected value.
        expected: String,
        /// Value found.
        found: String,
    },
    /// A tensor is in two parts.
    #[error("tensor {tensor:?} is in {other:?} too; one of the files is of another model")]
    TensorInTwoParts {
        tensor: String,
        /// File name of the other part.
        other: String,
    },
    /// The number of tensors differs from the stated one.
    #[error(
        "the parts of the model have {found} tensors, expected {expected}; one of the files is of \
         another model"
    )]
    TensorCount {
        /// `split.tensors.count`.
        expected: usize,
        /// Number of tensors in all parts.
        found: usize,
    },
}

fn supported() -> String {
    let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    names.join(", ")
}

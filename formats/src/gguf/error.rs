//! What can be wrong with a GGUF file.

use std::path::PathBuf;

use super::ggml_type::GgmlType;
use crate::dtype::DType;
use crate::limits;
use crate::map::MapError;
use crate::wire::WireError;

/// A file that could not be opened as GGUF. Every message names the path.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The file was mapped and is no valid GGUF.
    #[error("{}: {error}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: GgufError,
    },
    /// The file is a part of a model whose parts do not go together.
    #[error("{}: {error}", path.display())]
    Split {
        /// The part.
        path: PathBuf,
        /// What is wrong with it.
        error: SplitError,
    },
}

/// Why a file is not the part of a model that it should be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// A name from which those of the other parts do not follow.
    #[error("this is a part of a model, its name must end in \"{expected}\"; rename it back")]
    Name {
        /// The end of the name.
        expected: String,
    },
    /// More parts than a model has.
    #[error(
        "the model has {found} parts, {} is the most that is supported",
        limits::MAX_FILES
    )]
    Count {
        /// How many.
        found: usize,
    },
    /// A part that is not there.
    #[error("this part of the model is missing, there are {count}; download it")]
    Missing {
        /// Parts of the model.
        count: usize,
    },
    /// A file that is no part of a model.
    #[error("this file is no part of the model: metadata {key:?} is missing; download it again")]
    NotAPart {
        /// What parts have.
        key: &'static str,
    },
    /// A part of another model, or another part.
    #[error(
        "metadata {key:?} is {found}, expected {expected} as in the other parts or by the name of \
         the file; it is of another model, download it again"
    )]
    Differs {
        /// The key.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A tensor that another part has.
    #[error("tensor {tensor:?} is in {other:?} too; one of the files is of another model")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The name of the other part's file.
        other: String,
    },
    /// More or fewer tensors than stated.
    #[error(
        "the parts of the model have {found} tensors, expected {expected}; one of the files is of \
         another model"
    )]
    Tensors {
        /// `split.tensors.count`.
        expected: usize,
        /// Tensors of all parts.
        found: usize,
    },
}

/// What is wrong with the contents of a GGUF file, or with what was asked of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GgufError {
    /// The magic is another.
    #[error("not a GGUF file: it starts with \"{}\", expected \"GGUF\"", found.escape_ascii())]
    NotGguf {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// The file is of a big-endian machine.
    #[error("big-endian GGUF is not supported; convert the file to little-endian")]
    BigEndian,
    /// A version that this reader does not know.
    #[error("GGUF version {found} is not supported, expected 2 or 3; convert the model anew")]
    Version {
        /// The version.
        found: u32,
    },
    /// A value could not be read.
    #[error("{place}: {error}")]
    Read {
        /// What was being read.
        place: String,
        /// Why it could not be.
        error: WireError,
    },
    /// A count that the rest of the file could not hold.
    #[error(
        "{place}: {found} stated, the rest of the file can hold {possible} at most; \
         the file is truncated or damaged"
    )]
    Count {
        /// What is counted.
        place: String,
        /// The count.
        found: u64,
        /// What the remaining bytes could hold.
        possible: u64,
    },
    /// A number beyond one of [`limits`].
    #[error("{place}: {found} found, {limit} is the most that is supported")]
    Limit {
        /// What is bounded.
        place: String,
        /// The number.
        found: u64,
        /// Its bound.
        limit: u64,
    },
    /// A value of a type that GGUF does not define.
    #[error("metadata {key:?}: unknown value type {found}, expected 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The type's identifier.
        found: u32,
    },
    /// Arrays in arrays beyond [`limits::MAX_ARRAY_DEPTH`].
    #[error(
        "metadata {key:?}: arrays are nested deeper than {} levels",
        limits::MAX_ARRAY_DEPTH
    )]
    Nesting {
        /// The key.
        key: String,
    },
    /// A key that stands in the file twice.
    #[error("metadata {key:?} stands in the file twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// An alignment that is no power of two or too large.
    #[error(
        "metadata \"general.alignment\" is {found}, expected a power of two from 1 to {}",
        limits::MAX_ALIGNMENT
    )]
    Alignment {
        /// The alignment.
        found: u64,
    },
    /// A key that had to be there.
    #[error("metadata {key:?} is missing, expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// The type it should have had.
        expected: &'static str,
    },
    /// A value of another type than the key should have.
    #[error("metadata {key:?}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type it should have had.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A tensor name that stands in the table twice.
    #[error("tensor {tensor:?} stands in the table twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// No dimension, or too many.
    #[error(
        "tensor {tensor:?}: {found} dimensions, expected 1 to {}",
        limits::MAX_DIMENSIONS
    )]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// How many.
        found: u32,
    },
    /// A dimension of length 0, or lengths whose product does not fit.
    #[error("tensor {tensor:?}: impossible shape {dims:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions in the order of the file.
        dims: Vec<u64>,
    },
    /// A type identifier without a known block size: where the tensor ends is not known either.
    #[error(
        "tensor {tensor:?}: unknown type identifier {found}; the file needs a newer version of \
         this program or is damaged"
    )]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The identifier.
        found: u32,
    },
    /// A known type that this project does not decode.
    #[error(
        "tensor {tensor:?}: type {found} is not supported; supported are {}",
        supported()
    )]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: GgmlType,
    },
    /// A row that is no whole number of blocks.
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
    /// An offset that is not aligned.
    #[error("tensor {tensor:?}: offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Data behind the end of the file.
    #[error(
        "tensor {tensor:?}: its data end at byte {end}, the file has {length}; \
         the file is truncated, copy or download it again"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// Where its data would end, saturating.
        end: u64,
        /// Bytes of the file.
        length: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first:?} and {second:?} overlap; the file is damaged")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
}

fn supported() -> String {
    let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    names.join(", ")
}

//! Errors of safetensors.

use super::{CONFIG, Element, INDEX, WEIGHTS};
use crate::limits;

/// Error in the contents of a safetensors file, an index or a model folder, or in a request for
/// them.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum SafetensorsError {
    /// The file is shorter than the length of the header.
    #[error("not a safetensors file: it has {length} bytes, a header's length alone has 8")]
    TooShort { length: usize },
    /// The header is longer than the file.
    #[error(
        "the header has {stated} bytes, {left} are left in the file; the file is truncated or no \
         safetensors, copy or download it again"
    )]
    HeaderLength { stated: u64, left: u64 },
    /// A number exceeds one of [`limits`].
    #[error("{item}: {found} found, {limit} is the most that is supported")]
    Limit {
        /// Item limited.
        item: String,
        /// The number.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The header is no JSON object.
    #[error(
        "not a safetensors file: the header starts with \"{}\", expected \"{{\"",
        found.escape_ascii()
    )]
    NotSafetensors {
        /// First bytes of the header, at most eight.
        found: Vec<u8>,
    },
    /// The header is no valid JSON for its schema.
    #[error("the header is unreadable: {error}; the file is damaged")]
    Json {
        /// The error and its position.
        error: String,
    },
    /// A tensor name occurs twice.
    #[error("tensor {tensor:?} stands in the header twice")]
    DuplicateTensor { tensor: String },
    /// The element type is not defined by the format.
    #[error(
        "tensor {tensor:?}: unknown element type {found:?}; supported are {}",
        supported()
    )]
    UnknownType { tensor: String, found: String },
    /// The element type is not supported.
    #[error(
        "tensor {tensor:?}: element type {found} is not supported; supported are {}",
        supported()
    )]
    UnsupportedType { tensor: String, found: Element },
    /// The offsets contradict type and shape.
    #[error(
        "tensor {tensor:?}: its data are from {start} to {end}, {element} of shape {shape:?} takes {}",
        expected.map_or_else(|| "no whole number of bytes that fits".to_owned(), |bytes| format!("{bytes} bytes"))
    )]
    Length {
        /// The tensor.
        tensor: String,
        /// Its type.
        element: Element,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes implied by type and shape, if representable.
        expected: Option<u64>,
        /// Start of the data.
        start: u64,
        /// End of the data.
        end: u64,
    },
    /// Data extend beyond the end of the file.
    #[error(
        "tensor {tensor:?}: its data end at byte {end} of the data, the file has {length}; \
         the file is truncated, copy or download it again"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// End of its data.
        end: u64,
        /// Bytes of data in the file.
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
    /// Bytes belong to no tensor, which the format forbids.
    #[error(
        "{bytes} bytes {} belong to no tensor; the file is damaged",
        before.as_ref().map_or_else(|| "at the end".to_owned(), |name| format!("before tensor {name:?}"))
    )]
    Gap {
        /// The following tensor; `None` at the end of the file.
        before: Option<String>,
        /// Number of bytes.
        bytes: u64,
    },
    /// The index is no valid JSON for its schema.
    #[error("the index is unreadable: {error}")]
    IndexJson {
        /// The error and its position.
        error: String,
    },
    /// A tensor is listed twice.
    #[error("tensor {tensor:?} is listed twice")]
    ListedTwice { tensor: String },
    /// A shard is not the name of a safetensors file in the folder of the index.
    #[error(
        "tensor {tensor:?} is listed in {shard:?}, expected the name of a .safetensors file in \
         the same folder"
    )]
    ShardName { tensor: String, shard: String },
    /// The folder has no configuration.
    #[error(
        "there is no {CONFIG} in this folder; name the folder of a Hugging Face model, or the \
         model's file"
    )]
    NoConfig,
    /// The folder has no safetensors weights.
    #[error(
        "there is neither {WEIGHTS} nor {INDEX} nor model-00001-of-*.safetensors in this folder; \
         download the weights, or save them as safetensors"
    )]
    NoWeights,
    /// The folder has no index, and shards of two models.
    #[error(
        "there is no {INDEX} in this folder, and there are shards of {first} and of {second} files; \
         download the index, or keep one set of shards"
    )]
    TwoSets {
        /// Smaller number of files.
        first: usize,
        /// Larger number of files.
        second: usize,
    },
    /// A shard of a folder without an index is missing.
    #[error(
        "this file is missing, the names of the other shards state it, and there is no {INDEX}; \
         download it"
    )]
    MissingNumberedShard,
    /// The folder has a single weight file and an index of others.
    #[error("there is {WEIGHTS}, and {INDEX} lists other files; keep the one that is meant")]
    Ambiguous,
    /// The file is no part of the model in its folder.
    #[error("this file is none of the weights of the model in its folder; name the folder")]
    NotAWeight,
    /// A text file is too large.
    #[error("{found} bytes, {limit} is the most that is supported")]
    Size { found: u64, limit: u64 },
    /// The index lists too many files.
    #[error(
        "lists {found} files, {} is the most that is supported",
        limits::MAX_FILES
    )]
    TooManyFiles { found: usize },
    /// A listed file is missing.
    #[error("this file is missing, the index lists it; download it")]
    MissingShard,
    /// A listed tensor is missing.
    #[error(
        "tensor {tensor:?} is not in this file, the index lists it here; \
         download both again"
    )]
    MissingTensor { tensor: String },
    /// A listed tensor is in another file.
    #[error(
        "tensor {tensor:?} is in this file, the index lists it in {listed:?}; \
         download them again"
    )]
    WrongShard { tensor: String, listed: String },
    /// A tensor is in two files.
    #[error("tensor {tensor:?} is in this file and in {other:?}; the model is damaged")]
    TwoShards { tensor: String, other: String },
    /// A tensor is not listed in the index.
    #[error(
        "tensor {tensor:?} is in this file, the index does not list it; \
         download both again"
    )]
    Unlisted {
        /// The tensor.
        tensor: String,
    },
}

fn supported() -> String {
    let supported = Element::ALL.iter().filter(|e| e.dtype().is_some());
    let names: Vec<&str> = supported.map(|e| e.name()).collect();
    names.join(", ")
}

//! What can be wrong with a safetensors file, an index, or a folder of them.

use std::path::PathBuf;

use super::{CONFIG, Element, INDEX, WEIGHTS};
use crate::limits;
use crate::map::MapError;

/// What is wrong with the contents of a safetensors file, or with what was asked of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SafetensorsError {
    /// Not even the length of the header.
    #[error("not a safetensors file: it has {length} bytes, a header's length alone has 8")]
    TooShort {
        /// Bytes of the file.
        length: usize,
    },
    /// A header that is longer than the file.
    #[error(
        "the header has {stated} bytes, {left} are left in the file; the file is truncated or no \
         safetensors, copy or download it again"
    )]
    HeaderLength {
        /// The length stated.
        stated: u64,
        /// Bytes behind it.
        left: u64,
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
    /// A header that is no JSON object.
    #[error(
        "not a safetensors file: the header starts with \"{}\", expected \"{{\"",
        found.escape_ascii()
    )]
    NotSafetensors {
        /// The first bytes of the header, at most eight.
        found: Vec<u8>,
    },
    /// A header that is not JSON, or not such JSON.
    #[error("the header is unreadable: {error}; the file is damaged")]
    Json {
        /// What is wrong, and where.
        error: String,
    },
    /// A name that stands in the header twice.
    #[error("tensor {tensor:?} stands in the header twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A type that the format does not define: what its numbers are is not known.
    #[error(
        "tensor {tensor:?}: unknown element type {found:?}; supported are {}",
        supported()
    )]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: String,
    },
    /// A type that models are not read in.
    #[error(
        "tensor {tensor:?}: element type {found} is not supported; supported are {}",
        supported()
    )]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: Element,
    },
    /// Offsets that do not agree with type and shape.
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
        /// Bytes that type and shape give; `None` where there is no such number.
        expected: Option<u64>,
        /// Where the data begin.
        start: u64,
        /// Where the data end.
        end: u64,
    },
    /// Data behind the end of the file.
    #[error(
        "tensor {tensor:?}: its data end at byte {end} of the data, the file has {length}; \
         the file is truncated, copy or download it again"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// Where its data end.
        end: u64,
        /// Bytes of data in the file.
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
    /// Bytes that belong to no tensor, which the format does not allow.
    #[error(
        "{bytes} bytes {} belong to no tensor; the file is damaged",
        before.as_ref().map_or_else(|| "at the end".to_owned(), |name| format!("before tensor {name:?}"))
    )]
    Gap {
        /// The tensor behind them; `None` at the end of the file.
        before: Option<String>,
        /// How many.
        bytes: u64,
    },
}

fn supported() -> String {
    let supported = Element::ALL.iter().filter(|e| e.dtype().is_some());
    let names: Vec<&str> = supported.map(|e| e.name()).collect();
    names.join(", ")
}

/// What is wrong with an index of shards.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum IndexError {
    /// Not JSON, or not such JSON.
    #[error("the index is unreadable: {error}")]
    Json {
        /// What is wrong, and where.
        error: String,
    },
    /// A name that is listed twice.
    #[error("tensor {tensor:?} is listed twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A shard that is not the name of a safetensors file beside the index.
    #[error(
        "tensor {tensor:?} is listed in {shard:?}, expected the name of a .safetensors file in \
         the same folder"
    )]
    ShardName {
        /// The tensor.
        tensor: String,
        /// What is listed.
        shard: String,
    },
}

/// Why a folder was not opened. Every message names the folder, and the file in it.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A folder of something else.
    #[error(
        "{}: there is no {CONFIG} in this folder; name the folder of a Hugging Face model, or the \
         model's file", folder.display()
    )]
    NoConfig {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder without weights in this format.
    #[error(
        "{}: there is neither {WEIGHTS} nor {INDEX} in this folder; download the weights, or \
         save them as safetensors", folder.display()
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// Weights in one file, and an index of other files.
    #[error(
        "{}: there is {WEIGHTS}, and {INDEX} lists other files; keep the one that is meant",
        folder.display()
    )]
    Ambiguous {
        /// The folder.
        folder: PathBuf,
    },
    /// A file that is no part of the model in its folder.
    #[error(
        "{}: this file is none of the weights of the model in its folder; name the folder",
        path.display()
    )]
    NotAWeight {
        /// The file.
        path: PathBuf,
    },
    /// A file of text that is too large to be one.
    #[error("{}: {found} bytes, {limit} is the most that is supported", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A file of weights is unreadable.
    #[error("{}: {error}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: SafetensorsError,
    },
    /// The index is unreadable.
    #[error("{}: {error}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: IndexError,
    },
    /// More files than a model has.
    #[error("{}: lists {found} files, {} is the most that is supported", path.display(), limits::MAX_FILES)]
    Files {
        /// The index.
        path: PathBuf,
        /// How many.
        found: usize,
    },
    /// A listed file that is not there.
    #[error("{}: this file is missing, the index lists it; download it", path.display())]
    MissingShard {
        /// The file.
        path: PathBuf,
    },
    /// A listed tensor that is nowhere.
    #[error(
        "{}: tensor {tensor:?} is not in this file, the index lists it here; \
         download both again", path.display()
    )]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A listed tensor that is in another file.
    #[error(
        "{}: tensor {tensor:?} is in this file, the index lists it in {listed:?}; \
         download them again", path.display()
    )]
    WrongShard {
        /// The file that has it.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file that should.
        listed: String,
    },
    /// A tensor in two files.
    #[error("{}: tensor {tensor:?} is in this file and in {other:?}; the model is damaged", path.display())]
    TwoShards {
        /// One of them.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The other file.
        other: String,
    },
    /// A tensor that the index does not list.
    #[error(
        "{}: tensor {tensor:?} is in this file, the index does not list it; \
         download both again", path.display()
    )]
    Unlisted {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
}

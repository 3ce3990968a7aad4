//! Limits on the contents of files. All readers also compare a count with the capacity of the
//! remaining bytes before allocating.

/// Metadata entries of a GGUF file.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;

/// Tensors of a file.
pub const MAX_TENSORS: u64 = 1 << 20;

/// Dimensions of a tensor; GGUF's own limit.
pub const MAX_DIMENSIONS: u32 = 4;

/// Bytes of a metadata key; GGUF's own limit.
pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Bytes of a tensor's name; GGUF specifies 64, but some writers exceed it.
pub const MAX_TENSOR_NAME_BYTES: u64 = 255;

/// Bytes of one string.
pub const MAX_STRING_BYTES: u64 = 1 << 24;

/// Memory for the metadata of one file: 256 MiB. The largest published vocabularies take 50 MB.
pub const MAX_METADATA_MEMORY: u64 = 1 << 28;

/// Nesting depth of arrays; bounds the recursion of the reader.
pub const MAX_ARRAY_DEPTH: u32 = 4;

/// Alignment of tensor data in bytes; 1 MiB covers all page sizes of file mappings.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

/// Files of one model.
pub const MAX_FILES: usize = 1 << 12;

/// Bytes of a safetensors header; the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes of a `config.json`.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Bytes of a `model.safetensors.index.json`.
pub const MAX_INDEX_BYTES: u64 = 1 << 24;

/// Layers of a transformer.
pub const MAX_LAYERS: usize = 1 << 12;

/// Experts of a block; published models have up to 512.
pub const MAX_EXPERTS: usize = 1 << 12;

/// Experts of all blocks; published models have up to 24,000. A stack of experts is one tensor in a
/// file, but takes memory for each.
pub const MAX_EXPERTS_OF_MODEL: usize = 1 << 17;

/// Any width of a model: residual stream, feed-forward layer, all heads.
pub const MAX_WIDTH: usize = 1 << 20;

/// Width of a head; published models have up to 512.
pub const MAX_HEAD_SIZE: usize = 1 << 12;

/// Tokens of a vocabulary; the largest published ones have about a million.
pub const MAX_VOCABULARY: usize = 1 << 22;

/// Merges of a vocabulary; the largest published ones have about half a million.
pub const MAX_MERGES: usize = 1 << 22;

/// Bytes of a `tokenizer.json` or `tokenizer.model`; the largest published ones have 33 MB.
pub const MAX_TOKENIZER_FILE_BYTES: u64 = 1 << 26;

/// Bytes of other tokenizer files, such as `tokenizer_config.json`.
pub const MAX_CONFIG_FILE_BYTES: u64 = 1 << 22;

/// Positions of a context.
pub const MAX_CONTEXT: usize = 1 << 30;

/// JSON values in a manifest of format 1, lists and objects included. All are in memory at once, each
/// in up to 650 bytes (an object with one key): 170 MB. A matrix has about 80 values with all that can
/// be stored of it, so that 126 layers of 7 matrices have 71,000; mixtures were compiled only since
/// format 2.
pub const MAX_VALUES_OF_MANIFEST_1: usize = 1 << 18;

/// Features, or notes on a plan, in a manifest; those that are written have some ten.
pub const MAX_TEXTS_OF_MANIFEST: usize = 1 << 16;

/// JSON values in the quality record of a manifest; those that are written have 20.
pub const MAX_VALUES_OF_QUALITY: usize = 1 << 10;

/// Bytes of a trained draft: 2 GiB.
pub const MAX_TRAINED_DRAFT_BYTES: u64 = 1 << 31;

/// Maximum total size of all special tokens in bytes; search tables take some fifty bytes per byte.
pub const MAX_SPECIAL_BYTES: usize = 1 << 20;

/// Maximum size of one special token in bytes; every one that begins at a position of a text is
/// searched there.
pub const MAX_SPECIAL_TOKEN_BYTES: usize = 256;

/// Bytes of the metadata of a source in an artifact: 4 MiB.
pub const MAX_SOURCE_METADATA_BYTES: u64 = 1 << 22;

/// Files of a folder in the metadata of a source; those that are written have some ten.
pub const MAX_METADATA_FILES: usize = 1 << 8;

/// JSON values of a `config.json`, `generation_config.json` or `tokenizer_config.json` that an
/// artifact keeps; published ones have some thousand.
pub const MAX_VALUES_OF_CONFIG: usize = 1 << 16;

//! Limits on the contents of files.
//!
//! All readers compare a count with the capacity of the remaining bytes before allocating, so that
//! memory stays within a small multiple of the file size. Further limits are constants of this
//! module.

/// Metadata entries of a GGUF file. Real files have fewer than a hundred.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;

/// Tensors of a file. The largest published mixtures of experts have some thousands.
pub const MAX_TENSORS: u64 = 1 << 20;

/// Dimensions of a tensor; GGUF's own limit, twice that of dense models.
pub const MAX_DIMENSIONS: u32 = 4;

/// Bytes of a metadata key; GGUF's own limit.
pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Bytes of a tensor's name. GGUF specifies 64, but some writers exceed it.
pub const MAX_TENSOR_NAME_BYTES: u64 = 255;

/// Bytes of one string; chat templates and grammars stay far below 16 MiB.
pub const MAX_STRING_BYTES: u64 = 1 << 24;

/// Memory for the metadata of one file: 256 MiB. A list of short strings takes four times its file
/// size in memory, and a sparse file costs nothing. The largest published vocabularies, with some
/// hundred thousand tokens and merges, take 50 MB.
pub const MAX_METADATA_MEMORY: u64 = 1 << 28;

/// Nesting depth of arrays; bounds the recursion of the reader.
pub const MAX_ARRAY_DEPTH: u32 = 4;

/// Alignment of tensor data in bytes; usually 32. 1 MiB covers all page sizes except huge pages,
/// which file mappings do not need.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

/// Files of one model. The largest published ones have some hundreds.
pub const MAX_FILES: usize = 1 << 12;

/// Bytes of a safetensors header; the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes of a `config.json`; real ones have some thousands. Parsing takes a few dozen times as much
/// memory.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Bytes of a `model.safetensors.index.json`, about 100 per tensor.
pub const MAX_INDEX_BYTES: u64 = 1 << 24;

/// Layers of a transformer.
pub const MAX_LAYERS: usize = 1 << 12;

/// Experts of a block; published models have up to 512.
pub const MAX_EXPERTS: usize = 1 << 12;

/// Any width of a model: residual stream, feed-forward layer, all heads.
pub const MAX_WIDTH: usize = 1 << 20;

/// Width of a head; published models have up to 512. Attention holds some hundred rows of this
/// width per thread, 3 MB at the limit.
pub const MAX_HEAD_SIZE: usize = 1 << 12;

/// Tokens of a vocabulary. The largest published ones have about a million; each takes some 30
/// bytes besides its text.
pub const MAX_VOCABULARY: usize = 1 << 22;

/// Merges of a vocabulary. The largest published ones have about half a million; each takes up to
/// 100 bytes during parsing.
pub const MAX_MERGES: usize = 1 << 22;

/// Bytes of a `tokenizer.json` or `tokenizer.model`. The largest published ones, with 262,144
/// tokens, have 33 MB.
pub const MAX_TOKENIZER_FILE_BYTES: u64 = 1 << 26;

/// Bytes of other tokenizer files, such as `tokenizer_config.json`; the largest, with many added
/// tokens, have 1.2 MB.
pub const MAX_CONFIG_FILE_BYTES: u64 = 1 << 22;

/// Positions of a context.
pub const MAX_CONTEXT: usize = 1 << 30;

/// Bytes of a trained draft: 2 GiB, four times the f32 bases of 32 layers of rank 1024 and width
/// 4096.
pub const MAX_TRAINED_DRAFT_BYTES: u64 = 1 << 31;

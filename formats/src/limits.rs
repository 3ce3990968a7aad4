//! Every cap on what a file may ask for.
//!
//! Two rules hold for all readers. A count is compared with what the remaining bytes could hold
//! before anything is allocated, so that memory stays within a small multiple of the file's
//! size. And whatever is bounded beyond that is bounded by a constant of this module, whose
//! documentation says why the bound is where it is.

/// Metadata entries of a GGUF file. Real files have below a hundred.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;

/// Tensors of a file. The largest published mixtures of experts have some thousands.
pub const MAX_TENSORS: u64 = 1 << 20;

/// Dimensions of a tensor; GGUF's own bound, and twice what the tensors of a dense model have.
pub const MAX_DIMENSIONS: u32 = 4;

/// Bytes of a metadata key; GGUF's own bound.
pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Bytes of a tensor's name. GGUF says 64, but some writers were built with more.
pub const MAX_TENSOR_NAME_BYTES: u64 = 255;

/// Bytes of one string: chat templates and grammars stay far below 16 MiB.
pub const MAX_STRING_BYTES: u64 = 1 << 24;

/// Bytes of memory that the metadata of one file may take: 256 MiB. A list of short strings takes
/// four times the memory that it takes in the file, and a sparse file costs its author nothing; the
/// largest published vocabularies, of some hundred thousand tokens and merges, take 50 MB.
pub const MAX_METADATA_MEMORY: u64 = 1 << 28;

/// Levels of arrays in arrays. The reader recurses once per level, so this bounds its stack.
pub const MAX_ARRAY_DEPTH: u32 = 4;

/// Alignment of tensor data in bytes; the usual one is 32, and 1 MiB covers every page size in
/// use but huge pages, which file mappings do not need.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

/// Files of one model. The largest published ones have some hundreds.
pub const MAX_FILES: usize = 1 << 12;

/// Bytes of a safetensors header; the format's own bound.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes of a `config.json`: real ones have some thousands. What is parsed of it takes a few
/// dozen times as much memory.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Bytes of a `model.safetensors.index.json`, at about 100 for a tensor.
pub const MAX_INDEX_BYTES: u64 = 1 << 24;

/// Blocks of a transformer.
pub const MAX_LAYERS: usize = 1 << 12;

/// Any width of a model: the residual stream, the feed-forward layer, the heads side by side.
pub const MAX_WIDTH: usize = 1 << 20;

/// Width of a head: published models have up to 512. Attention keeps some hundred rows of this width
/// for every thread, 3 MB at the bound.
pub const MAX_HEAD_SIZE: usize = 1 << 12;

/// Tokens of a vocabulary. The largest published ones have about a million; each takes some 30 bytes
/// beside its text.
pub const MAX_VOCABULARY: usize = 1 << 22;

/// Merges of a vocabulary. The largest published ones have about half a million; each takes up to 100
/// bytes while its file is read.
pub const MAX_MERGES: usize = 1 << 22;

/// Bytes of a `tokenizer.json` or a `tokenizer.model`. The largest published ones, of vocabularies
/// of 262,144 tokens, have 33 MB.
pub const MAX_TOKENIZER_FILE_BYTES: u64 = 1 << 26;

/// Bytes of any other file beside a tokenizer, such as `tokenizer_config.json`; those with the most
/// added tokens have 1.2 MB.
pub const MAX_CONFIG_FILE_BYTES: u64 = 1 << 22;

/// Positions of a context.
pub const MAX_CONTEXT: usize = 1 << 30;

/// Bytes of a file of what a draft learnt: 2 GiB, four times the bases in float32 of 32 layers of rank 1024 and width 4096.
pub const MAX_LEARNT_BYTES: u64 = 1 << 31;

//! Errors of KV caches.

use thiserror::Error;

/// Error of a KV cache.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum KvError {
    /// Unknown name of a kind.
    #[error(
        "no KV cache is called `{found}`; there are f32, f16, q8_0, q4_0, q8_0-rotated, q4_0-rotated, static:R, \
         static-hybrid:R and oja:R, with R a part of the head size such as 0.6, or of the energy such as e0.95"
    )]
    Name {
        /// Given name.
        found: String,
    },
    /// A fraction is outside (0, 1].
    #[error("{found} is no part of a head or its energy; it is above 0 and at most 1")]
    FractionRange {
        /// Given fraction.
        found: f32,
    },
    /// An option is out of range.
    #[error("{what} is {found}; expected {expected}")]
    Option {
        /// Name of the option.
        what: &'static str,
        /// Valid values.
        expected: &'static str,
        /// Given value.
        found: f64,
    },
    /// The kind needs bases, and the model has none.
    #[error(
        "the KV cache `{kind}` needs bases of keys and values, and the model has none; compile it with --kv-bases, \
         or use f16 or q8_0"
    )]
    NoBases {
        /// Name of the kind.
        kind: String,
    },
    /// The bases belong to another model.
    #[error(
        "bases of the KV cache: expected {expected} {what}, found {found}; they are of another model, compile with \
         --kv-bases"
    )]
    BasesShape {
        /// Property that differs.
        what: &'static str,
        /// Value of the model.
        expected: usize,
        /// Value of the bases.
        found: usize,
    },
    /// The bases are damaged.
    #[error(
        "bases of the KV cache, layer {layer}, {side} of kv head {head}: {problem}; the file is damaged, compile it \
         again"
    )]
    Bases {
        /// Layer.
        layer: usize,
        /// Head.
        head: usize,
        /// `keys` or `values`.
        side: &'static str,
        /// Description of the problem.
        problem: String,
    },
    /// Heads are not whole blocks.
    #[error(
        "the KV cache `{kind}` stores heads in blocks of {block} numbers, and the model's heads have {head_size}; use \
         f16"
    )]
    HeadSize {
        /// Name of the kind.
        kind: String,
        /// Numbers of a block.
        block: usize,
        /// Dimension of a head.
        head_size: usize,
    },
    /// Too few positions to keep.
    #[error(
        "{found} positions of the KV cache `{kind}` cannot be kept: the first and last positions stay as they are, \
         ask for at least {least}"
    )]
    KeepTooSmall {
        /// Name of the kind.
        kind: String,
        /// Requested number.
        found: usize,
        /// Smallest valid number.
        least: usize,
    },
    /// The backend does not support this.
    #[error("this backend has no KV cache with {what}; use f16")]
    Unsupported {
        /// Missing feature.
        what: &'static str,
    },
    /// No pass has recorded the importance of positions.
    #[error(
        "positions of the KV cache are to be evicted and no pass says which: the last was not that of a prompt; read \
         the prompt with read_prompt"
    )]
    NoImportance,
    /// The kind compresses between steps, so it cannot verify drafts.
    #[error(
        "positions that were foreseen cannot be checked with the KV cache `{kind}`, which compresses between single \
         steps what they have read; write without a draft, or use f32, f16, q8_0 or q4_0"
    )]
    VerifyUnsupported {
        /// Name of the kind.
        kind: String,
    },
    /// A cut before evicted positions.
    #[error(
        "the first {requested} positions cannot be kept: positions in front of position {evicted_at} were evicted; reset \
         the session and read them again"
    )]
    Evicted {
        /// Requested number of positions.
        requested: usize,
        /// Position count at the eviction.
        evicted_at: usize,
    },
}

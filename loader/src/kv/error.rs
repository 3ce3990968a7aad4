//! Why a KV cache is not as it was asked for.

use thiserror::Error;

/// Why a KV cache is not as it was asked for.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum KvError {
    /// No kind is spelt so.
    #[error(
        "no KV cache is called `{found}`; there are f32, f16, q8_0, q4_0, q8_0-rotated, q4_0-rotated, static:R, \
         static-hybrid:R and oja:R, with R a part of the head size such as 0.6, or of the energy such as e0.95"
    )]
    Name {
        /// What was found.
        found: String,
    },
    /// A part outside (0, 1].
    #[error("{found} is no part of a head or its energy; it is above 0 and at most 1")]
    Part {
        /// What was found.
        found: f32,
    },
    /// An option that makes no sense.
    #[error("{what} is {found}; expected {expected}")]
    Option {
        /// Which option.
        what: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// A kind that needs bases, and none.
    #[error(
        "the KV cache `{kind}` needs bases of keys and values, and the model has none; compile it with --kv-bases, \
         or use f16 or q8_0"
    )]
    NoBases {
        /// The kind.
        kind: String,
    },
    /// Bases of another model.
    #[error(
        "bases of the KV cache: expected {expected} {what}, found {found}; they are of another model, compile with \
         --kv-bases"
    )]
    BasesShape {
        /// What does not fit.
        what: &'static str,
        /// What the model has.
        expected: usize,
        /// What the bases have.
        found: usize,
    },
    /// Bases that are damaged.
    #[error(
        "bases of the KV cache, layer {layer}, {side} of kv head {head}: {problem}; the file is damaged, compile it \
         again"
    )]
    Bases {
        /// The layer, from 0.
        layer: usize,
        /// The head, from 0.
        head: usize,
        /// `keys` or `values`.
        side: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Heads that are not whole blocks.
    #[error(
        "the KV cache `{kind}` stores heads in blocks of {block} numbers, and the model's heads have {head_size}; use \
         f16"
    )]
    HeadSize {
        /// The kind.
        kind: String,
        /// Numbers of a block.
        block: usize,
        /// Numbers of a head.
        head_size: usize,
    },
    /// Too few positions to keep.
    #[error(
        "{found} positions of the KV cache `{kind}` cannot be kept: the first and last positions stay as they are, \
         ask for at least {least}"
    )]
    Keep {
        /// The kind.
        kind: String,
        /// What was asked for.
        found: usize,
        /// The fewest.
        least: usize,
    },
    /// A backend without this.
    #[error("this backend has no KV cache with {what}; use f16")]
    Unsupported {
        /// What is missing.
        what: &'static str,
    },
    /// Nothing says which positions are important.
    #[error(
        "positions of the KV cache are to be evicted and no pass says which: the last was not that of a prompt; read \
         the prompt with read_prompt"
    )]
    Importance,
    /// A pass that is to have the bits of single steps, of a kind that compresses between them.
    #[error(
        "positions that were foreseen cannot be checked with the KV cache `{kind}`, which compresses between single \
         steps what they have read; write without a draft, or use f32, f16, q8_0 or q4_0"
    )]
    Foreseen {
        /// The kind.
        kind: String,
    },
    /// A cut in front of where positions were evicted.
    #[error(
        "the first {asked} positions cannot be kept: positions in front of position {evicted_at} were evicted; reset \
         the session and read them again"
    )]
    Evicted {
        /// Positions that were to stay.
        asked: usize,
        /// Positions that had been read when some were evicted.
        evicted_at: usize,
    },
}

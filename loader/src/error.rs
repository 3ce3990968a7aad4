//! What can go wrong between a path and a token.

use std::ops::Range;

use htc_formats::bands::BandsError;
use htc_formats::block::BlockError;
use htc_formats::model::Role;
use htc_formats::source::SourceError;
use htc_kernels::ShapeError;
use thiserror::Error;

use crate::kv::KvError;

/// Why a model cannot be opened or bound.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is missing, damaged or of a kind that is not supported.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A tensor that the architecture needs is not there.
    #[error("tensor {0} is missing; the file is incomplete, make it again")]
    Missing(Role),
    /// A tensor that does not fit the others.
    #[error(
        "tensor {tensor}: expected {} rows of {}, found {} of {}; the file is damaged, make it again",
        expected[0], expected[1], found[0], found[1]
    )]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// Rows and columns that the model's numbers and the other tensors ask for.
        expected: [usize; 2],
        /// Rows and columns that it has.
        found: [usize; 2],
    },
    /// A backend cannot take a tensor.
    #[error("tensor {tensor}: {source}")]
    Backend {
        /// Name of the tensor.
        tensor: String,
        /// What the backend says.
        source: ExecError,
    },
    /// The bytes of a tensor do not decode.
    #[error("tensor {tensor}: {source}")]
    Block {
        /// Name of the tensor.
        tensor: String,
        /// What the decoder says.
        source: BlockError,
    },
    /// The bytes of a matrix in bands do not decode.
    #[error(transparent)]
    Bands(#[from] BandsError),
    /// A basis for a KV cache, or its energies, are none.
    #[error(
        "tensor {tensor}, head {head}: found {found}, expected {expected}; the file is damaged, make it again with \
         `kv_bases`, or go without"
    )]
    KvBasis {
        /// Name of the tensor.
        tensor: String,
        /// The kv head, from 0.
        head: usize,
        /// What it has to be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

/// Why a forward pass fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecError {
    /// Buffers and matrices do not fit together.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A matrix in bands that has other bytes or rows, or a scale that is not finite.
    #[error(transparent)]
    Bands(#[from] BandsError),
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens in the vocabulary.
        vocabulary: usize,
    },
    /// More tokens at once than a batch holds.
    #[error("{found} tokens in one batch, at most {limit} are allowed")]
    Batch {
        /// Tokens given.
        found: usize,
        /// What [`Session::batch`](crate::Session::batch) allows.
        limit: usize,
    },
    /// More positions than the session was made for, where that changes the arithmetic.
    #[error(
        "the sequence would have {found} positions and was begun as one of at most {limit}, which rotates \
         otherwise; begin it with its full context"
    )]
    Context {
        /// Positions it would have.
        found: usize,
        /// What it may have.
        limit: usize,
    },
    /// A rank fraction outside (0, 1].
    #[error("rank fraction {0} is not above 0 and at most 1")]
    RankFraction(f32),
    /// A part of the bytes outside (0, 1].
    #[error("fraction {0} is not above 0 and at most 1")]
    Fraction(f64),
    /// A part of the bytes that the model cannot do with.
    #[error(
        "fraction {asked} is below {least:.3}, the least part of its bytes that this model can execute with; ask for \
         more, or compile it with `planes` 2 or to a smaller size"
    )]
    FractionBelow {
        /// What was asked for.
        asked: f64,
        /// The least.
        least: f64,
    },
    /// More positions kept than there are.
    #[error("the sequence has {found} positions, the first {asked} of them cannot be kept")]
    Truncate {
        /// Positions that were to stay.
        asked: usize,
        /// Positions read so far.
        found: usize,
    },
    /// A block that has not read the positions before.
    #[error(
        "blocks {}..{} asked for behind positions that only blocks {}..{} have read; reset the session first",
        asked.start, asked.end, held.start, held.end
    )]
    Blocks {
        /// Blocks that were to read more.
        asked: Range<usize>,
        /// Blocks that have read the positions so far.
        held: Range<usize>,
    },
    /// A block that the model does not have.
    #[error("block {layer} asked for, the model has {layers}")]
    Layer {
        /// Index of the block, from 0.
        layer: usize,
        /// Blocks of the model.
        layers: usize,
    },
    /// Logits asked for rows that the last batch does not have.
    #[error("logits of rows {start}..{end} asked for, the last batch has {rows}")]
    Rows {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
        /// Rows of the last batch.
        rows: usize,
    },
    /// A key or value that the KV cache cannot hold.
    #[error(
        "layer {layer}: a number of the {side} at position {position} is {value}, which is not finite in the \
         KV cache's type; if it is finite, keep the KV cache in float32, else check the file with its author's digest"
    )]
    KvRange {
        /// The layer, from 0.
        layer: usize,
        /// `key` or `value`.
        side: &'static str,
        /// Position in the sequence.
        position: usize,
        /// The number.
        value: f32,
    },
    /// A KV cache that is not as it was asked for.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// What a model's file holds cannot be read, or has no room where it is executed.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// What goes wrong on a device, in the words of its backend.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// Infinity or NaN where a number is needed.
    #[error(
        "the logits at position {position} are not finite: a tensor of the model holds NaN or infinite \
         numbers, or overflows; check the file with its author's digest"
    )]
    NotFinite {
        /// Position in the sequence.
        position: usize,
    },
}

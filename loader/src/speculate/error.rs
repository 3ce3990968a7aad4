//! Errors of speculative decoding.

use thiserror::Error;

use super::MAX_DRAFT_LENGTH;
use crate::error::{ExecError, LoadError};

/// Error of a speculative decoding setup, or of the adaptation of its draft.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpeculateError {
    /// The tokenizers differ.
    #[error(
        "the draft has another tokenizer: {what}; a draft and the model it drafts for need one vocabulary, take a \
         smaller artifact of the same model"
    )]
    Tokenizer {
        /// First difference.
        what: String,
    },
    /// The vocabulary sizes differ.
    #[error("the draft has {found} tokens in its vocabulary, expected {expected} as the model has")]
    Vocabulary {
        /// Rows of the model's head.
        expected: usize,
        /// Rows of the draft's head.
        found: usize,
    },
    /// The draft length is out of range.
    #[error("a draft has 1 to {MAX_DRAFT_LENGTH} tokens, found {0}")]
    Length(usize),
    /// The session has read positions that the draft has not.
    #[error(
        "the session has read {found} positions and its draft knows {expected} of them; begin both together"
    )]
    Position {
        /// Positions of the draft.
        expected: usize,
        /// Positions of the session.
        found: usize,
    },
    /// No layer of the draft has a basis.
    #[error(
        "the draft has no basis of Q, K and V to adapt; make one with `htc compile --method grc`, or adapt by gradient"
    )]
    NoBasis,
    /// The draft is no compression of the model.
    #[error(
        "the draft has {found} {what}, expected {expected} as the model has: its basis can follow only what it was \
         made from"
    )]
    DraftShape {
        /// Property that differs.
        what: &'static str,
        /// Value of the model.
        expected: usize,
        /// Value of the draft.
        found: usize,
    },
    /// The channels of the residual stream are permuted differently.
    #[error(
        "the draft stores its channels in another order than the model; compile it with `--order off`"
    )]
    ChannelPermutation,
    /// An option is out of range.
    #[error("{what} is {found}, expected {expected}")]
    AdaptOption {
        /// Name of the option.
        what: &'static str,
        /// Valid values.
        expected: &'static str,
        /// Given value.
        found: f64,
    },
    /// The saved state belongs to other models or options.
    #[error(
        "what was learnt is of another {what}: expected {expected}, found {found}; give the file of this pair"
    )]
    StateMismatch {
        /// Property that differs.
        what: &'static str,
        /// Expected value.
        expected: String,
        /// Value of the state.
        found: String,
    },
    /// Weights do not decode.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The forward pass failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

//! A text as windows of tokens, as perplexity is measured and calibration reads.

use htc_formats::htz::{Digest, Hasher};
use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use thiserror::Error;

/// Why a text gives no windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{found} tokens, one window needs {needed}; give a longer text or a smaller --context")]
pub struct TextTooShort {
    /// Tokens of the text.
    pub found: usize,
    /// Tokens of a window.
    pub needed: usize,
}

/// The windows of a text. The text is tokenised once and cut; the first token of each window is
/// replaced by BOS where the model asks for one.
#[derive(Clone, Debug)]
pub struct Windows {
    tokens: Vec<u32>,
    context: usize,
}

impl Windows {
    /// The windows of `context` tokens that a text holds, the first `most` of them.
    ///
    /// # Errors
    /// [`TextTooShort`] where there is not one.
    pub fn new(
        tokenizer: &Tokenizer,
        text: &str,
        context: usize,
        most: Option<usize>,
    ) -> Result<Windows, TextTooShort> {
        let mut tokens = tokenizer.encode(text, AddSpecial::AsVocabulary);
        let held = tokens.len().checked_div(context).unwrap_or(0);
        if held == 0 {
            return Err(TextTooShort {
                found: tokens.len(),
                needed: context,
            });
        }
        tokens.truncate(held.min(most.unwrap_or(held)) * context);
        let vocabulary = tokenizer.vocabulary();
        if let Some(bos) = vocabulary.bos.filter(|_| vocabulary.add_bos) {
            for window in tokens.chunks_exact_mut(context) {
                window[0] = bos;
            }
        }
        Ok(Windows { tokens, context })
    }

    /// Every window in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.tokens.chunks_exact(self.context)
    }

    /// Digest of the ids of all tokens, as 32-bit little-endian numbers.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::default();
        for token in &self.tokens {
            hasher.update(&token.to_le_bytes());
        }
        hasher.finish()
    }

    /// Windows.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// Tokens of all windows together.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens of a window.
    pub fn context(&self) -> usize {
        self.context
    }
}

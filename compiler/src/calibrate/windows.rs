//! A text as windows of tokens, as perplexity is measured and calibration reads.

use htc_formats::htz::{Digest, Hasher};
use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use thiserror::Error;

/// Why a text gives no windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{found} tokens, one window needs {needed}; give a longer text or a smaller `context`")]
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

    /// The first windows, `most` at most, and behind them an eighth as many that are held out: what
    /// is decided on the first is measured on the others. A text without more windows than `most`
    /// gives an eighth of its own; one with a single window holds nothing out.
    pub fn hold_out(mut self, most: usize) -> (Windows, Option<Windows>) {
        let eighth = |windows: usize| (windows / 8).max(1);
        let (count, context) = (self.count(), self.context);
        let (first, held) = match count {
            0 | 1 => (count, 0),
            _ if count > most => (most, eighth(most).min(count - most)),
            _ => (count - eighth(count), eighth(count)),
        };
        let mut tokens = self.tokens.split_off(first * context);
        tokens.truncate(held * context);
        let held = (held > 0).then_some(Windows { tokens, context });
        (self, held)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn split(count: usize, most: usize) -> (Vec<u32>, Option<Vec<u32>>) {
        let tokens = (0..2 * count as u32).collect();
        let windows = Windows { tokens, context: 2 };
        let (first, held) = windows.hold_out(most);
        (first.tokens, held.map(|held| held.tokens))
    }

    #[test]
    fn what_is_held_out_lies_behind_what_is_used() {
        // Text to spare: an eighth more.
        assert_eq!(split(20, 16), ((0..32).collect(), Some((32..36).collect())));
        // Less to spare than an eighth.
        assert_eq!(split(17, 16), ((0..32).collect(), Some((32..34).collect())));
        // Nothing to spare.
        assert_eq!(split(16, 16), ((0..28).collect(), Some((28..32).collect())));
        assert_eq!(split(3, 16), ((0..4).collect(), Some((4..6).collect())));
        assert_eq!(split(2, 1), ((0..2).collect(), Some((2..4).collect())));
        assert_eq!(split(1, 16), ((0..2).collect(), None));
    }
}

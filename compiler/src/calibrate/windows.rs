//! Windows of tokens for perplexity and calibration.

use std::ops::Range;

use htc_formats::htz::{Digest, Hasher};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};

use super::PassError;

/// Unless a quarter of the calibration windows is more.
pub(crate) const MAX_HELD_OUT: usize = 64;

/// Windows of a text, tokenised once and cut; the first token of each window is replaced by BOS if
/// used.
#[derive(Clone, Debug)]
pub struct Windows {
    tokens: Vec<u32>,
    context: usize,
}

impl Windows {
    /// Cuts a text into at most `most` windows.
    ///
    /// # Errors
    /// [`PassError::TextTooShort`].
    pub fn new(
        tokenizer: &Tokenizer,
        text: &str,
        context: usize,
        most: Option<usize>,
    ) -> Result<Windows, PassError> {
        let mut tokens = tokenizer.encode(text, AddSpecialTokens::AsConfigured);
        let held = tokens.len().checked_div(context).unwrap_or(0);
        if held == 0 {
            return Err(PassError::TextTooShort {
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

    /// Splits into at most `most` calibration windows and held-out windows after them: at least a
    /// quarter, and surplus text up to half of the calibration windows or `MAX_HELD_OUT`.
    pub fn hold_out(mut self, most: usize) -> (Windows, Option<Windows>) {
        let context = self.context;
        let (first, held) = split_counts(self.count(), most);
        let mut tokens = self.tokens.split_off(first * context);
        tokens.truncate(held * context);
        let held = (held > 0).then_some(Windows { tokens, context });
        (self, held)
    }

    fn every_other(&self, from: usize) -> Windows {
        Windows {
            tokens: self
                .iter()
                .skip(from)
                .step_by(2)
                .flatten()
                .copied()
                .collect(),
            context: self.context,
        }
    }

    fn joined(texts: impl IntoIterator<Item = Windows>) -> Option<Windows> {
        let joined = texts.into_iter().reduce(|mut all, text| {
            all.tokens.extend(text.tokens);
            all
        });
        joined.filter(|all| !all.tokens.is_empty())
    }

    /// Iterates over the windows.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.tokens.chunks_exact(self.context)
    }

    /// Returns the digest of all token ids, as 32-bit little-endian numbers.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::default();
        for token in &self.tokens {
            hasher.update(&token.to_le_bytes());
        }
        hasher.finish()
    }

    /// Returns the tokens at positions counted through all windows.
    pub fn tokens_at(&self, positions: Range<usize>) -> &[u32] {
        &self.tokens[positions]
    }

    /// Returns the number of windows.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// Returns the number of tokens of all windows.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the window length.
    pub fn context(&self) -> usize {
        self.context
    }
}

/// Returns the numbers of calibration windows and of held-out windows of
/// [`Windows::hold_out`] among `count`.
pub(crate) fn split_counts(count: usize, most: usize) -> (usize, usize) {
    let least = (count.min(most) / 4).max(2).min(count.saturating_sub(1));
    let first = most.min(count - least);
    let held = (first / 2).min(MAX_HELD_OUT).min(count - first).max(least);
    (first, held)
}

/// Windows of several texts, each with a weight for its tokens.
#[derive(Clone, Debug)]
pub struct WeightedWindows {
    windows: Windows,
    shares: Vec<(usize, f64)>,
}

impl WeightedWindows {
    /// Joins texts of one window length; `None` without windows.
    pub fn new(texts: Vec<(Windows, f64)>) -> Option<WeightedWindows> {
        let shares = texts.iter().map(|(of, weight)| (of.count(), *weight));
        let shares = shares.collect();
        let windows = Windows::joined(texts.into_iter().map(|(windows, _)| windows))?;
        Some(WeightedWindows { windows, shares })
    }

    /// Returns about `most` windows, spread evenly, at least one of each text.
    #[must_use]
    pub fn thinned(&self, most: usize) -> WeightedWindows {
        let (windows, all) = (&self.windows, self.windows.count().max(1));
        let (mut first, mut tokens, mut shares) = (0, Vec::new(), Vec::new());
        for &(count, weight) in &self.shares {
            let part = (count * most.min(all) + all / 2) / all;
            let kept = part.max(1).min(count);
            for index in 0..kept {
                let window = first + (2 * index + 1) * count / (2 * kept);
                let context = windows.context;
                tokens.extend_from_slice(&windows.tokens[window * context..][..context]);
            }
            shares.push((kept, weight));
            first += count;
        }
        let context = windows.context;
        WeightedWindows {
            windows: Windows { tokens, context },
            shares,
        }
    }

    /// Returns all windows, text by text.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Returns the ratio of the weights if the window at `index` begins a text.
    pub fn reweigh_factor_at(&self, index: usize) -> Option<f64> {
        let mut first = 0;
        self.shares.windows(2).find_map(|pair| {
            first += pair[0].0;
            (first == index).then_some(pair[0].1 / pair[1].1)
        })
    }

    /// Returns a text that identifies the tokens, the windows and the weights, for cache keys.
    pub fn cache_key_text(&self) -> String {
        let (windows, shares) = (&self.windows, &self.shares);
        let mut named = format!(
            "context {}\ntokens {}\n",
            windows.context(),
            windows.digest()
        );
        if shares.len() > 1 {
            named.push_str(&format!("windows and weights {shares:?}\n"));
        }
        named
    }
}

/// Held-out windows. Even windows of each text form the validation split, odd ones the test split.
#[derive(Clone, Debug)]
pub struct HeldOut {
    texts: Vec<Windows>,
}

impl HeldOut {
    /// Creates the split; `None` without windows.
    pub fn new(texts: Vec<Windows>) -> Option<HeldOut> {
        let found = HeldOut { texts };
        (found.count() > 0).then_some(found)
    }

    /// Returns the number of windows.
    pub fn count(&self) -> usize {
        self.texts.iter().map(Windows::count).sum()
    }

    /// Returns all windows.
    pub fn all(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().cloned())
    }

    /// Returns the validation split.
    pub fn validation(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().map(|text| text.every_other(0)))
    }

    /// Returns the validation split without the first text, if there are others.
    pub fn validation_of_other_texts(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().skip(1).map(|text| text.every_other(0)))
    }

    /// Returns the test split.
    pub fn test(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().map(|text| text.every_other(1)))
    }
}

#[cfg(test)]
mod tests;

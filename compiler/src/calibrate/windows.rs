//! A text as windows of tokens, as perplexity is measured and calibration reads.

use std::ops::Range;

use htc_formats::htz::{Digest, Hasher};
use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use thiserror::Error;

/// Windows at most that are measured of a text, but for a quarter of what is calibrated on.
pub(super) const MOST_HELD_OUT: usize = 64;

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

    /// The first windows, `most` at most, and those behind them that are held out: what is decided on
    /// the first is measured on the others. Held out are a quarter as many as `most`, or as there are, half of
    /// which may decide and half report; they are at least two where there are three windows. Where text is left
    /// behind these it is held out, too, until they are half as many as the first or `MOST_HELD_OUT`: that takes
    /// nothing from what is calibrated on, and a mean over twice as many windows is surer by a factor of 1.4. A text
    /// with a single window holds nothing out.
    pub fn hold_out(mut self, most: usize) -> (Windows, Option<Windows>) {
        let (count, context) = (self.count(), self.context);
        let least = (count.min(most) / 4).max(2).min(count.saturating_sub(1));
        let first = most.min(count - least);
        let held = (first / 2).min(MOST_HELD_OUT).min(count - first).max(least);
        let mut tokens = self.tokens.split_off(first * context);
        tokens.truncate(held * context);
        let held = (held > 0).then_some(Windows { tokens, context });
        (self, held)
    }

    /// Every other window, from the one of that index on.
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

    /// The windows of several texts, of one length; `None` where there is no window.
    fn joined(texts: impl IntoIterator<Item = Windows>) -> Option<Windows> {
        let joined = texts.into_iter().reduce(|mut all, text| {
            all.tokens.extend(text.tokens);
            all
        });
        joined.filter(|all| !all.tokens.is_empty())
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

    /// The tokens of some positions, counted through all windows.
    pub fn tokens_at(&self, positions: Range<usize>) -> &[u32] {
        &self.tokens[positions]
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

/// The windows of several texts, whose tokens count by a weight of their text.
#[derive(Clone, Debug)]
pub struct Mixture {
    windows: Windows,
    /// By text, its windows and its weight.
    shares: Vec<(usize, f64)>,
}

impl Mixture {
    /// The windows of texts of one window length, each with its weight; `None` where there is no window.
    pub fn new(texts: Vec<(Windows, f64)>) -> Option<Mixture> {
        let shares = texts.iter().map(|(of, weight)| (of.count(), *weight));
        let shares = shares.collect();
        let windows = Windows::joined(texts.into_iter().map(|(windows, _)| windows))?;
        Some(Mixture { windows, shares })
    }

    /// About `most` of the windows, spread evenly over each text; at least one of each.
    #[must_use]
    pub fn thinned(&self, most: usize) -> Mixture {
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
        Mixture {
            windows: Windows { tokens, context },
            shares,
        }
    }

    /// All windows, text by text.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Where the window of that index is the first of a text, the weight of the text before it over its
    /// own: what was summed until then is to be multiplied by it.
    pub fn reweighed_at(&self, index: usize) -> Option<f64> {
        let mut first = 0;
        self.shares.windows(2).find_map(|pair| {
            first += pair[0].0;
            (first == index).then_some(pair[0].1 / pair[1].1)
        })
    }

    /// What statistics depend on, as a text: the tokens, the windows, and the weights where there are
    /// several texts.
    pub fn named(&self) -> String {
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

/// Windows that nothing is calibrated on, text by text. Every other window of each text decides what has no
/// closed form, from the first on; those between them decide nothing, so that what is measured on them is
/// no better than on any such text. Neighbours alternate because a text's parts differ more than they do.
#[derive(Clone, Debug)]
pub struct HeldOut {
    texts: Vec<Windows>,
}

impl HeldOut {
    /// Those of some texts; `None` where there is not one window.
    pub fn new(texts: Vec<Windows>) -> Option<HeldOut> {
        let found = HeldOut { texts };
        (found.count() > 0).then_some(found)
    }

    /// Windows.
    pub fn count(&self) -> usize {
        self.texts.iter().map(Windows::count).sum()
    }

    /// All windows, for what is decided without them.
    pub fn all(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().cloned())
    }

    /// Those that decide: the first of each text, its third and so on.
    pub fn choosing(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().map(|text| text.every_other(0)))
    }

    /// Those that decide, without the first text's; `None` where there is no other text.
    pub fn choosing_elsewhere(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().skip(1).map(|text| text.every_other(0)))
    }

    /// Those that report: the second of each text, its fourth and so on; `None` where no text has two.
    pub fn reporting(&self) -> Option<Windows> {
        Windows::joined(self.texts.iter().map(|text| text.every_other(1)))
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
        // Text to spare: half as much, or what there is; at least a quarter.
        assert_eq!(split(30, 16), ((0..32).collect(), Some((32..48).collect())));
        assert_eq!(split(22, 16), ((0..32).collect(), Some((32..44).collect())));
        assert_eq!(split(20, 16), ((0..32).collect(), Some((32..40).collect())));
        // No more than are measured of a text of its own, but for that quarter.
        for (most, held) in [(140, 64), (200, 64), (300, 75)] {
            let (used, found) = split(1000, most);
            assert_eq!((used.len(), found.unwrap().len()), (2 * most, 2 * held));
        }
        // Less to spare than a quarter, and nothing.
        assert_eq!(split(17, 16), ((0..26).collect(), Some((26..34).collect())));
        assert_eq!(split(16, 16), ((0..24).collect(), Some((24..32).collect())));
        assert_eq!(split(3, 16), ((0..2).collect(), Some((2..6).collect())));
        assert_eq!(split(2, 1), ((0..2).collect(), Some((2..4).collect())));
        assert_eq!(split(1, 16), ((0..2).collect(), None));
        assert_eq!(split(0, 16), (vec![], None));
    }

    /// No window that decides is among those that report, and together they are all.
    #[test]
    fn what_decides_does_not_report() {
        let text = |tokens: std::ops::Range<u32>| Windows {
            tokens: tokens.collect(),
            context: 2,
        };
        let tokens = |windows: Option<Windows>| windows.map(|found| found.tokens);
        let found = HeldOut::new(vec![text(0..10), text(20..26)]).unwrap();
        assert_eq!(found.count(), 8);
        let choosing = vec![0, 1, 4, 5, 8, 9, 20, 21, 24, 25];
        assert_eq!(tokens(found.choosing()), Some(choosing));
        let elsewhere = vec![20, 21, 24, 25];
        assert_eq!(tokens(found.choosing_elsewhere()), Some(elsewhere));
        let reporting = vec![2, 3, 6, 7, 22, 23];
        assert_eq!(tokens(found.reporting()), Some(reporting));
        assert_eq!(tokens(found.all()), Some((0..10).chain(20..26).collect()));
        // One window may decide, and then there is none left.
        let one = HeldOut::new(vec![text(0..2)]).unwrap();
        assert_eq!(tokens(one.choosing()), Some(vec![0, 1]));
        assert_eq!(tokens(one.reporting()), None);
        assert_eq!(tokens(one.choosing_elsewhere()), None);
        assert!(HeldOut::new(vec![text(0..0)]).is_none());
    }

    #[test]
    fn sums_change_their_weight_where_a_text_begins() {
        let text = |count: u32| Windows {
            tokens: (0..2 * count).collect(),
            context: 2,
        };
        let of = |weights: [f64; 3]| {
            let counts = [3, 1, 2];
            Mixture::new(counts.map(text).into_iter().zip(weights).collect()).unwrap()
        };
        let mixture = of([1.0, 0.5, 2.0]);
        let found: Vec<Option<f64>> = (0..6).map(|i| mixture.reweighed_at(i)).collect();
        assert_eq!(found, [None, None, None, Some(2.0), Some(0.25), None]);
        assert_eq!(mixture.windows().count(), 6);
        assert_ne!(mixture.named(), of([1.0, 0.5, 3.0]).named());
        assert!(Mixture::new(Vec::new()).is_none());
    }

    /// Every text keeps its share, its weight and its order.
    #[test]
    fn a_part_of_the_windows_is_spread_over_every_text() {
        let text = |tokens: Range<u32>| Windows {
            tokens: tokens.collect(),
            context: 1,
        };
        let texts = vec![
            (text(0..12), 1.0),
            (text(100..106), 2.0),
            (text(200..201), 3.0),
        ];
        let all = Mixture::new(texts).unwrap();
        let kept = all.thinned(6);
        assert_eq!(kept.windows.tokens, [1, 4, 7, 10, 101, 104, 200]);
        assert_eq!(kept.shares, [(4, 1.0), (2, 2.0), (1, 3.0)]);
        assert_eq!(all.thinned(100).windows.tokens, all.windows.tokens);
        assert_eq!(all.thinned(0).windows.count(), 3);
    }
}

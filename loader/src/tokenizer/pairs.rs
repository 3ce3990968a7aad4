//! Joining tokens by an ordered list of pairs (byte pair encoding, Sennrich et al. 2016): of all
//! neighbours, the pair that comes first in the list, the left-most of equals, until none is left.

use std::collections::HashMap;

use htc_formats::vocab::Vocabulary;

use super::TokenizerError;
use super::queue::{Pair, PairQueue};

/// No token.
pub(super) const NONE: u32 = u32::MAX;

/// Positions are 32-bit. A longer sequence is cut; it would take a word of more than 4 G bytes.
const MAX_PART: usize = u32::MAX as usize - 4;

/// What two neighbours become.
#[derive(Clone, Copy, Debug)]
struct Joint {
    /// Position in the list.
    rank: u32,
    /// The token that they are together.
    token: u32,
}

/// The list of pairs, to be looked up.
#[derive(Clone, Debug)]
pub(super) struct Pairs(HashMap<(u32, u32), Joint>);

impl Pairs {
    /// `ids` are the ids of the vocabulary's texts.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
    ) -> Result<Self, TokenizerError> {
        let mut pairs = HashMap::with_capacity(vocabulary.merges.len());
        let mut text = String::new();
        for (rank, &(left, right)) in (0..).zip(&vocabulary.merges) {
            text.clear();
            text += &vocabulary.tokens[left as usize];
            text += &vocabulary.tokens[right as usize];
            let Some(&token) = ids.get(text.as_str()) else {
                return Err(TokenizerError::MergeResult { merge: rank, text });
            };
            if let Some(Joint { rank: first, .. }) =
                pairs.insert((left, right), Joint { rank, token })
            {
                return Err(TokenizerError::MergeTwice {
                    first,
                    second: rank,
                    text,
                });
            }
        }
        Ok(Self(pairs))
    }

    /// Buffers for joining.
    pub(super) fn start(&self) -> Joining<'_> {
        Joining {
            pairs: self,
            symbols: Vec::new(),
            queue: PairQueue::new(),
        }
    }
}

/// A token, found by the position of its first part. The next one starts where it ends.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// Its id; `NONE` is never joined.
    token: u32,
    /// Parts it was made of; 0 at a position where no token starts any more.
    len: u32,
    /// Position of the one before; `NONE` for the first.
    previous: u32,
}

/// Joining in progress: the buffers of one sequence, used again for the next.
#[derive(Debug)]
pub(super) struct Joining<'a> {
    pairs: &'a Pairs,
    symbols: Vec<Symbol>,
    queue: PairQueue,
}

impl Joining<'_> {
    /// Adds a token to the sequence that is to be joined.
    pub(super) fn push(&mut self, token: u32, ids: &mut Vec<u32>) {
        if self.symbols.len() >= MAX_PART {
            self.finish(ids);
        }
        let position = self.symbols.len() as u32;
        self.symbols.push(Symbol {
            token,
            len: 1,
            previous: position.wrapping_sub(1),
        });
        if position > 0 {
            self.offer(position - 1, position);
        }
    }

    /// Joins what was pushed, appends its tokens and leaves the buffers empty.
    pub(super) fn finish(&mut self, ids: &mut Vec<u32>) {
        let end = self.symbols.len() as u32;
        while let Some(Pair { left, len, .. }) = self.queue.pop() {
            let Symbol {
                len: left_len,
                previous,
                token,
            } = self.symbols[left as usize];
            // Tokens only ever grow, or vanish into the one before. So the pair is as it was found
            // exactly if the left one is there and both have the same length together.
            let right = left + left_len;
            if left_len == 0 || right == end || left_len + self.symbols[right as usize].len != len {
                continue;
            }
            let Some(joint) = self.joint(token, self.symbols[right as usize].token) else {
                continue;
            };
            let symbol = &mut self.symbols[left as usize];
            symbol.token = joint.token;
            symbol.len = len;
            self.symbols[right as usize].len = 0;
            let next = left + len;
            if next != end {
                self.symbols[next as usize].previous = left;
                self.offer(left, next);
            }
            if previous != NONE {
                self.offer(previous, left);
            }
        }
        let mut at = 0;
        while let Some(symbol) = self.symbols.get(at) {
            if symbol.token != NONE {
                ids.push(symbol.token);
            }
            at += symbol.len as usize;
        }
        self.symbols.clear();
    }

    fn joint(&self, left: u32, right: u32) -> Option<Joint> {
        self.pairs.0.get(&(left, right)).copied()
    }

    /// Queues two neighbours if they are in the list.
    fn offer(&mut self, left: u32, right: u32) {
        let (a, b) = (self.symbols[left as usize], self.symbols[right as usize]);
        if let Some(Joint { rank, .. }) = self.joint(a.token, b.token) {
            self.queue.push(Pair {
                rank,
                left,
                len: a.len + b.len,
            });
        }
    }
}

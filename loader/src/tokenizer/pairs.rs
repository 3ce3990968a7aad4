//! Byte pair encoding (Sennrich et al. 2016): the adjacent pair that comes first in the list is
//! merged, the left-most first.

use std::collections::HashMap;

use htc_formats::vocab::{Vocabulary, VocabularyError};

use super::ABSENT;
use super::queue::{Pair, PairQueue};

/// Longest part, because positions are 32-bit; longer ones are cut.
const MAX_PART: usize = u32::MAX as usize - 4;

#[derive(Clone, Copy, Debug)]
struct MergeRule {
    rank: u32,
    token: u32,
}

#[derive(Clone, Debug)]
pub(super) struct MergeList(HashMap<(u32, u32), MergeRule>);

impl MergeList {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
    ) -> Result<Self, VocabularyError> {
        let mut pairs = HashMap::with_capacity(vocabulary.merges.len());
        let text = |left, right| {
            let [left, right] = [left, right].map(|id: u32| &*vocabulary.tokens[id as usize]);
            [left, right].concat()
        };
        for (rank, &(left, right)) in (0..).zip(&vocabulary.merges) {
            let Some(token) = vocabulary.merge_result(ids, left, right) else {
                return Err(VocabularyError::MergeResult {
                    merge: rank,
                    text: text(left, right),
                });
            };
            if let Some(MergeRule { rank: first, .. }) =
                pairs.insert((left, right), MergeRule { rank, token })
            {
                return Err(VocabularyError::DuplicateMerge {
                    first,
                    second: rank,
                    text: text(left, right),
                });
            }
        }
        Ok(Self(pairs))
    }

    pub(super) fn start(&self) -> MergeListBuffers<'_> {
        MergeListBuffers {
            pairs: self,
            symbols: Vec::new(),
            queue: PairQueue::new(),
        }
    }
}

/// Token, indexed by the position of its first part.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// `ABSENT` is never merged.
    token: u32,
    /// Length in parts; 0 if no token starts here.
    len: u32,
    /// Position of the previous symbol; `ABSENT` for the first.
    previous: u32,
}

#[derive(Debug)]
pub(super) struct MergeListBuffers<'a> {
    pairs: &'a MergeList,
    symbols: Vec<Symbol>,
    queue: PairQueue,
}

impl MergeListBuffers<'_> {
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
            self.queue_pair(position - 1, position);
        }
    }

    pub(super) fn finish(&mut self, ids: &mut Vec<u32>) {
        let end = self.symbols.len() as u32;
        while let Some(Pair { left, len, .. }) = self.queue.pop() {
            let Symbol {
                len: left_len,
                previous,
                token,
            } = self.symbols[left as usize];
            // Tokens only grow, or vanish into the previous one, so the pair is unchanged if the
            // left one exists and both have the same total length.
            let right = left + left_len;
            if left_len == 0 || right == end || left_len + self.symbols[right as usize].len != len {
                continue;
            }
            let Some(joint) = self.merge_rule(token, self.symbols[right as usize].token) else {
                continue;
            };
            let symbol = &mut self.symbols[left as usize];
            symbol.token = joint.token;
            symbol.len = len;
            self.symbols[right as usize].len = 0;
            let next = left + len;
            if next != end {
                self.symbols[next as usize].previous = left;
                self.queue_pair(left, next);
            }
            if previous != ABSENT {
                self.queue_pair(previous, left);
            }
        }
        let mut at = 0;
        while let Some(symbol) = self.symbols.get(at) {
            if symbol.token != ABSENT {
                ids.push(symbol.token);
            }
            at += symbol.len as usize;
        }
        self.symbols.clear();
    }

    fn merge_rule(&self, left: u32, right: u32) -> Option<MergeRule> {
        self.pairs.0.get(&(left, right)).copied()
    }

    fn queue_pair(&mut self, left: u32, right: u32) {
        let (a, b) = (self.symbols[left as usize], self.symbols[right as usize]);
        if let Some(MergeRule { rank, .. }) = self.merge_rule(a.token, b.token) {
            self.queue.push(Pair {
                rank,
                left,
                len: a.len + b.len,
            });
        }
    }
}

//! SentencePiece merging by score.
//!
//! Two characters that are adjacent in no token are never merged, so the text is cut at every such
//! place and the parts are merged separately, which keeps the queue short. Time is O(n log n) in
//! the length of a part.

use std::collections::HashMap;

use htc_formats::vocab::{TokenKind, Vocabulary, VocabularyError};

use super::queue::{Pair, PairQueue};
use super::texts::{PrefixHashes, SubstringIds};
use super::{ABSENT, byte_tokens, token_ids};

/// Longest part, because positions are 32-bit; longer ones are cut.
const MAX_PART: usize = u32::MAX as usize - 4;

#[derive(Clone, Debug)]
pub(super) struct ScoreMerger {
    ids: SubstringIds,
    /// Rank of every token by score: 0 is the best; ties share a rank.
    ranks: Vec<u32>,
    /// The token of exactly this pair, or `ABSENT`, for pairs adjacent in some token.
    neighbours: HashMap<(char, char), u32>,
    bytes: Box<[u32; 256]>,
    /// `ABSENT` if every byte has a token.
    unknown: u32,
}

impl ScoreMerger {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, VocabularyError> {
        let ids = token_ids(vocabulary)?;
        let mut neighbours = HashMap::new();
        for (id, text) in (0..).zip(&vocabulary.tokens) {
            let mut pairs = text.chars().zip(text.chars().skip(1));
            if let (Some(pair), None) = (pairs.next(), pairs.next()) {
                neighbours.insert(pair, id);
                continue;
            }
            for pair in text.chars().zip(text.chars().skip(1)) {
                neighbours.entry(pair).or_insert(ABSENT);
            }
        }

        let bytes = byte_tokens(|text| ids.get(text).copied());
        let unknown = vocabulary.unknown.or_else(|| {
            let mut kinds = (0..).zip(&vocabulary.kinds);
            kinds
                .find(|&(_, &kind)| kind == TokenKind::Unknown)
                .map(|(id, _)| id)
        });
        if unknown.is_none() && bytes.contains(&ABSENT) {
            return Err(VocabularyError::SpecialMissing {
                role: "unknown",
                reason: "lacks tokens for some bytes",
            });
        }
        Ok(Self {
            ranks: ranks(&vocabulary.scores),
            ids: SubstringIds::new(ids.into_iter()),
            neighbours,
            bytes,
            unknown: unknown.unwrap_or(ABSENT),
        })
    }

    pub(super) fn new_buffers(&self) -> MergeBuffers<'_> {
        MergeBuffers {
            tables: self,
            symbols: Vec::new(),
            queue: PairQueue::new(),
            prefixes: PrefixHashes::default(),
        }
    }

    fn push_symbol(&self, symbol: &str, id: Option<u32>, ids: &mut Vec<u32>) {
        if let Some(id) = id {
            ids.push(id);
        } else if symbol
            .bytes()
            .all(|byte| self.bytes[byte as usize] != ABSENT)
        {
            ids.extend(symbol.bytes().map(|byte| self.bytes[byte as usize]));
        } else if ids.last() != Some(&self.unknown) {
            ids.push(self.unknown);
        }
    }
}

/// Run of characters, indexed by the position of its first byte in the part.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// Length in bytes; 0 if no symbol starts here.
    len: u32,
    /// Position of the previous symbol; `ABSENT` for the first.
    previous: u32,
}

#[derive(Debug)]
pub(super) struct MergeBuffers<'a> {
    tables: &'a ScoreMerger,
    symbols: Vec<Symbol>,
    queue: PairQueue,
    prefixes: PrefixHashes,
}

impl MergeBuffers<'_> {
    /// Spaces are already replaced by U+2581.
    pub(super) fn encode(&mut self, text: &str, ids: &mut Vec<u32>) {
        let mut start = 0;
        let mut before: Option<char> = None;
        for (at, character) in text.char_indices() {
            let len = character.len_utf8();
            let joint = before.and_then(|b| self.tables.neighbours.get(&(b, character)).copied());
            if joint.is_none() || at + len - start > MAX_PART {
                self.finish_part(&text[start..at], ids);
                start = at;
                before = None;
            }
            let position = (at - start) as u32;
            let previous = before.map_or(ABSENT, |before| position - before.len_utf8() as u32);
            if let Some(token) = joint.filter(|&token| token != ABSENT && previous != ABSENT) {
                let rank = self.tables.ranks[token as usize];
                let len = position - previous + len as u32;
                self.queue.push(Pair {
                    rank,
                    left: previous,
                    len,
                });
            }
            self.symbols.push(Symbol {
                len: len as u32,
                previous,
            });
            self.symbols.resize(
                position as usize + len,
                Symbol {
                    len: 0,
                    previous: ABSENT,
                },
            );
            before = Some(character);
        }
        self.finish_part(&text[start..], ids);
    }

    fn finish_part(&mut self, part: &str, ids: &mut Vec<u32>) {
        let end = part.len() as u32;
        self.tables.ids.prepare(part, &mut self.prefixes);
        while let Some(Pair { left, len, .. }) = self.queue.pop() {
            let Symbol {
                len: left_len,
                previous,
            } = self.symbols[left as usize];
            // Symbols only grow, or vanish into the previous one, so the pair is unchanged if the
            // left one exists and both have the same total length.
            let right = left + left_len;
            if left_len == 0 || right == end || left_len + self.symbols[right as usize].len != len {
                continue;
            }
            self.symbols[left as usize].len = len;
            self.symbols[right as usize].len = 0;
            let next = left + len;
            if next != end {
                self.symbols[next as usize].previous = left;
                self.queue_pair(left, next + self.symbols[next as usize].len);
            }
            if previous != ABSENT {
                self.queue_pair(previous, next);
            }
        }
        let mut start = 0;
        while start < part.len() {
            let len = self.symbols[start].len as usize;
            let id = self.tables.ids.id(&self.prefixes, start, start + len);
            self.tables.push_symbol(&part[start..start + len], id, ids);
            start += len;
        }
        self.symbols.clear();
    }

    /// Queues the two symbols from `left` to `end` if together they are a token.
    fn queue_pair(&mut self, left: u32, end: u32) {
        let ids = &self.tables.ids;
        if let Some(token) = ids.id(&self.prefixes, left as usize, end as usize) {
            let rank = self.tables.ranks[token as usize];
            self.queue.push(Pair {
                rank,
                left,
                len: end - left,
            });
        }
    }
}

fn ranks(scores: &[f32]) -> Vec<u32> {
    let mut order = Vec::from_iter(0..scores.len());
    order.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut ranks = vec![0; scores.len()];
    for two in order.windows(2) {
        // The sort order distinguishes negative zero from zero.
        let lower = scores[two[1]] < scores[two[0]];
        ranks[two[1]] = ranks[two[0]] + u32::from(lower);
    }
    ranks
}

//! Priority queue of merging: many small heaps by rank on a coarse logarithmic scale, which stay in
//! the cache and fill evenly, because token frequencies are about inverse to ranks (Zipf's law).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Two adjacent symbols that together are a token. Ordered by rank, then position; the least is
/// merged first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    /// 0 is the best; ties share a rank.
    pub(super) rank: u32,
    pub(super) left: u32,
    /// Bytes of both symbols when the pair was found.
    pub(super) len: u32,
}

const DIGITS: u32 = 4;
const HEAPS: usize = (33 - DIGITS as usize) << DIGITS;

#[derive(Debug)]
pub(super) struct PairQueue {
    heaps: Vec<BinaryHeap<Reverse<Pair>>>,
    occupied: [u64; HEAPS.div_ceil(64)],
}

impl PairQueue {
    pub(super) fn new() -> Self {
        Self {
            heaps: vec![BinaryHeap::new(); HEAPS],
            occupied: [0; HEAPS.div_ceil(64)],
        }
    }

    pub(super) fn push(&mut self, pair: Pair) {
        let index = heap_of(pair.rank);
        self.heaps[index].push(Reverse(pair));
        self.occupied[index / 64] |= 1 << (index % 64);
    }

    pub(super) fn pop(&mut self) -> Option<Pair> {
        let word = self.occupied.iter().position(|&word| word != 0)?;
        let index = word * 64 + self.occupied[word].trailing_zeros() as usize;
        let pair = self.heaps[index].pop();
        if self.heaps[index].is_empty() {
            self.occupied[word] &= self.occupied[word] - 1;
        }
        pair.map(|Reverse(pair)| pair)
    }
}

fn heap_of(rank: u32) -> usize {
    let exponent = rank.max(1).ilog2().saturating_sub(DIGITS);
    ((exponent << DIGITS) + (rank >> exponent)) as usize
}

#[cfg(test)]
mod tests;

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
mod tests {
    use super::*;

    #[test]
    fn heap_index_is_monotonic_in_the_rank() {
        let mut previous = 0;
        let steps = (0..100_000).chain((17..32).flat_map(|bit| [(1u32 << bit) - 1, 1 << bit]));
        for rank in steps {
            let heap = heap_of(rank);
            assert!(
                heap == previous || heap == previous + 1 || rank > 100_000,
                "rank {rank}"
            );
            assert!(heap >= previous, "rank {rank}");
            previous = heap;
        }
        assert_eq!(heap_of(u32::MAX) + 1, HEAPS);
    }

    proptest::proptest! {
        #[test]
        fn pops_in_order(keys in proptest::collection::vec((0u32..5000, 0u32..50), 0..200)) {
            let mut queue = PairQueue::new();
            let pairs: Vec<_> =
                keys.iter().map(|&(rank, left)| Pair { rank, left, len: 2 }).collect();
            let (early, late) = pairs.split_at(pairs.len() / 2);
            early.iter().for_each(|&pair| queue.push(pair));
            let first = queue.pop();
            proptest::prop_assert_eq!(first, early.iter().min().copied());
            late.iter().for_each(|&pair| queue.push(pair));
            let mut rest: Vec<_> = pairs.clone();
            if let Some(first) = first {
                let at = rest.iter().position(|&pair| pair == first).unwrap();
                rest.remove(at);
            }
            rest.sort();
            proptest::prop_assert_eq!(Vec::from_iter(std::iter::from_fn(|| queue.pop())), rest);
        }
    }
}

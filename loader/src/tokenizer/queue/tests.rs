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

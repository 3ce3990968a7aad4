use super::*;

#[test]
fn head_permutation_round_trips() {
    let to = |from, to| HeadPermutation {
        head: 6,
        rotated: 4,
        from,
        to,
    };
    let (halves, adjacent) = (RopePairs::Halves, RopePairs::Adjacent);
    let mut rows: Vec<usize> = (0..24).collect();
    to(halves, adjacent).apply(&mut rows, 2);
    assert_eq!(rows[..12], [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11]);
    assert_eq!(rows[12..14], [12, 13]);
    to(adjacent, halves).apply(&mut rows, 2);
    assert_eq!(rows, (0..24).collect::<Vec<_>>());
}

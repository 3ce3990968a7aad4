use super::*;

fn file(total: u64, names: impl Fn(u64) -> u64) -> Option<u64> {
    let made = fit_to_size(total, 1000, |beside| {
        let matrices = total.saturating_sub(beside);
        let bytes = matrices + names(matrices);
        Ok((bytes, bytes))
    });
    made.unwrap()
}

#[test]
fn fitted_never_exceeds_the_requested_size() {
    assert_eq!(file(100_000, |_| 1000), Some(100_000));
    let found = file(100_000, |matrices| {
        1000 + (99_000 - matrices) * 19 / 20 + 500
    });
    assert!(found.is_some_and(|bytes| bytes <= 100_000), "{found:?}");
    assert_eq!(file(100_000, |_| 2_000_000), None);
}

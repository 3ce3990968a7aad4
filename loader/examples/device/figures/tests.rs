use super::*;

#[test]
fn intervals_match_tables_of_the_sign_test() {
    // From tables of the sign test: 96.9 % for the extremes of 6 values, 97.9 % for the second
    // ones of 10, 95.9 % for the sixth ones of 20.
    for (count, skipped, sure) in [
        (5, 0, 0.9375),
        (6, 0, 0.96875),
        (10, 1, 0.97852),
        (20, 5, 0.95861),
    ] {
        let found = dropped_order_statistics(count);
        assert_eq!(found.0, skipped, "{count}");
        assert!((found.1 - sure).abs() < 1e-5, "{count}: {}", found.1);
    }
}

#[test]
fn median_of_even_and_odd_counts() {
    assert_eq!(Median::from_values(Vec::new()), None);
    let of = |figures: &[f64]| Median::from_values(figures.to_vec()).unwrap();
    assert_eq!(of(&[3.0]).median, 3.0);
    let three = of(&[3.0, 1.0, 2.0]);
    assert_eq!((three.median, three.low, three.high), (2.0, 1.0, 3.0));
    assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
    let ten = of(&(0..10).map(f64::from).collect::<Vec<_>>());
    assert_eq!((ten.low, ten.high), (1.0, 8.0));
}

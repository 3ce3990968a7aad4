use super::*;

fn split(count: usize, most: usize) -> (Vec<u32>, Option<Vec<u32>>) {
    let tokens = (0..2 * count as u32).collect();
    let windows = Windows { tokens, context: 2 };
    let (first, held) = windows.hold_out(most);
    (first.tokens, held.map(|held| held.tokens))
}

#[test]
fn held_out_windows_follow_the_calibration_windows() {
    assert_eq!(split(30, 16), ((0..32).collect(), Some((32..48).collect())));
    assert_eq!(split(22, 16), ((0..32).collect(), Some((32..44).collect())));
    assert_eq!(split(20, 16), ((0..32).collect(), Some((32..40).collect())));
    for (most, held) in [(140, 64), (200, 64), (300, 75)] {
        let (used, found) = split(1000, most);
        assert_eq!((used.len(), found.unwrap().len()), (2 * most, 2 * held));
    }
    assert_eq!(split(17, 16), ((0..26).collect(), Some((26..34).collect())));
    assert_eq!(split(16, 16), ((0..24).collect(), Some((24..32).collect())));
    assert_eq!(split(3, 16), ((0..2).collect(), Some((2..6).collect())));
    assert_eq!(split(2, 1), ((0..2).collect(), Some((2..4).collect())));
    assert_eq!(split(1, 16), ((0..2).collect(), None));
    assert_eq!(split(0, 16), (vec![], None));
}

#[test]
fn validation_and_test_splits_are_disjoint() {
    let text = |tokens: std::ops::Range<u32>| Windows {
        tokens: tokens.collect(),
        context: 2,
    };
    let tokens = |windows: Option<Windows>| windows.map(|found| found.tokens);
    let found = HeldOut::new(vec![text(0..10), text(20..26)]).unwrap();
    assert_eq!(found.count(), 8);
    let choosing = vec![0, 1, 4, 5, 8, 9, 20, 21, 24, 25];
    assert_eq!(tokens(found.validation()), Some(choosing));
    let elsewhere = vec![20, 21, 24, 25];
    assert_eq!(tokens(found.validation_of_other_texts()), Some(elsewhere));
    let reporting = vec![2, 3, 6, 7, 22, 23];
    assert_eq!(tokens(found.test()), Some(reporting));
    assert_eq!(tokens(found.all()), Some((0..10).chain(20..26).collect()));
    let one = HeldOut::new(vec![text(0..2)]).unwrap();
    assert_eq!(tokens(one.validation()), Some(vec![0, 1]));
    assert_eq!(tokens(one.test()), None);
    assert_eq!(tokens(one.validation_of_other_texts()), None);
    assert!(HeldOut::new(vec![text(0..0)]).is_none());
}

#[test]
fn weight_changes_at_the_first_window_of_a_text() {
    let text = |count: u32| Windows {
        tokens: (0..2 * count).collect(),
        context: 2,
    };
    let of = |weights: [f64; 3]| {
        let counts = [3, 1, 2];
        WeightedWindows::new(counts.map(text).into_iter().zip(weights).collect()).unwrap()
    };
    let mixture = of([1.0, 0.5, 2.0]);
    let found: Vec<Option<f64>> = (0..6).map(|i| mixture.reweigh_factor_at(i)).collect();
    assert_eq!(found, [None, None, None, Some(2.0), Some(0.25), None]);
    assert_eq!(mixture.windows().count(), 6);
    assert_ne!(
        mixture.cache_key_text(),
        of([1.0, 0.5, 3.0]).cache_key_text()
    );
    assert!(WeightedWindows::new(Vec::new()).is_none());
}

#[test]
fn thinned_windows_are_spread_over_every_text() {
    let text = |tokens: Range<u32>| Windows {
        tokens: tokens.collect(),
        context: 1,
    };
    let texts = vec![
        (text(0..12), 1.0),
        (text(100..106), 2.0),
        (text(200..201), 3.0),
    ];
    let all = WeightedWindows::new(texts).unwrap();
    let kept = all.thinned(6);
    assert_eq!(kept.windows.tokens, [1, 4, 7, 10, 101, 104, 200]);
    assert_eq!(kept.shares, [(4, 1.0), (2, 2.0), (1, 3.0)]);
    assert_eq!(all.thinned(100).windows.tokens, all.windows.tokens);
    assert_eq!(all.thinned(0).windows.count(), 3);
}

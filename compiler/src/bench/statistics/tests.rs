use proptest::prelude::*;

use super::*;

/// Tokens/s in tenths. The raw pairs are unpublished; these reproduce all digits of the papers'
/// `statistical_tests.json`.
const BASELINE: [u32; 8] = [360, 360, 360, 361, 361, 362, 362, 362];
const K1536: [u32; 8] = [354, 359, 364, 354, 363, 272, 371, 380];
const K1024: [u32; 8] = [382, 382, 382, 382, 386, 385, 385, 385];

fn pairs(subject: [u32; 8]) -> Vec<(f64, f64)> {
    let tenths = |n: u32| f64::from(n) / 10.0;
    let both = subject.into_iter().zip(BASELINE);
    both.map(|(a, b)| (tenths(a), tenths(b))).collect()
}

fn near(found: f64, expected: f64, tolerance: f64) {
    let off = (found - expected).abs();
    assert!(
        off <= tolerance * expected.abs().max(1e-300),
        "{found}, expected {expected}"
    );
}

#[test]
fn published_statistics_of_1536_components() {
    let pairs = pairs(K1536);
    let subject = spread(&pairs.iter().map(|p| p.0).collect::<Vec<_>>()).unwrap();
    near(subject.mean, 35.2125, 1e-12);
    near(subject.sd.unwrap(), 3.352_371_229_017_284_5, 1e-9);
    let found = compare(&pairs, 0).unwrap();
    near(found.ratio, 0.975_472_887_747_866_2, 1e-12);
    let t = found.paired_t.unwrap();
    near(t.t, -0.743_424_930_389_223, 1e-9);
    near(t.p, 0.481_425_906_733_645_05, 1e-9);
    assert_eq!(t.degrees, 7);
    let ranks = found.wilcoxon.unwrap();
    assert_eq!((ranks.plus, ranks.minus, ranks.p), (18.0, 18.0, 1.0));
    assert!(ranks.exact);
    let (low, high) = found.interval.unwrap();
    near(low, 0.907_102_722_002_01, 1e-3);
    assert!(low < found.ratio && found.ratio < high);
    assert!(found.variance.unwrap().contaminated);
}

#[test]
fn published_statistics_of_1024_components() {
    let found = compare(&pairs(K1024), 0).unwrap();
    near(found.ratio, 1.062_670_611_356_830_5, 1e-12);
    let t = found.paired_t.unwrap();
    near(t.t, 53.878_320_479_777_24, 1e-9);
    // Published one-sided.
    near(t.p, 2.0 * 9.944_720_088_335_187e-11, 1e-8);
    let ranks = found.wilcoxon.unwrap();
    assert_eq!((ranks.plus, ranks.minus), (36.0, 0.0));
    near(ranks.p, 2.0 * 0.003_906_25, 1e-12);
    let (low, high) = found.interval.unwrap();
    near(low, 1.060_679_369_682_809_2, 5e-5);
    near(high, 1.064_964_953_092_239_2, 3e-4);
    assert!(!found.variance.unwrap().contaminated);
}

#[test]
fn published_contamination_is_detected() {
    let contaminated = [37.9, 38.0, 36.7, 35.8];
    let found = variance_check(&contaminated, &[37.9, 38.0, 37.9, 37.9]).unwrap();
    near((found.ratio).sqrt() * 37.1 / 37.925, 20.98, 1e-3);
    assert!(found.contaminated, "{found:?}");
    let clean = variance_check(&[39.3, 39.2, 39.2, 39.2], &[39.2, 39.3, 39.3, 39.3]).unwrap();
    near(clean.ratio, 1.0, 0.01);
    assert!(!clean.contaminated, "{clean:?}");
}

#[test]
fn thresholds_are_f_quantiles_or_the_natural_bound() {
    for (degrees, expected) in [(1, 16_210.723), (3, 47.467), (7, 8.8854), (30, 2.6278)] {
        near(variance_ratio_quantile(degrees).unwrap(), expected, 1e-4);
    }
    assert_eq!(variance_ratio_quantile(0), None);
    for (pairs, expected, below, above) in [
        (4, 47.467, 6.8, 7.0),
        (8, 25.0, 4.9, 5.1),
        (100, 25.0, 4.9, 5.1),
    ] {
        let around = |times: f64| -> Vec<f64> {
            let off = |i: i32| f64::from(2 * i - (pairs - 1)) / f64::from(pairs);
            (0..pairs).map(|i| 1000.0 + times * off(i)).collect()
        };
        let steady = around(1.0);
        for (times, contaminated) in [(1.0, false), (below, false), (above, true)] {
            let noisy = around(times);
            for (a, b) in [(&noisy, &steady), (&steady, &noisy)] {
                let found = variance_check(a, b).unwrap();
                near(found.threshold, expected, 1e-4);
                assert_eq!(found.contaminated, contaminated, "{pairs}, {times}");
            }
        }
    }
}

#[test]
fn undefined_statistics_are_none() {
    assert_eq!(spread(&[]), None);
    assert_eq!(compare(&[], 0), None);
    let one = compare(&[(2.0, 4.0)], 0).unwrap();
    assert_eq!((one.ratio, one.time_ratio), (0.5, 2.0));
    assert_eq!(
        (one.interval, one.paired_t, one.variance),
        (None, None, None)
    );
    let same = compare(&[(3.0, 3.0); 4], 0).unwrap();
    assert_eq!((same.ratio, same.interval), (1.0, Some((1.0, 1.0))));
    assert_eq!(
        (same.paired_t, same.wilcoxon, same.variance),
        (None, None, None)
    );
    let spread = spread(&[4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!(
        (spread.median, spread.smallest, spread.largest),
        (2.5, 1.0, 4.0)
    );
}

#[test]
fn signed_rank_p_is_exact() {
    let signed: Vec<f64> = [1.0, 2.0, -3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0].into();
    let found = signed_rank(&signed).unwrap();
    assert_eq!((found.plus, found.minus), (52.0, 3.0));
    near(found.p, 2.0 * 5.0 / 1024.0, 1e-15);
    let tied = signed_rank(&[0.5, -1.0, 1.0, 2.0, 0.0]).unwrap();
    assert_eq!((tied.plus, tied.minus, tied.count), (7.5, 2.5, 4));
    near(tied.p, 2.0 * 4.0 / 16.0, 1e-15);
}

#[test]
fn the_normal_approximation_continues_the_exact_distribution() {
    let signs = |n: usize| -> Vec<f64> {
        let sign = |i: usize| if i % 4 == 1 { -1.0 } else { 1.0 };
        (1..=n).map(|i| sign(i) * i as f64).collect()
    };
    let (exact, normal) = (
        signed_rank(&signs(25)).unwrap(),
        signed_rank(&signs(26)).unwrap(),
    );
    assert!(exact.exact && !normal.exact);
    let doubled: Vec<usize> = (1..=26).map(|i| 2 * i).collect();
    let counted = exact_p_value(&doubled, (2.0 * normal.plus) as usize);
    near(normal.p, counted, 0.05);
}

/// n values give nⁿ samples.
#[test]
fn bootstrap_matches_enumerated_samples() {
    let values = [1.0, 2.0, 4.0, 8.0, 16.0];
    let mut means = vec![0.0];
    for _ in 0..5 {
        let with = |sum: &f64| values.map(|v| sum + v / 5.0);
        means = means.iter().flat_map(with).collect();
    }
    means.sort_by(f64::total_cmp);
    let at = |part: f64| means[(part * (means.len() - 1) as f64).round() as usize];
    let (low, high) = bootstrap(&values, 3).unwrap();
    near(low, at(0.025), 0.03);
    near(high, at(0.975), 0.03);
    assert_eq!(bootstrap(&values, 3), Some((low, high)));
    assert_ne!(bootstrap(&values, 4), Some((low, high)));
}

#[test]
fn bootstrap_intervals_cover_the_true_ratio() {
    let mut random = Rng(11);
    let holds = (0..200).filter(|&seed| {
        let ratios: Vec<f64> = (0..20).map(|_| 1.5 + 0.1 * random.normal()).collect();
        let (low, high) = bootstrap(&ratios, seed).unwrap();
        low <= 1.5 && 1.5 <= high
    });
    let held = holds.count();
    assert!((175..200).contains(&held), "{held} of 200");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn swapping_sides_inverts_the_comparison(pairs in prop::collection::vec((1.0..100.0_f64, 1.0..100.0_f64), 2..40)) {
        let found = compare(&pairs, 1).unwrap();
        let swapped: Vec<_> = pairs.iter().map(|&(a, b)| (b, a)).collect();
        let other = compare(&swapped, 1).unwrap();
        prop_assert!((found.ratio - other.time_ratio).abs() <= 1e-12 * found.ratio);
        prop_assert_eq!(found.difference, -other.difference);
        let (a, b) = (found.wilcoxon.unwrap(), other.wilcoxon.unwrap());
        prop_assert_eq!((a.plus, a.minus), (b.minus, b.plus));
        prop_assert!((a.p - b.p).abs() < 1e-12);
        prop_assert!((0.0..=1.0).contains(&a.p));
        let (a, b) = (found.paired_t.unwrap(), other.paired_t.unwrap());
        prop_assert_eq!((a.t, a.p), (-b.t, b.p));
        let (a, b) = (found.variance.unwrap(), other.variance.unwrap());
        prop_assert!((a.ratio * b.ratio - 1.0).abs() < 1e-9);
        prop_assert_eq!(a.contaminated, b.contaminated);
    }

    #[test]
    fn scaling_changes_no_ratio_and_no_test(pairs in prop::collection::vec((1.0..100.0_f64, 1.0..100.0_f64), 2..20)) {
        let doubled: Vec<_> = pairs.iter().map(|&(a, b)| (2.0 * a, 2.0 * b)).collect();
        let (found, other) = (compare(&pairs, 1).unwrap(), compare(&doubled, 1).unwrap());
        prop_assert_eq!(found.ratio, other.ratio);
        prop_assert_eq!(found.interval, other.interval);
        prop_assert_eq!(found.paired_t.unwrap().t, other.paired_t.unwrap().t);
        prop_assert_eq!(found.wilcoxon, other.wilcoxon);
        prop_assert_eq!(found.variance, other.variance);
    }
}

use super::*;
use crate::system::random::Rng;

fn clustered(windows: &[&[f64]]) -> ClusteredMean {
    let mut found = ClusteredMean::default();
    for window in windows {
        found.begin_window();
        window.iter().for_each(|&value| found.add(value));
    }
    found
}

#[test]
fn single_value_windows_match_independent_values() {
    let values = [1.0, 2.0, 4.0, 8.0];
    let windows: Vec<&[f64]> = values.chunks(1).collect();
    let found = clustered(&windows);
    assert_eq!((found.mean(), found.count()), (3.75, 4));
    let variance = values.iter().map(|v| (v - 3.75_f64).powi(2)).sum::<f64>() / 3.0;
    let error = found.standard_error().unwrap();
    assert!((error - (variance / 4.0).sqrt()).abs() < 1e-15);
    let (low, high) = found.interval().unwrap();
    assert!((high - low - 2.0 * 3.182_446_305 * error).abs() < 1e-8);
    assert!((high + low - 7.5).abs() < 1e-12);
}

#[test]
fn equal_windows_count_by_their_means() {
    let found = clustered(&[&[0.0, 2.0, 4.0], &[5.0, 5.0, 5.0], &[9.0, 0.0, 0.0]]);
    let means = [2.0, 5.0, 3.0];
    let mean = means.iter().sum::<f64>() / 3.0;
    let variance = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / 2.0;
    assert!((found.mean() - mean).abs() < 1e-15);
    let error = found.standard_error().unwrap();
    assert!((error - (variance / 3.0).sqrt()).abs() < 1e-15);
}

/// m = 7/3, residuals ± 8/3.
#[test]
fn unequal_windows_follow_the_ratio_estimator() {
    let found = clustered(&[&[1.0, 1.0], &[3.0, 3.0, 3.0, 3.0]]);
    assert!((found.mean() - 7.0 / 3.0).abs() < 1e-15);
    let expected = (2.0 * 2.0 * (8.0_f64 / 3.0).powi(2)).sqrt() / 6.0;
    assert!((found.standard_error().unwrap() - expected).abs() < 1e-15);
}

#[test]
fn repeating_values_within_windows_keeps_the_error() {
    let windows = [[1.0, 3.0], [2.0, 8.0], [0.0, 5.0]];
    let once = clustered(&windows.each_ref().map(|w| &w[..]));
    let often: Vec<Vec<f64>> = windows.iter().map(|w| w.repeat(100)).collect();
    let often: Vec<&[f64]> = often.iter().map(|w| &w[..]).collect();
    let often = clustered(&often).standard_error().unwrap();
    assert!((often - once.standard_error().unwrap()).abs() < 1e-12);
}

#[test]
fn one_window_has_no_interval() {
    for windows in [&[][..], &[&[1.0, 2.0, 3.0][..]]] {
        let found = clustered(windows);
        assert_eq!((found.standard_error(), found.interval()), (None, None));
    }
    assert_eq!(clustered(&[&[1.0, 2.0, 3.0]]).mean(), 2.0);
    assert_eq!(student(0), None);
}

#[test]
fn quantiles_match_the_tables() {
    for (degrees, expected) in [
        (1, 12.706_204_736),
        (2, 4.302_652_730),
        (3, 3.182_446_305),
        (4, 2.776_445_105),
        (7, 2.364_624_252),
        (10, 2.228_138_852),
        (15, 2.131_449_546),
        (30, 2.042_272_456),
        (120, 1.979_930_405),
        (1000, 1.962_339_081),
    ] {
        let found = student(degrees).unwrap();
        assert!((found - expected).abs() < 1e-7, "{degrees}: {found}");
    }
}

fn simulated(random: &mut Rng, windows: usize) -> Vec<Vec<f64>> {
    let window = |_| {
        let about = random.normal();
        (0..50).map(|_| about + random.normal()).collect()
    };
    (0..windows).map(window).collect()
}

fn coverage(windows: usize, half: impl Fn(&[Vec<f64>], &ClusteredMean) -> f64) -> f64 {
    let mut random = Rng(7);
    let holds = (0..2000).filter(|_| {
        let text = simulated(&mut random, windows);
        let of: Vec<&[f64]> = text.iter().map(|w| &w[..]).collect();
        let found = clustered(&of);
        found.mean().abs() <= half(&text, &found)
    });
    holds.count() as f64 / 2000.0
}

#[test]
fn intervals_cover_the_mean_when_windows_differ() {
    let by_window = |_: &[Vec<f64>], found: &ClusteredMean| found.half_width().unwrap();
    let by_token = |text: &[Vec<f64>], found: &ClusteredMean| {
        let (mean, n) = (found.mean(), found.count() as f64);
        let squares = text
            .concat()
            .iter()
            .map(|v| (v - mean).powi(2))
            .sum::<f64>();
        1.96 * (squares / n / (n - 1.0)).sqrt()
    };
    for windows in [3, 8, 40] {
        let held = coverage(windows, by_window);
        assert!((0.935..0.965).contains(&held), "{windows}: {held}");
        let held = coverage(windows, by_token);
        assert!(held < 0.45, "{windows}: {held}");
    }
    let normal = |_: &[Vec<f64>], found: &ClusteredMean| 1.96 * found.standard_error().unwrap();
    assert!(coverage(3, normal) < 0.85);
}

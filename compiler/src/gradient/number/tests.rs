use super::*;

#[test]
fn exp_f32_matches_the_system_function() {
    let numbers = (-8730..=8830).map(|x| x as f32 / 100.0 + 1e-3);
    for x in numbers.filter(|x| (-87.3..=88.3).contains(x)) {
        let (found, expected) = (f64::from(exp_f32(x)), f64::from(x).exp());
        let error = (found / expected - 1.0).abs();
        assert!(error < 3e-7, "{x}: {found} for {expected}");
    }
    assert_eq!(exp_f32(0.0), 1.0);
    assert!(exp_f32(-1e30) < 2e-38 && exp_f32(f32::NEG_INFINITY) < 2e-38);
    assert!(exp_f32(1e30) > 1e38 && exp_f32(1e30).is_finite());
}

#[test]
fn sums_and_maxima_include_all_numbers() {
    for count in [1, 7, 8, 21] {
        let x: Vec<f32> = (0..count).map(|i| ((i * 5) % 7) as f32 - 9.0).collect();
        let expected: f32 = x.iter().map(|x| x * x).sum();
        assert_eq!(sum_of(&x, &x, |a, b| a * b), f64::from(expected));
        let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(largest(&x), expected);
    }
}

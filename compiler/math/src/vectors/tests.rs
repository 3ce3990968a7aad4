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
fn exp_f64_matches_the_system_function() {
    for x in (-70_799..=70_899).map(|x| f64::from(x) * 0.01 + 1e-5) {
        let (found, expected) = (exp_f64(x), x.exp());
        let error = (found / expected - 1.0).abs();
        assert!(error < 5e-16, "{x}: {found} for {expected}");
    }
    assert_eq!(exp_f64(0.0), 1.0);
    assert_eq!(exp_f64(f64::NEG_INFINITY), exp_f64(-708.0));
    assert!(exp_f64(f64::NAN).is_nan());
}

#[test]
fn largest_ignores_later_nans() {
    for count in [1, 7, 8, 21] {
        let mut x: Vec<f32> = (0..count).map(|i| ((i * 5) % 7) as f32 - 9.0).collect();
        let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(largest(&x), expected);
        x.push(f32::NAN);
        assert_eq!(largest(&x), expected);
        x.insert(0, f32::NAN);
        assert!(largest(&x).is_nan());
    }
    assert_eq!(largest::<f32>(&[]), 0.0);
}

#[test]
fn sums_include_all_numbers() {
    for count in [0, 1, 7, 8, 21] {
        let x: Vec<f32> = (0..count).map(|i| ((i * 5) % 7) as f32 - 9.0).collect();
        let y: Vec<f32> = x.iter().map(|x| x + 2.0).collect();
        let squares: f32 = x.iter().map(|x| x * x).sum();
        let products: f32 = x.iter().zip(&y).map(|(x, y)| x * y).sum();
        assert_eq!(sum_of(&x, &x, |a, b| a * b), f64::from(squares));
        assert_eq!(sum_of(&x, &y, |a, b| a * b), f64::from(products));
    }
}

vectorised! {
    fn exponentials_over_largest(x: &mut [f32], wide: &mut [f64]) -> f64 {
        let max = largest(x);
        x.iter_mut().for_each(|x| *x = exp_f32(*x - max));
        wide.iter_mut().for_each(|x| *x = exp_f64(*x));
        x.iter().map(|x| f64::from(*x)).sum::<f64>() + wide.iter().sum::<f64>()
    }
}

#[test]
fn variants_give_the_bits_of_single_numbers() {
    let mut numbers: Vec<f32> = (0..67).map(|i| (i as f32 * 0.7).sin() * 20.0).collect();
    numbers.extend([f32::NEG_INFINITY, f32::NAN, -0.0, 1e-40, 9e3]);
    let mut wide: Vec<f64> = numbers.iter().map(|x| f64::from(*x) * 1.1).collect();
    let max = largest(&numbers);
    let expected: Vec<u32> = numbers
        .iter()
        .map(|x| exp_f32(*x - max).to_bits())
        .collect();
    let wide_expected: Vec<u64> = wide.iter().map(|x| exp_f64(*x).to_bits()).collect();
    assert!(exponentials_over_largest(&mut numbers, &mut wide).is_nan());
    let is_nan = |bits: u32| f32::from_bits(bits).is_nan();
    for (found, expected) in numbers.iter().zip(expected) {
        assert!(found.to_bits() == expected || found.is_nan() && is_nan(expected));
    }
    for (found, expected) in wide.iter().zip(wide_expected) {
        assert!(found.to_bits() == expected || found.is_nan() && f64::from_bits(expected).is_nan());
    }
}

use super::*;

#[test]
fn sums_include_all_numbers() {
    for count in [1, 7, 8, 21] {
        let x: Vec<f32> = (0..count).map(|i| ((i * 5) % 7) as f32 - 9.0).collect();
        let expected: f32 = x.iter().map(|x| x * x).sum();
        assert_eq!(sum_of(&x, &x, |a, b| a * b), f64::from(expected));
    }
}

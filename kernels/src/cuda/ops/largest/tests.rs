#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;
use crate::cuda::{EmulatedDevice, ops};

fn select_largest(
    device: &EmulatedDevice,
    numbers: &[f32],
    most: usize,
) -> Option<Vec<(u32, f32)>> {
    let x = ops::upload_floats(device, numbers).unwrap();
    let mut largest = TopK::default();
    largest.begin(device, &x, numbers.len(), most).unwrap();
    largest.take(device).unwrap()
}

#[test]
fn top_k_matches_a_full_sort() {
    let device = EmulatedDevice::new(3);
    for (numbers, most) in [
        (1, 1),
        (5, 64),
        (300, 3),
        (4096, 1),
        (4097, 64),
        (40_000, 1),
        (262_145, 64),
    ] {
        let x: Vec<f32> = (0..numbers)
            .map(|i| ((i * 7919 % 1009) as f32 - 500.0) * if i % 3 == 0 { -0.0 } else { 0.25 })
            .collect();
        let mut expected: Vec<(u32, f32)> = (0..).zip(x.iter().copied()).collect();
        expected.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        expected.truncate(most);
        assert_eq!(
            select_largest(&device, &x, most).unwrap(),
            expected,
            "{numbers}, {most}"
        );
    }
}

#[test]
fn non_finite_elements_give_no_result() {
    let device = EmulatedDevice::new(4);
    for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 4095, 9000] {
            let mut x = vec![1.0; 9001];
            x[at] = strange;
            assert_eq!(select_largest(&device, &x, 2), None, "{strange} at {at}");
        }
    }
    let x = ops::upload_floats(&device, &[1.0; 8]).unwrap();
    let mut largest = TopK::default();
    for most in [0, MAX_TOP_K + 1] {
        assert!(largest.begin(&device, &x, 8, most).is_err());
    }
    assert!(largest.begin(&device, &x, 9, 1).is_err());
}

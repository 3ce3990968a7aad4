//! Sums of products of columns.

use super::*;

#[test]
fn cross_products_match_the_reference() {
    let [pool] = pools([1]);
    let mut random = Random(11);
    for n in [0, 1, 63, 64, 65, 200] {
        for shape in [[16, 16], [16, 64], [48, 32], [64, 48], [64, 64]] {
            let (a, b) = (random.numbers(n * shape[0]), random.numbers(n * shape[1]));
            // Earlier sums are added without rounding to float32.
            let before = vec![1.0 + 1e-12; shape[0] * shape[1]];
            let mut expected = before.clone();
            reference::add_cross_products(n, &a, &b, shape, &mut expected).unwrap();
            for k in available() {
                let mut found = before.clone();
                on(k, &pool)
                    .add_cross_products(n, &a, &b, shape, &mut found)
                    .unwrap();
                let bound = 1e-7 * n as f64;
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(
                        (found - expected).abs() <= bound,
                        "{} {n} {shape:?}: {found} for {expected}",
                        k.name
                    );
                }
            }
        }
    }
}

#[test]
fn rows_are_added_in_float64() {
    let [pool] = pools([1]);
    let mut random = Random(12);
    for width in [1, 15, 64, 100] {
        let x = random.numbers(7 * width);
        let mut expected = vec![1.0 + 1e-12; width];
        let before = expected.clone();
        for row in x.chunks_exact(width) {
            for (sum, &x) in expected.iter_mut().zip(row) {
                *sum += f64::from(x);
            }
        }
        for k in available() {
            let mut found = before.clone();
            on(k, &pool).add_rows(&x, &mut found).unwrap();
            assert_eq!(found, expected, "{}", k.name);
        }
    }
}

#[test]
fn mismatched_shapes_are_rejected() {
    let cpu = Cpu::with_threads(1).unwrap();
    let refused = |n, a, b, shape, sums| {
        let (a, b) = (vec![0.0; a], vec![0.0; b]);
        cpu.add_cross_products(n, &a, &b, shape, &mut vec![0.0; sums])
            .is_err()
    };
    assert!(!refused(2, 32, 64, [16, 32], 512));
    assert!(refused(2, 31, 64, [16, 32], 512));
    assert!(refused(2, 32, 63, [16, 32], 512));
    assert!(refused(2, 32, 64, [16, 32], 511));
    assert!(refused(2, 30, 64, [15, 32], 480));
    assert!(refused(1, 80, 64, [80, 64], 5120));
    assert!(cpu.add_rows(&[0.0; 5], &mut [0.0; 2]).is_err());
}

//! Norms, activations and rotary embeddings.

use super::*;

#[test]
fn exponential_stays_within_its_error_bound() {
    for k in available() {
        let x: Vec<f32> = (-873_300..=883_700)
            .map(|i| i as f32 * 1e-4)
            .chain([0.0, -0.0, 1e-30, -1e-30])
            .collect();
        let mut found = x.clone();
        (k.loops.exp_sum)(&mut found, 0.0);
        for (&x, &found) in x.iter().zip(&found) {
            let expected = f64::from(x).exp();
            let error = (f64::from(found) - expected).abs() / expected;
            assert!(error < 3e-7, "{} exp({x}): {found} for {expected}", k.name);
        }
        let mut ends = [-88.0, -1e30, f32::NEG_INFINITY, f32::NAN, 1e30];
        (k.loops.exp_sum)(&mut ends, 0.0);
        assert_eq!(ends[..3], [0.0; 3], "{}", k.name);
        assert!(ends[3].is_nan() && ends[4] > 2e38 && ends[4].is_finite());
    }
}

#[test]
fn elementwise_kernels_agree_with_the_reference() {
    let mut random = Random(4);
    let pools = pools([1, 3]);
    for width in [1, 2, 7, 15, 16, 17, 64, 255, 256, 1000] {
        for n in [1, 2, 5, 100] {
            let x = random.numbers(n * width);
            let weight = random.numbers(width);
            let mut expected = vec![0.0; x.len()];
            reference::rms_norm(&x, &weight, 1e-5, &mut expected).unwrap();
            let gate: Vec<f32> = random.numbers(n * width).iter().map(|g| g * 30.0).collect();
            let mut gated = gate.clone();
            reference::silu_mul(&mut gated, &x).unwrap();
            let mut summed = gate.clone();
            reference::add_assign(&mut summed, &x).unwrap();
            for k in available() {
                for pool in &pools {
                    let cpu = on(k, pool);
                    let mut found = vec![f32::NAN; x.len()];
                    cpu.rms_norm(&x, &weight, 1e-5, &mut found).unwrap();
                    assert_close(&found, &expected, |i| expected[i].abs(), 1e-6, "rms_norm");
                    let mut found = gate.clone();
                    cpu.silu_mul(&mut found, &x).unwrap();
                    assert_close(&found, &gated, |i| gated[i].abs(), 1e-6, "silu_mul");
                    let mut found = gate.clone();
                    cpu.add_assign(&mut found, &x).unwrap();
                    assert_eq!(found, summed);
                }
            }
        }
        let x: Vec<f32> = random.numbers(width).iter().map(|g| g * 20.0).collect();
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights = x.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp());
        let sum: f64 = weights.clone().sum();
        let expected: Vec<f32> = weights.map(|weight| (weight / sum) as f32).collect();
        for k in available() {
            let mut found = x.clone();
            let max = (k.loops.max)(&found);
            let sum = (k.loops.exp_sum)(&mut found, max);
            (k.loops.scale)(&mut found, 1.0 / sum);
            // The error of an exponential is relative to its argument.
            assert_close(&found, &expected, |i| expected[i], 5e-6, "softmax");
        }
    }
}

#[test]
fn rope_agrees_with_the_reference() {
    let [pool] = pools([1]);
    let mut random = Random(5);
    for (heads, head_size, pairs) in [
        (1, 2, 1),
        (3, 8, 4),
        (4, 80, 16),
        (2, 128, 64),
        (2, 5, 2),
        (2, 4, 0),
    ] {
        let x = random.numbers(heads * head_size);
        let angles: Vec<f32> = random.numbers(pairs).iter().map(|a| a * 100.0).collect();
        let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
        for pairs in [RopePairs::Adjacent, RopePairs::Halves] {
            let mut expected = x.clone();
            reference::rope(pairs, &mut expected, head_size, &cos, &sin).unwrap();
            for k in available() {
                let mut found = x.clone();
                on(k, &pool)
                    .rope(pairs, &mut found, head_size, &cos, &sin)
                    .unwrap();
                assert_close(&found, &expected, |_| 1.0, 2e-7, "rope");
            }
        }
    }
}

#[test]
fn tanh_and_gelu_stay_within_their_error_bounds() {
    for k in available() {
        // Magnitudes from the smallest to far beyond saturation, of both signs.
        let x: Vec<f32> = (0..0x7F80_0000u32)
            .step_by(9973)
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
            .collect();
        let mut found = x.clone();
        (k.loops.softcap)(&mut found, 1.0);
        for (&x, &found) in x.iter().zip(&found) {
            let expected = f64::from(x).tanh();
            let error = (f64::from(found) - expected).abs();
            let bound = 3e-7f64.min(1e-6 * expected.abs() + f64::from(f32::MIN_POSITIVE));
            assert!(
                error <= bound,
                "{} tanh({x}): {found} for {expected}",
                k.name
            );
        }
        let mut found = x.clone();
        (k.loops.gelu_mul)(&mut found, &vec![1.0; x.len()]);
        let mut expected = x.clone();
        reference::gelu_mul(&mut expected, &vec![1.0; x.len()]).unwrap();
        for ((&x, &found), &expected) in x.iter().zip(&found).zip(&expected) {
            // The exponential's bound is relative to its argument, and the largest is not infinite.
            let bound = 2e-6 * expected.abs() + 1e-7 + 1e-37 * x.abs();
            assert!(
                (found - expected).abs() <= bound,
                "{} gelu({x}): {found} for {expected}",
                k.name
            );
        }
        let mut ends = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0];
        (k.loops.softcap)(&mut ends, 30.0);
        assert_eq!(ends[..2], [30.0, -30.0], "{}", k.name);
        assert!(ends[2].is_nan());
        assert_eq!(ends[3..], [0.0; 2]);
        let mut ends = [f32::INFINITY, 1e30, -1e30, f32::NAN];
        (k.loops.gelu_mul)(&mut ends, &[1.0; 4]);
        assert_eq!(ends[..2], [f32::INFINITY, 1e30], "{}", k.name);
        assert!(
            ends[2].abs() <= 1e-7 && ends[3].is_nan(),
            "{} {ends:?}",
            k.name
        );
    }
}

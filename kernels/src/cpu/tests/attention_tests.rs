//! Attention and its inner kernels.

use half::f16;

use super::*;

fn halves(numbers: &[f32]) -> Vec<u16> {
    let bits = |&number: &f32| f16::from_f32(number).to_bits();
    numbers.iter().map(bits).collect()
}

#[test]
fn float16_is_rounded_to_nearest_and_read_back_exactly() {
    let every: Vec<u16> = (0..=u16::MAX)
        .filter(|bits| bits & 0x7C00 != 0x7C00)
        .collect();
    // Every float16, the midpoint to the next, and the neighbours of both.
    let numbers: Vec<f32> = every
        .iter()
        .flat_map(|&bits| {
            let number = f16::from_bits(bits).to_f32();
            let middle = (number + f16::from_bits(bits.wrapping_add(1) & !0x400).to_f32()) / 2.0;
            [
                number,
                number.next_up(),
                number.next_down(),
                middle,
                middle.next_up(),
                middle.next_down(),
            ]
        })
        .filter(|number| number.abs() < 65520.0)
        .chain([1e-30, -1e-45, 65519.996])
        .collect();
    let expected = halves(&numbers);
    let [pool] = pools([1]);
    for k in available() {
        for len in [0, 1, 3, 4, 7, 8, 15, 16, 17, 33, numbers.len()] {
            let mut found = vec![7; len];
            on(k, &pool).to_f16(&numbers[..len], &mut found).unwrap();
            assert_eq!(found, expected[..len], "{}", k.name);
            let mut wide = vec![f32::NAN; len.min(every.len())];
            (k.attention.f16_to_f32)(&every[..wide.len()], &mut wide);
            for (wide, bits) in wide.iter().zip(&every) {
                assert_eq!(wide.to_bits(), f16::from_bits(*bits).to_f32().to_bits());
            }
        }
    }
}

#[test]
fn numbers_outside_float16_are_reported() {
    let [pool] = pools([1]);
    for k in available() {
        for bad in [
            65520.0,
            -65520.0,
            1e30,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ] {
            for at in [0, 5, 16, 36] {
                let mut x = [1.5; 37];
                x[at] = bad;
                match on(k, &pool).to_f16(&x, &mut [0; 37]) {
                    Err(F16Error::Range { index, value }) => {
                        assert_eq!((index, value.to_bits()), (at, bad.to_bits()));
                    }
                    other => panic!("{}: {other:?} for {bad}", k.name),
                }
            }
        }
        assert!(matches!(
            on(k, &pool).to_f16(&[0.0; 3], &mut [0; 2]),
            Err(F16Error::Shape(_))
        ));
    }
}

struct Case {
    kv_heads: usize,
    group: usize,
    size: usize,
    start: usize,
    n: usize,
    capacity: usize,
    softcap: Option<f32>,
    window: Option<usize>,
    float32: bool,
}

const SHAPES: [[usize; 6]; 14] = [
    [1, 1, 8, 0, 1, 1],
    [2, 1, 16, 0, 5, 7],
    [4, 2, 32, 3, 1, 600],
    [1, 4, 24, 599, 1, 600],
    [2, 3, 5, 250, 70, 320],
    [1, 2, 100, 0, 65, 65],
    [1, 1, 128, 511, 1, 512],
    [1, 2, 64, 500, 130, 640],
    [2, 7, 12, 70, 40, 110],
    [1, 5, 80, 300, 33, 333],
    [1, 40, 20, 10, 9, 19],
    [1, 71, 3, 100, 2, 102],
    [3, 1, 1, 0, 200, 200],
    [1, 8, 256, 1, 17, 18],
];

/// Every shape with and without a cap, without a window and with windows shorter than, as long as
/// and longer than the sequence, varying from shape to shape.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (shape, [kv_heads, group, size, start, n, capacity]) in SHAPES.into_iter().enumerate() {
        let end = start + n;
        let windows = [1, 7, 64, 257, end - 1, end, end + 1, usize::MAX];
        for (index, window) in [None].into_iter().chain(windows.map(Some)).enumerate() {
            if window == Some(0) || (window.is_some() && (index + shape) % 3 > 0) {
                continue;
            }
            cases.push(Case {
                kv_heads,
                group,
                size,
                start,
                n,
                capacity,
                softcap: [None, Some(0.5), None, Some(50.0)][(index + shape / 3) % 4],
                window,
                float32: index % 2 == 1,
            });
        }
    }
    cases
}

#[test]
fn attention_agrees_with_the_reference_on_any_number_of_threads() {
    let mut random = Random(6);
    let pools = pools([1, 2, 3, 4]);
    let mut scratch = Scratch::new();
    for case in cases() {
        let Case {
            kv_heads,
            group,
            size,
            start,
            n,
            ..
        } = case;
        let stored = kv_heads * case.capacity * size;
        let (keys, values) = (random.numbers(stored), random.numbers(stored));
        let half = (halves(&keys), halves(&values));
        let capacity = case.capacity;
        let kv = if case.float32 {
            KvView::new(&keys, &values, kv_heads, size, capacity)
        } else {
            KvView::new(&half.0, &half.1, kv_heads, size, capacity)
        };
        let kv = kv.unwrap();
        let width = kv_heads * group * size;
        let q: Vec<f32> = random.numbers(n * width);
        let attention = Attention {
            scale: 3.0 / (size as f32).sqrt(),
            softcap: case.softcap,
            window: case.window,
        };
        let mut expected = vec![0.0; q.len()];
        reference::attention(&q, n, start, &kv, &attention, &mut expected).unwrap();
        for k in available() {
            let mut decode = |pool: &Arc<Pool>| {
                let mut out = vec![f32::NAN; q.len()];
                // Position by position; only the last ones of a long prefill.
                for t in n.saturating_sub(5)..n {
                    let (q, out) = (&q[t * width..][..width], &mut out[t * width..][..width]);
                    let s = &mut scratch;
                    on(k, pool)
                        .attention_decode(q, &kv, start + t + 1, &attention, s, out)
                        .unwrap();
                }
                out.split_off(n.saturating_sub(5) * width)
            };
            let found = pools.each_ref().map(&mut decode);
            let what = format!(
                "{} decode, {kv_heads} x {group} heads of {size}, {start} + {n}, {attention:?}",
                k.name
            );
            let last = &expected[n.saturating_sub(5) * width..];
            // Values are below 1, and so is their mean.
            assert_close(&found[0], last, |_| 1.0, 2e-6, &what);
            assert!(
                found[1..].iter().all(|others| *others == found[0]),
                "{what}"
            );

            let mut prefill = |pool: &Arc<Pool>| {
                let mut out = vec![f32::NAN; q.len()];
                let s = &mut scratch;
                on(k, pool)
                    .attention_prefill(&q, n, start, &kv, &attention, s, &mut out)
                    .unwrap();
                out
            };
            let found = pools.each_ref().map(&mut prefill);
            let what = what.replace("decode", "prefill");
            assert_close(&found[0], &expected, |_| 1.0, 2e-6, &what);
            assert!(
                found[1..].iter().all(|others| *others == found[0]),
                "{what}"
            );
        }
    }
}

fn decode_and_prefill(
    k: &'static Kernels,
    q: f32,
    keys: &[f32],
    values: &[f32],
    attention: &Attention,
) -> [f32; 2] {
    let cpu = on(k, &pools([1])[0]);
    let mut scratch = Scratch::new();
    let (keys, values) = (halves(keys), halves(values));
    let positions = keys.len();
    let kv = KvView::new(&keys, &values, 1, 1, positions).unwrap();
    let (mut a, mut b) = ([f32::NAN], [f32::NAN]);
    let s = &mut scratch;
    cpu.attention_decode(&[q], &kv, positions, attention, s, &mut a)
        .unwrap();
    cpu.attention_prefill(&[q], 1, positions - 1, &kv, attention, s, &mut b)
        .unwrap();
    [a[0], b[0]]
}

#[test]
fn attention_matches_closed_forms() {
    let plain = Attention {
        scale: 1.0,
        softcap: None,
        window: None,
    };
    let positions = 1000;
    let ramp: Vec<f32> = (0..positions).map(|p| p as f32).collect();
    for k in available() {
        let close = |found: [f32; 2], expected: f64, what: &str| {
            for found in found {
                let error = (f64::from(found) - expected).abs();
                // A split of 256 positions may be summed sequentially.
                assert!(
                    error <= 256.0 * 6e-8 * expected.abs(),
                    "{} {what}: {found} for {expected}",
                    k.name
                );
            }
        };
        // Equal keys: the mean of the visible values.
        let zeros = vec![0.0; positions];
        close(
            decode_and_prefill(k, 1.0, &zeros, &ramp, &plain),
            499.5,
            "mean",
        );
        for window in [1, 2, 63, 64, 65, 300, 999, 1000, 5000] {
            let attention = Attention {
                window: Some(window),
                ..plain
            };
            let seen = window.min(positions);
            let expected = 999.0 - (seen - 1) as f64 / 2.0;
            close(
                decode_and_prefill(k, 1.0, &zeros, &ramp, &attention),
                expected,
                "windowed mean",
            );
        }
        // A score far above the others takes all; far beyond the range of an exponential.
        let mut keys = vec![-60_000.0; positions];
        keys[123] = 60_000.0;
        close(
            decode_and_prefill(k, 1.0, &keys, &ramp, &plain),
            123.0,
            "one key",
        );
        // A cap turns it into e^2 against 1 for each of the others.
        let capped = Attention {
            softcap: Some(1.0),
            ..plain
        };
        let rest: f64 = ramp.iter().map(|&v| f64::from(v)).sum::<f64>() - 123.0;
        let peak = 2f64.exp();
        let expected = (peak * 123.0 + rest) / (peak + 999.0);
        close(
            decode_and_prefill(k, 1.0, &keys, &ramp, &capped),
            expected,
            "capped",
        );
        // Outside the window even the largest score has no weight.
        let windowed = Attention {
            window: Some(500),
            ..plain
        };
        close(
            decode_and_prefill(k, 1.0, &keys, &ramp, &windowed),
            749.5,
            "windowed peak",
        );
    }
}

#[test]
fn nan_propagates() {
    let attention = Attention {
        scale: 1.0,
        softcap: None,
        window: None,
    };
    for k in available() {
        for softcap in [None, Some(20.0)] {
            let attention = Attention {
                softcap,
                ..attention
            };
            let found = decode_and_prefill(k, f32::NAN, &[1.0; 100], &[1.0; 100], &attention);
            assert!(
                found.iter().all(|found| found.is_nan()),
                "{} {found:?}",
                k.name
            );
        }
    }
}

#[test]
fn mismatched_shapes_are_rejected_before_writing() {
    let cpu = Cpu::with_threads(1).unwrap();
    let mut scratch = Scratch::new();
    let kv = KvView::new(&[0_u16; 6], &[0; 6], 1, 2, 3).unwrap();
    let q = [0.0; 6];
    let mut y = [7.0; 6];
    let good = Attention {
        scale: 1.0,
        softcap: None,
        window: None,
    };
    let mut decode = |positions, attention: &Attention| {
        cpu.attention_decode(&q, &kv, positions, attention, &mut scratch, &mut y)
    };
    assert!(decode(0, &good).is_err());
    assert!(decode(4, &good).is_err());
    let nothing = Attention {
        window: Some(0),
        ..good
    };
    assert!(decode(3, &nothing).is_err());
    let mut prefill = |q: &[f32], n, start, attention: &Attention| {
        cpu.attention_prefill(q, n, start, &kv, attention, &mut scratch, &mut y)
    };
    assert!(prefill(&q, 3, 1, &good).is_err());
    assert!(prefill(&q, 3, 0, &nothing).is_err());
    assert!(prefill(&q[..5], 3, 0, &good).is_err());
    assert_eq!(y, [7.0; 6]);
    let none = KvView::new(&[0_u16; 0], &[], 1, 2, 0).unwrap();
    cpu.attention_prefill(&[], 0, 0, &none, &good, &mut scratch, &mut [])
        .unwrap();
}

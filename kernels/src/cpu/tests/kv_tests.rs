//! Quantised and low-rank keys and values.

use half::f16;

use super::*;

fn halves(numbers: &[f32]) -> Vec<u16> {
    let bits = |&number: &f32| f16::from_f32(number).to_bits();
    numbers.iter().map(bits).collect()
}

fn blocks(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(numbers.len()).unwrap()];
    htc_formats::block::encode(dtype, numbers, &mut bytes).unwrap();
    bytes
}

/// Orthonormal rows `[rank, size]` for each of `heads`.
fn bases(random: &mut Random, heads: usize, [rank, size]: [usize; 2]) -> Vec<f32> {
    let mut all = Vec::new();
    for _ in 0..heads {
        let mut rows: Vec<Vec<f64>> = Vec::new();
        while rows.len() < rank {
            let mut row: Vec<f64> = random.numbers(size).iter().map(|&x| x.into()).collect();
            for _ in 0..2 {
                for other in &rows {
                    let dot: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                    row.iter_mut().zip(other).for_each(|(a, b)| *a -= dot * b);
                }
            }
            let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            rows.push(row.iter().map(|x| x / norm).collect());
        }
        all.extend(rows.into_iter().flatten().map(|x| x as f32));
    }
    all
}

struct Held {
    kv_heads: usize,
    size: usize,
    capacity: usize,
    full: [Vec<u16>; 2],
    low: [Vec<u16>; 2],
    bases: [Vec<f32>; 2],
    ranks: [usize; 2],
    positions: usize,
    front: usize,
}

impl Held {
    fn random(
        random: &mut Random,
        [kv_heads, size, capacity]: [usize; 3],
        ranks: [usize; 2],
        [positions, front]: [usize; 2],
    ) -> Self {
        let full = [0, 1].map(|_| halves(&random.numbers(kv_heads * capacity * size)));
        let low = ranks.map(|rank| halves(&random.numbers(kv_heads * (positions + 3) * rank)));
        let bases = ranks.map(|rank| bases(random, kv_heads, [rank, size]));
        Held {
            kv_heads,
            size,
            capacity,
            full,
            low,
            bases,
            ranks,
            positions,
            front,
        }
    }

    fn view(&self) -> KvView<'_> {
        let [keys, values] = &self.full;
        let full = KvView::new(&keys[..], values, self.kv_heads, self.size, self.capacity);
        let shape = LowRankShape {
            kv_heads: self.kv_heads,
            head_size: self.size,
            ranks: self.ranks,
            capacity: self.positions + 3,
            positions: self.positions,
            front: self.front,
        };
        let low = LowRankView::new(
            self.low.each_ref().map(|low| &low[..]),
            self.bases.each_ref().map(|basis| &basis[..]),
            shape,
        );
        full.unwrap().with_low_rank(low.unwrap()).unwrap()
    }
}

fn plain(size: usize, softcap: Option<f32>, window: Option<usize>) -> Attention {
    Attention {
        scale: 3.0 / (size as f32).sqrt(),
        softcap,
        window,
    }
}

/// Checks decode of the last position and prefill of all of `n` against the reference, on any
/// number of threads.
fn assert_matches_reference(
    random: &mut Random,
    kv: &KvView<'_>,
    group: usize,
    [start, n]: [usize; 2],
    attention: &Attention,
    bound: f32,
) {
    let width = kv.kv_heads() * group * kv.head_size();
    let q = random.numbers(n * width);
    let mut expected = vec![0.0; q.len()];
    reference::attention(&q, n, start, kv, attention, &mut expected).unwrap();
    let pools = pools([1, 3]);
    let mut scratch = Scratch::new();
    for k in available() {
        let mut found = pools.each_ref().map(|pool| {
            let mut out = vec![f32::NAN; q.len() + width];
            let (prefill, decode) = out.split_at_mut(q.len());
            let (cpu, s) = (on(k, pool), &mut scratch);
            cpu.attention_prefill(&q, n, start, kv, attention, s, prefill)
                .unwrap();
            let last = &q[(n - 1) * width..];
            cpu.attention_decode(last, kv, start + n, attention, s, decode)
                .unwrap();
            out
        });
        let what = format!("{} {start} + {n}, {attention:?}, {kv:.0?}", k.name);
        let what = &what[..what.len().min(200)];
        assert_eq!(found[0], found[1], "{what}");
        let decode = found[0].split_off(q.len());
        assert_close(&found[0], &expected, |_| 1.0, bound, what);
        let last = &expected[(n - 1) * width..];
        assert_close(&decode, last, |_| 1.0, bound, what);
    }
}

#[test]
fn quantised_attention_matches_the_reference() {
    let mut random = Random(31);
    for dtype in [DType::Q8_0, DType::Q4_0] {
        for (kv_heads, group, size, start, n) in [
            (2, 2, 32, 0, 5),
            (1, 9, 64, 300, 3),
            (2, 1, 256, 520, 70),
            (1, 4, 128, 255, 1),
        ] {
            let capacity = start + n + 2;
            let count = kv_heads * capacity * size;
            let [keys, values] = [0, 1].map(|_| blocks(dtype, &random.numbers(count)));
            let of = |bytes| match dtype {
                DType::Q8_0 => KvNumbers::Q8_0(bytes),
                _ => KvNumbers::Q4_0(bytes),
            };
            let kv =
                KvView::from_numbers(of(&keys), of(&values), kv_heads, size, capacity).unwrap();
            for (softcap, window) in [(None, None), (Some(0.5), Some(9)), (None, Some(280))] {
                let attention = plain(size, softcap, window);
                assert_matches_reference(&mut random, &kv, group, [start, n], &attention, 3e-6);
            }
        }
    }
}

#[test]
fn low_rank_attention_matches_the_reference() {
    let mut random = Random(32);
    // Heads, group, size, ranks, low-rank positions, full positions before them, full positions
    // after them including the queries.
    for (kv_heads, group, size, ranks, positions, front, tail, n) in [
        (2, 2, 8, [3, 5], 10, 2, 9, 4),
        (1, 4, 32, [32, 32], 300, 32, 40, 1),
        (2, 3, 24, [7, 1], 700, 0, 1, 1),
        (1, 1, 64, [40, 17], 70, 32, 130, 100),
        (2, 1, 16, [4, 4], 0, 0, 6, 6),
    ] {
        let shape = [kv_heads, size, front + tail + 1];
        let held = Held::random(&mut random, shape, ranks, [positions, front]);
        let start = front + positions + tail - n;
        for (softcap, window) in [
            (None, None),
            (Some(0.5), Some(tail + positions / 2)),
            (None, Some(3)),
            (Some(5.0), Some(tail + positions + front / 2)),
            (None, Some(tail)),
        ] {
            let attention = plain(size, softcap, window);
            assert_matches_reference(
                &mut random,
                &held.view(),
                group,
                [start, n],
                &attention,
                4e-6,
            );
        }
    }
}

#[test]
fn low_rank_attention_matches_reconstructed_attention() {
    let mut random = Random(33);
    let held = Held::random(&mut random, [2, 32, 80], [11, 20], [300, 32]);
    let kv = held.view();
    let (n, start) = (20, 355);
    let q = random.numbers(n * 2 * 2 * 32);
    let attention = plain(32, None, Some(350));
    let mut scratch = Scratch::new();
    for k in available() {
        let cpu = on(k, &pools([2])[0]);
        let [keys, values] = cpu.reconstruct(&kv, start + n).unwrap();
        let whole = KvView::new(&keys[..], &values, 2, 32, start + n).unwrap();
        let [mut late, mut first] = [0, 1].map(|_| vec![0.0; q.len()]);
        let s = &mut scratch;
        cpu.attention_prefill(&q, n, start, &kv, &attention, s, &mut late)
            .unwrap();
        cpu.attention_prefill(&q, n, start, &whole, &attention, s, &mut first)
            .unwrap();
        assert_close(&late, &first, |_| 1.0, 4e-6, k.name);
        assert!(cpu.reconstruct(&kv, 381).is_err() && cpu.reconstruct(&kv, 300).is_err());
    }
}

#[test]
fn map_rows_accepts_both_layouts() {
    let mut random = Random(34);
    for (rows, cols, n) in [(3, 8, 1), (8, 3, 130), (1, 1, 5), (40, 64, 65)] {
        let (a, x) = (random.numbers(rows * cols), random.numbers(n * cols));
        let across: Vec<f32> = (0..cols * rows)
            .map(|i| a[i % rows * cols + i / rows])
            .collect();
        let expected: Vec<f32> = (0..n * rows)
            .map(|i| {
                let (t, r) = (i / rows, i % rows);
                let terms =
                    (0..cols).map(|c| f64::from(a[r * cols + c]) * f64::from(x[t * cols + c]));
                terms.sum::<f64>() as f32
            })
            .collect();
        for k in available() {
            for (numbers, transposed) in [(&a, false), (&across, true)] {
                let a = SmallMatrix {
                    numbers,
                    rows,
                    cols,
                    transposed,
                };
                let mut found = vec![f32::NAN; n * rows];
                let cpu = on(k, &pools([1])[0]);
                cpu.map_rows(a, KvNumbers::F32(&x), &mut found).unwrap();
                assert_close(&found, &expected, |_| cols as f32, 1e-6, k.name);
                assert!(
                    cpu.map_rows(a, KvNumbers::F32(&x), &mut found[1..])
                        .is_err()
                );
            }
        }
    }
}

#[test]
fn importance_equals_attention_weights() {
    // With one-hot values the output is the position's weight.
    let mut random = Random(35);
    let held = Held::random(&mut random, [2, 16, 30], [5, 6], [40, 3]);
    let (n, start, group) = (4, 60, 3);
    let q = random.numbers(n * 2 * group * 16);
    for (kv, window) in [
        (held.view(), None),
        (held.view(), Some(30)),
        (held.view(), Some(2)),
    ] {
        let attention = plain(16, Some(2.0), window);
        let total = start + n;
        for k in available() {
            let cpu = on(k, &pools([2])[0]);
            let mut found = vec![f32::NAN; 2 * total];
            cpu.attention_importance(&q, n, start, &kv, &attention, &mut found)
                .unwrap();
            let [keys, _] = cpu.reconstruct(&kv, total).unwrap();
            for position in 0..total {
                let values: Vec<f32> = (0..keys.len())
                    .map(|i| f32::from(u8::from(i / 16 % total == position)))
                    .collect();
                let whole = KvView::new(&keys[..], &values, 2, 16, total).unwrap();
                let mut out = vec![0.0; q.len()];
                reference::attention(&q, n, start, &whole, &attention, &mut out).unwrap();
                for head in 0..2 {
                    let heads = out.chunks(16).map(|head| head[0]).enumerate();
                    let of_head = heads.filter(|(i, _)| i % (2 * group) / group == head);
                    let expected: f32 = of_head.map(|(_, weight)| weight).sum();
                    let found = found[head * total + position];
                    assert!(
                        (found - expected).abs() < 1e-4,
                        "{} {position}: {found} for {expected}",
                        k.name
                    );
                }
            }
            // The weights of every query sum to its number of heads.
            let sum: f32 = found[..total].iter().sum();
            assert!((sum - (n * group) as f32).abs() < 1e-4, "{sum}");
        }
    }
}

#[test]
fn hadamard_is_self_inverse_and_preserves_products() {
    let mut random = Random(36);
    for (size, block) in [(2, 2), (32, 32), (24, 8), (80, 16), (128, 128)] {
        assert_eq!(hadamard_block(size), block);
        let [x, y] = [0, 1].map(|_| random.numbers(size * 70));
        let mut expected = x.clone();
        reference::hadamard(&mut expected, size).unwrap();
        for k in available() {
            let cpu = on(k, &pools([2])[0]);
            let [mut a, mut b] = [x.clone(), y.clone()];
            cpu.hadamard(&mut a, size).unwrap();
            cpu.hadamard(&mut b, size).unwrap();
            assert_close(&a, &expected, |_| 1.0, 2e-6, k.name);
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                let terms = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
                terms.sum()
            };
            for head in 0..70 {
                let head = head * size..(head + 1) * size;
                let (before, after) = (
                    dot(&x[head.clone()], &y[head.clone()]),
                    dot(&a[head.clone()], &b[head]),
                );
                assert!((before - after).abs() < 2e-5, "{before} {after}");
            }
            cpu.hadamard(&mut a, size).unwrap();
            assert_close(&a, &x, |_| 1.0, 2e-6, k.name);
        }
    }
    // One large number becomes many of equal size.
    let cpu = Cpu::with_threads(1).unwrap();
    let mut spike = [0.0; 64];
    spike[5] = 8.0;
    cpu.hadamard(&mut spike, 64).unwrap();
    assert!(spike.iter().all(|x| x.abs() == 1.0), "{spike:?}");
    for size in [0, 1, 27] {
        let error = cpu.hadamard(&mut [0.0; 27], size).unwrap_err();
        assert!(error.actual <= 1 || error.expected == 0, "{error}");
        assert!(reference::hadamard(&mut [0.0_f32; 27], size).is_err());
    }
    assert!(cpu.hadamard(&mut [0.0; 30], 4).is_err());
    assert_eq!([0, 1, 27].map(hadamard_block), [0, 1, 1]);
}

#[test]
fn mismatched_views_are_rejected() {
    let (q8, numbers) = ([0_u8; 34 * 6], [0.0_f32; 32 * 6]);
    assert!(KvView::from_numbers(KvNumbers::Q8_0(&q8), KvNumbers::Q8_0(&q8), 2, 32, 3).is_ok());
    assert!(KvView::from_numbers(KvNumbers::Q8_0(&q8), KvNumbers::Q8_0(&q8), 2, 16, 6).is_err());
    assert!(
        KvView::from_numbers(KvNumbers::Q8_0(&q8), KvNumbers::Q8_0(&q8[34..]), 2, 32, 3).is_err()
    );
    let shape = LowRankShape {
        kv_heads: 1,
        head_size: 4,
        ranks: [2, 3],
        capacity: 5,
        positions: 5,
        front: 1,
    };
    let (keys, values) = (vec![0; 10], vec![0; 15]);
    let low = |shape| LowRankView::new([&keys, &values], [&numbers[..8], &numbers[..12]], shape);
    let view = low(shape).unwrap();
    assert!(
        low(LowRankShape {
            positions: 6,
            ..shape
        })
        .is_err()
    );
    assert!(
        low(LowRankShape {
            ranks: [3, 2],
            ..shape
        })
        .is_err()
    );
    assert!(
        low(LowRankShape {
            ranks: [0, 3],
            ..shape
        })
        .is_err()
    );
    assert!(
        low(LowRankShape {
            kv_heads: usize::MAX,
            ..shape
        })
        .is_err()
    );
    let full = |size| KvView::new(&numbers[..4 * size], &numbers[..4 * size], 1, size, 4).unwrap();
    assert!(full(5).with_low_rank(view).is_err());
    let kv = full(4).with_low_rank(view).unwrap();
    // Queries come after the low-rank positions; nine positions in all.
    let cpu = Cpu::with_threads(1).unwrap();
    let (q, mut out, mut s) = ([0.0; 4], [0.0; 4], Scratch::new());
    let attention = plain(4, None, None);
    for (position, fits) in [(5, false), (6, true), (8, true), (9, false)] {
        let found = cpu.attention_prefill(&q, 1, position, &kv, &attention, &mut s, &mut out);
        assert_eq!(found.is_ok(), fits, "{position}");
        let found = cpu.attention_decode(&q, &kv, position + 1, &attention, &mut s, &mut out);
        assert_eq!(found.is_ok(), fits, "{position}");
        let found = cpu.attention_importance(
            &q,
            1,
            position,
            &kv,
            &attention,
            &mut vec![0.0; position + 1],
        );
        assert_eq!(found.is_ok(), fits, "{position}");
    }
}

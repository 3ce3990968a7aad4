//! Attention on an emulated device where contexts are split otherwise, and where shared memory is short.

#![allow(clippy::unwrap_used, reason = "test code")]

use half::f16;

use super::kv::{KvHeads, KvNumbers, KvRows};
use super::*;
use crate::cpu::Attention;
use crate::cuda::Emulated;

/// Rows of queries behind a context, of one kv head in f32 or f16.
struct Case {
    numbers: KvNumbers,
    /// Query heads that read it.
    group: usize,
    size: usize,
    start: usize,
    rows: usize,
    window: Option<usize>,
}

fn wave(i: usize, by: f32) -> f32 {
    (i as f32 * by).sin()
}

impl Case {
    fn attention(&self) -> Attention {
        Attention {
            scale: 1.0 / (self.size as f32).sqrt(),
            softcap: None,
            window: self.window,
        }
    }

    /// Of rows `at ..`, `rows` in one batch.
    fn found(
        &self,
        device: &Emulated,
        held: [&KvRows<Emulated>; 2],
        q: &[f32],
        at: usize,
        rows: usize,
    ) -> Vec<f32> {
        let row = self.group * self.size;
        let q = put(device, &q[at * row..(at + rows) * row]).unwrap();
        let out = device.allocate(F32 * rows * row).unwrap();
        let queries = Queries {
            rows,
            heads: self.group,
            apart: true,
        };
        let held = Held {
            full: held,
            low: None,
            start: self.start + at,
        };
        let mut room = AttentionRoom::default();
        attention(
            device,
            queries,
            &q,
            &held,
            &self.attention(),
            &mut room,
            &out,
        )
        .unwrap();
        get(device, &out, rows * row).unwrap()
    }

    fn expected(&self, q: &[f32], keys: &[f32], values: &[f32]) -> Vec<f64> {
        let size = self.size;
        let of_query = |(index, q): (usize, &[f32])| {
            let end = self.start + index / self.group + 1;
            let first = self.window.map_or(0, |window| end.saturating_sub(window));
            let scale = f64::from(self.attention().scale);
            let dot = |p: usize| -> f64 {
                let key = &keys[p * size..(p + 1) * size];
                let terms = q
                    .iter()
                    .zip(key)
                    .map(|(&q, &k)| f64::from(q) * f64::from(k));
                scale * terms.sum::<f64>()
            };
            let scores: Vec<f64> = (first..end).map(dot).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let number = move |d: usize| -> f64 {
                let of = |(p, w): (usize, &f64)| w * f64::from(values[(first + p) * size + d]);
                weights.iter().enumerate().map(of).sum::<f64>() / sum
            };
            (0..size).map(number).collect::<Vec<_>>()
        };
        q.chunks_exact(size)
            .enumerate()
            .flat_map(of_query)
            .collect()
    }

    fn agrees(&self) {
        let device = Emulated::new(3);
        let (size, positions) = (self.size, self.start + self.rows);
        let shape = KvHeads { heads: 1, size };
        let [keys, values] = [0.37, 0.91].map(|by| {
            let numbers = (0..positions * size).map(|i| f16::from_f32(wave(i, by)).to_f32());
            numbers.collect::<Vec<f32>>()
        });
        let held = [&keys, &values].map(|numbers| {
            let rows = KvRows::new(&device, self.numbers, shape, positions).unwrap();
            let bytes: Vec<u8> = match self.numbers {
                KvNumbers::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
                _ => {
                    let halves = numbers.iter().map(|&x| f16::from_f32(x));
                    halves.flat_map(f16::to_le_bytes).collect()
                }
            };
            device.upload(&bytes, rows.memory(), 0).unwrap();
            rows
        });
        let held = [&held[0], &held[1]];
        let row = self.group * size;
        let q: Vec<f32> = (0..self.rows * row).map(|i| 3.0 * wave(i, 0.53)).collect();
        let together = self.found(&device, held, &q, 0, self.rows);
        for at in 0..self.rows {
            let alone = self.found(&device, held, &q, at, 1);
            assert_eq!(alone, together[at * row..(at + 1) * row], "row {at}");
        }
        let expected = self.expected(&q, &keys, &values);
        for (found, expected) in together.iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 2e-6,
                "{found} {expected}"
            );
        }
    }
}

/// Rows before and behind the end from where on pieces of a context have twice as many positions, of one batch.
#[test]
fn a_long_context_has_longer_pieces() {
    for (window, numbers) in [(None, KvNumbers::F16), (Some(90), KvNumbers::F32)] {
        let case = Case {
            numbers,
            group: 1,
            size: 8,
            start: 2046,
            rows: 5,
            window,
        };
        case.agrees();
    }
}

/// More heads than have their weights side by side, and heads of which no whole tile fits.
#[test]
fn heads_of_any_number_and_size() {
    for (group, size) in [(8, 8), (6, 20), (5, 12), (2, 256), (1, 1024)] {
        let case = Case {
            numbers: KvNumbers::F32,
            group,
            size,
            start: 70,
            rows: 2,
            window: None,
        };
        case.agrees();
    }
}

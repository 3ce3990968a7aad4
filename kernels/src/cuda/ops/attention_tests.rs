#![allow(clippy::unwrap_used, reason = "test code")]

use super::kv::{KvElement, KvHeads, KvRows};
use super::*;
use crate::cpu::Attention;
use crate::cuda::{EmulatedDevice, EmulatedMemory};

#[derive(Clone, Copy)]
struct Case {
    numbers: KvElement,
    kv_heads: usize,
    group: usize,
    size: usize,
    start: usize,
    rows: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    magnitudes: [f32; 2],
    apart: bool,
}

const SMALL: Case = Case {
    numbers: KvElement::F16,
    kv_heads: 1,
    group: 1,
    size: 32,
    start: 0,
    rows: 40,
    window: None,
    softcap: None,
    magnitudes: [1.0, 1.0],
    apart: false,
};

struct Filled {
    rows: [KvRows<EmulatedDevice>; 2],
    numbers: [Vec<f32>; 2],
    q: Vec<f32>,
}

impl Case {
    fn positions(&self) -> usize {
        self.start + self.rows
    }

    fn fill(&self, device: &EmulatedDevice) -> Filled {
        let shape = KvHeads {
            heads: self.kv_heads,
            size: self.size,
        };
        let (positions, row) = (self.positions(), self.kv_heads * self.size);
        let filled = [0, 1].map(|side| {
            let rows = KvRows::new(device, self.numbers, shape, positions + 3).unwrap();
            let of = |i: usize| self.magnitudes[side] * (i as f32 * [0.37, 0.91][side]).sin();
            let x = upload_floats(device, &(0..positions * row).map(of).collect::<Vec<_>>());
            let faults = FaultEntries::new(device, 1).unwrap();
            let all = AppendedRows {
                from: 0,
                count: positions,
                to: 0,
                position: 0,
            };
            append_rows(device, &rows, all, &x.unwrap(), &faults, 0).unwrap();
            assert_eq!(faults.take_first(device).unwrap(), None);
            let wide = device.allocate(F32_BYTES * positions * row).unwrap();
            rows_to_f32(device, &rows, [0, positions], &wide, [0, positions]).unwrap();
            let numbers = download_floats(device, &wide, positions * row).unwrap();
            (rows, numbers)
        });
        let [(keys, of_keys), (values, of_values)] = filled;
        let q = (0..self.rows * row * self.group).map(|i| 3.0 * (i as f32 * 0.53).sin());
        Filled {
            rows: [keys, values],
            numbers: [of_keys, of_values],
            q: q.collect(),
        }
    }

    fn attention(&self) -> Attention {
        Attention {
            scale: 1.0 / (self.size as f32).sqrt() / self.magnitudes[0],
            softcap: self.softcap,
            window: self.window,
        }
    }

    fn row(&self) -> usize {
        self.kv_heads * self.group * self.size
    }

    fn attend(
        &self,
        device: &EmulatedDevice,
        filled: &Filled,
        at: usize,
        [q, out]: [&EmulatedMemory; 2],
        rows: usize,
    ) {
        let queries = QueryShape {
            first: 0,
            rows,
            heads: self.kv_heads * self.group,
            batch_invariant: self.apart,
        };
        let held = DeviceLayerCache {
            full: [&filled.rows[0], &filled.rows[1]],
            low_rank: None,
            start: self.start + at,
        };
        let mut scratch = AttentionScratch::default();
        attention(
            device,
            queries,
            q,
            &held,
            &self.attention(),
            &mut scratch,
            out,
        )
        .unwrap();
    }

    fn found(&self, device: &EmulatedDevice, filled: &Filled, at: usize, rows: usize) -> Vec<f32> {
        let row = self.row();
        let q = upload_floats(device, &filled.q[at * row..(at + rows) * row]).unwrap();
        let out = upload_floats(device, &vec![-77.0; rows * row]).unwrap();
        self.attend(device, filled, at, [&q, &out], rows);
        download_floats(device, &out, rows * row).unwrap()
    }

    fn expected(&self, filled: &Filled) -> Vec<f64> {
        let (size, heads) = (self.size, self.kv_heads * self.group);
        let Attention { scale, softcap, .. } = self.attention();
        let of_query = |(index, q): (usize, &[f32])| {
            let (end, head) = (self.start + index / heads + 1, index % heads / self.group);
            let first = self.window.map_or(0, |window| end.saturating_sub(window));
            let row = |side: usize, p: usize| {
                &filled.numbers[side][(head * self.positions() + p) * size..][..size]
            };
            let score = |p: usize| -> f64 {
                let terms = q.iter().zip(row(0, p));
                let terms = terms.map(|(&q, &k)| f64::from(q) * f64::from(k));
                let score = f64::from(scale) * terms.sum::<f64>();
                softcap.map_or(score, |cap| {
                    f64::from(cap) * (score / f64::from(cap)).tanh()
                })
            };
            let scores: Vec<f64> = (first..end).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut out = vec![0.0; size];
            for (p, weight) in weights.iter().enumerate() {
                for (out, &v) in out.iter_mut().zip(row(1, first + p)) {
                    *out += weight * f64::from(v) / sum;
                }
            }
            out
        };
        let all = filled.q.chunks_exact(size).enumerate();
        all.flat_map(of_query).collect()
    }

    fn kernel(&self) -> &'static str {
        let device = EmulatedDevice::new(4);
        let filled = self.fill(&device);
        let [q, out] = [0, 1].map(|_| device.allocate(F32_BYTES * self.rows * self.row()).unwrap());
        device.begin_step().unwrap();
        self.attend(&device, &filled, 0, [&q, &out], self.rows);
        device.end_step().unwrap();
        device.last_step()[0].kernel.unwrap()
    }

    fn agrees(&self, what: &str) {
        let device = EmulatedDevice::new(5);
        let filled = self.fill(&device);
        let found = self.found(&device, &filled, 0, self.rows);
        let bound = 2e-6 * f64::from(self.magnitudes[1]);
        for (i, (found, expected)) in found.iter().zip(self.expected(&filled)).enumerate() {
            assert!(
                (f64::from(*found) - expected).abs() < bound,
                "{what}, number {i}: {found} for {expected}"
            );
        }
    }

    /// As `agrees`; also checks that each row has the same bits in a batch of one.
    fn agrees_alone(self, what: &str) {
        let case = Case {
            apart: true,
            ..self
        };
        case.agrees(what);
        let device = EmulatedDevice::new(3);
        let filled = case.fill(&device);
        let together = case.found(&device, &filled, 0, case.rows);
        for (at, row) in together.chunks_exact(case.row()).enumerate() {
            let alone = case.found(&device, &filled, at, 1);
            assert_eq!(alone, row, "{what}, row {at}");
        }
    }
}

const NUMBERS: [KvElement; 4] = [
    KvElement::F16,
    KvElement::F32,
    KvElement::Q8_0,
    KvElement::Q4_0,
];

#[test]
fn tiled_attention_matches_reference_for_every_type() {
    for numbers in NUMBERS {
        for (start, rows) in [(0, 32), (0, 64), (0, 65), (31, 33), (70, 130)] {
            let case = Case {
                numbers,
                start,
                rows,
                ..SMALL
            };
            case.agrees(&format!("{numbers:?} {start} {rows}"));
        }
    }
}

#[test]
fn tiled_attention_matches_reference_for_any_heads() {
    for (kv_heads, group, size) in [
        (2, 3, 64),
        (1, 2, 20),
        (3, 1, 13),
        (1, 1, 80),
        (2, 2, 128),
        (1, 1, 200),
        (1, 1, 256),
    ] {
        for numbers in [KvElement::F16, KvElement::F32] {
            let case = Case {
                numbers,
                kv_heads,
                group,
                size,
                start: 5,
                ..SMALL
            };
            case.agrees(&format!("{numbers:?} {kv_heads} {group} {size}"));
        }
    }
    let case = Case { size: 264, ..SMALL };
    case.agrees("264");
}

#[test]
fn tiled_attention_applies_window_and_softcap() {
    for (window, softcap) in [
        (Some(1), None),
        (Some(30), None),
        (Some(33), Some(2.0)),
        (None, Some(0.5)),
        (Some(500), None),
    ] {
        for start in [0, 100] {
            let case = Case {
                start,
                rows: 70,
                window,
                softcap,
                ..SMALL
            };
            case.agrees(&format!("{window:?} {softcap:?} {start}"));
        }
    }
}

#[test]
fn tiled_attention_keeps_precision_of_cells() {
    for (numbers, magnitudes) in [
        (KvElement::F16, [1e4, 1e4]),
        (KvElement::F16, [1e-2, 1e-3]),
        (KvElement::F32, [1e20, 1e10]),
        (KvElement::F32, [1e-20, 1e-10]),
        (KvElement::Q8_0, [1e3, 1e-3]),
    ] {
        let case = Case {
            numbers,
            magnitudes,
            ..SMALL
        };
        case.agrees(&format!("{numbers:?} {magnitudes:?}"));
    }
}

#[test]
fn many_rows_use_the_tiled_kernel() {
    for (numbers, size, expected) in [
        (KvElement::F16, 13, "attend_tiles_of_halves_64"),
        (KvElement::F16, 64, "attend_tiles_of_halves_64"),
        (KvElement::F16, 65, "attend_tiles_of_halves_128"),
        (KvElement::F16, 256, "attend_tiles_of_halves_128"),
        (KvElement::F32, 64, "attend_tiles_64"),
        (KvElement::Q8_0, 96, "attend_tiles_128"),
        (KvElement::Q4_0, 256, "attend_tiles_128"),
        (KvElement::F16, 257, "attend_split"),
    ] {
        let case = Case {
            numbers,
            size,
            ..SMALL
        };
        assert_eq!(case.kernel(), expected, "{numbers:?} {size}");
    }
    let few = Case { rows: 31, ..SMALL };
    let apart = Case {
        apart: true,
        ..SMALL
    };
    assert_eq!([few, apart].map(|case| case.kernel()), ["attend_split"; 2]);
}

#[test]
fn non_finite_query_affects_only_its_row() {
    let device = EmulatedDevice::new(8);
    for odd in [f32::NAN, f32::INFINITY] {
        for numbers in [KvElement::F16, KvElement::F32] {
            let case = Case { numbers, ..SMALL };
            let mut filled = case.fill(&device);
            let expected = case.found(&device, &filled, 0, case.rows);
            filled.q[17 * case.size + 3] = odd;
            let found = case.found(&device, &filled, 0, case.rows);
            let rows = found
                .chunks_exact(case.size)
                .zip(expected.chunks_exact(case.size));
            for (row, (found, expected)) in rows.enumerate() {
                match row {
                    17 => assert!(found.iter().all(|x| x.is_nan()), "{numbers:?} {odd}"),
                    _ => assert_eq!(found, expected, "{numbers:?} {odd} {row}"),
                }
            }
        }
    }
}

#[test]
fn tiled_rows_are_independent_of_their_index() {
    let long = Case {
        start: 1500,
        rows: 33,
        ..SMALL
    };
    long.agrees("long");
    for window in [None, Some(60)] {
        let case = Case {
            start: 100,
            rows: 300,
            window,
            ..SMALL
        };
        case.agrees(&format!("two splits, {window:?}"));
    }
    for window in [None, Some(50)] {
        let case = Case {
            start: 10,
            rows: 150,
            window,
            ..SMALL
        };
        let device = EmulatedDevice::new(6);
        let filled = case.fill(&device);
        let whole = case.found(&device, &filled, 0, case.rows);
        for (at, rows) in [(0, 32), (1, 40), (37, 64), (85, 65)] {
            let found = case.found(&device, &filled, at, rows);
            assert_eq!(
                found,
                whole[at * case.size..][..rows * case.size],
                "{rows} from {at} on"
            );
        }
    }
}

#[test]
fn long_context_has_longer_splits() {
    for (numbers, group, size, window) in [
        (KvElement::F16, 1, 8, None),
        (KvElement::F32, 1, 8, Some(90)),
        (KvElement::Q8_0, 2, 32, None),
        (KvElement::Q4_0, 2, 32, None),
        (KvElement::Q8_0, 2, 32, Some(90)),
    ] {
        let case = Case {
            numbers,
            group,
            size,
            window,
            start: 2046,
            rows: 5,
            ..SMALL
        };
        case.agrees_alone(&format!("{numbers:?} {window:?}"));
    }
}

#[test]
fn row_attention_matches_reference_for_any_heads() {
    for (group, size) in [(8, 8), (6, 20), (5, 12), (2, 256), (1, 1024)] {
        let case = Case {
            numbers: KvElement::F32,
            group,
            size,
            start: 70,
            rows: 2,
            ..SMALL
        };
        case.agrees_alone(&format!("{group} {size}"));
    }
}

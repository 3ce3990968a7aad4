use htc_formats::DType;
use htc_kernels::cpu::KvNumbers;
use proptest::prelude::*;

use super::*;
use crate::ExecError;
use crate::backend::{Attention, HeadShape, Reference, SequenceRows};

const SHAPE: KvShape = KvShape {
    layers: 2,
    kv_heads: 2,
    head_size: 2,
};

fn cpu() -> crate::Cpu {
    crate::Cpu::with_threads(1).unwrap()
}

fn full(kv_type: KvType) -> KvCache {
    KvCache::new(&KvPlan::uncompressed(SHAPE, kv_type).unwrap())
}

/// A float16 whose bits encode layer, side, position, head and dimension.
fn number(layer: usize, side: usize, position: usize, head: usize, dimension: usize) -> u16 {
    ((((layer * 2 + side) * 1000 + position) * 2 + head) * 2 + dimension) as u16
}

#[test]
fn appended_rows_survive_growth() {
    let mut cache = full(KvType::F16);
    for n in [1, 3, 250, 1, 10, 300] {
        cache.reserve(&mut cpu(), n).unwrap();
        let start = cache.len();
        for layer in 0..2 {
            let rows = |side: usize| -> Vec<f32> {
                let bits: Vec<u8> = (0..n * 4)
                    .map(|i| number(layer, side, start + i / 4, i / 2 % 2, i % 2))
                    .flat_map(u16::to_le_bytes)
                    .collect();
                let mut numbers = vec![0.0; n * 4];
                htc_formats::block::decode(DType::F16, &bits, &mut numbers).unwrap();
                numbers
            };
            cache
                .append(&mut cpu(), layer, 0..n, &rows(0), &rows(1))
                .unwrap();
        }
        cache.advance(n);
    }
    assert_eq!(cache.len(), 565);
    cache.truncate(500);
    for layer in 0..2 {
        let view = cache.view(layer).unwrap();
        for head in 0..2 {
            let (KvNumbers::F16(keys), KvNumbers::F16(values)) = view.head(head) else {
                panic!("another type than was asked for");
            };
            for i in 0..cache.len() * 2 {
                assert_eq!(keys[i], number(layer, 0, i / 2, head, i % 2));
                assert_eq!(values[i], number(layer, 1, i / 2, head, i % 2));
            }
        }
    }
    assert!(cache.bytes() >= 2 * 2 * 565 * 4 * 2);
    assert!(cache.bytes() <= 2 * 2 * 2 * 565 * 4 * 2);
}

#[test]
fn float32_is_kept_as_it_is() {
    let mut cache = full(KvType::F32);
    let numbers = vec![1e9, f32::MIN_POSITIVE, 0.1, -3.0];
    for position in 0..300 {
        cache.reserve(&mut cpu(), 1).unwrap();
        for layer in 0..2 {
            let keys = numbers.iter().map(|x| x * (position + 1) as f32).collect();
            cache
                .append(&mut cpu(), layer, 0..1, &keys, &numbers)
                .unwrap();
        }
        cache.advance(1);
    }
    let KvNumbers::F32(keys) = cache.view(1).unwrap().head(1).0 else {
        panic!("another type than was asked for");
    };
    assert_eq!(keys[2 * 299..][..2], [0.1_f32 * 300.0, -900.0]);
    assert_eq!(cache.bytes(), 2 * 2 * 512 * 4 * 4);
    let error = cache
        .append(&mut cpu(), 0, 0..1, &vec![f32::NAN; 4], &numbers)
        .unwrap_err();
    assert!(error.to_string().contains("NaN"), "{error}");
}

#[test]
fn a_number_beyond_float16_is_refused_with_its_layer() {
    let mut cache = full(KvType::F16);
    cache.reserve(&mut cpu(), 3).unwrap();
    let good = vec![65504.0, -65519.9, 1e-9, 0.0];
    cache.append(&mut cpu(), 0, 0..1, &good, &good).unwrap();
    cache.advance(1);
    for bad in [65520.0, -1e9, f32::INFINITY, f32::NAN] {
        let rows = vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, bad, bad];
        let zeros = vec![0.0; 8];
        for (side, keys, values) in [("key", &rows, &zeros), ("value", &zeros, &rows)] {
            let appended = cache.append(&mut cpu(), 1, 0..2, keys, values);
            let error = appended.unwrap_err();
            let expected = format!("layer 1: a number of the {side} at position 2 is {bad}, which");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
    assert_eq!(cache.len(), 1);
}

#[test]
fn blocks_are_those_of_the_formats() {
    let shape = KvShape {
        layers: 1,
        kv_heads: 2,
        head_size: 64,
    };
    let mut random = Random(20);
    for kv_type in [KvType::Q8_0, KvType::Q4_0] {
        let mut cache = KvCache::new(&KvPlan::uncompressed(shape, kv_type).unwrap());
        let mut rows = vec![];
        for n in [1, 40, 250, 3] {
            cache.reserve(&mut cpu(), n).unwrap();
            let more = random.numbers(n * 128);
            cache.append(&mut cpu(), 0, 0..n, &more, &more).unwrap();
            cache.advance(n);
            rows.extend(more);
        }
        let dtype = kv_type.dtype();
        assert_eq!(cache.bytes(), 2 * 2 * 512 * dtype.row_bytes(64).unwrap());
        assert_eq!(
            cache.bytes_per_position(),
            2 * 2 * dtype.row_bytes(64).unwrap()
        );
        let [keys, values] = cache.full_rows(&mut cpu(), 0, 0..294).unwrap();
        for (index, row) in rows.chunks_exact(64).enumerate() {
            let (position, head) = (index / 2, index % 2);
            let mut bytes = vec![0; dtype.row_bytes(64).unwrap()];
            rounding::encode(dtype, row, &mut bytes).unwrap();
            let mut expected = vec![0.0; 64];
            htc_formats::block::decode(dtype, &bytes, &mut expected).unwrap();
            let at = (head * 294 + position) * 64;
            assert_eq!(keys[at..at + 64], expected);
            assert_eq!(values[at..at + 64], expected);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            cache.reserve(&mut cpu(), 3).unwrap();
            let mut rows = vec![0.5; 3 * 128];
            rows[2 * 128 + 70] = bad;
            let error = cache
                .append(&mut cpu(), 0, 0..3, &vec![0.0; 384], &rows)
                .unwrap_err();
            let ExecError::KvRange {
                side,
                position,
                value,
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!((side, position), ("value", 296));
            assert_eq!(value.to_bits(), bad.to_bits());
        }
        assert_eq!(cache.len(), 294);
    }
}

#[test]
fn coordinate_beyond_float16_is_refused_without_side_effects() {
    let shape = KvShape {
        layers: 1,
        kv_heads: 1,
        head_size: 2,
    };
    let diagonal = 0.5_f32.sqrt();
    let side = BasisSide {
        components: vec![diagonal, diagonal, diagonal, -diagonal],
        energies: vec![2.0, 1.0],
    };
    let bases = KvBases::new(shape, [side.clone(), side]).unwrap();
    let options = KvOptions::new("static:0.5".parse::<KvKind>().unwrap());
    let plan = KvPlan::new(shape, &options, Some(&bases)).unwrap();
    let mut cache = KvCache::new(&plan);
    cache.reserve(&mut cpu(), 3).unwrap();
    let large = vec![1.0, 1.0, 60_000.0, 60_000.0, 2.0, 2.0];
    cache
        .append(&mut cpu(), 0, 0..3, &vec![1.0; 6], &large)
        .unwrap();
    cache.advance(3);
    assert!(cache.compress(&mut cpu(), 0, 0, 2).is_err(), "no bases yet");
    let layer = Arc::new(bases.layer(0, [1, 1]));
    cache.set_bases(&mut cpu(), 0, &layer, None).unwrap();
    let error = cache.compress(&mut cpu(), 0, 0, 2).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("layer 0: a number of the value at position 1 is 848"),
        "{message}"
    );
    let [_, values] = cache.full_rows(&mut cpu(), 0, 0..3).unwrap();
    assert_eq!(values[..2], [1.0, 1.0]);
    assert_eq!((cache.low_rank_rows(), cache.layout().full_rows(0)), (0, 3));
}

#[test]
fn unused_memory_is_freed() {
    let shape = KvShape {
        layers: 1,
        kv_heads: 1,
        head_size: 8,
    };
    let bases = random_bases(&mut Random(21), shape);
    let options = KvOptions::new("static-hybrid:0.5".parse::<KvKind>().unwrap());
    let plan = KvPlan::new(shape, &options, Some(&bases)).unwrap();
    let mut cache = KvCache::new(&plan);
    let layer = Arc::new(bases.layer(0, [4, 4]));
    cache.set_bases(&mut cpu(), 0, &layer, None).unwrap();
    cache.reserve(&mut cpu(), 500).unwrap();
    let rows = Random(22).numbers(500 * 8);
    cache.append(&mut cpu(), 0, 0..500, &rows, &rows).unwrap();
    cache.advance(500);
    assert_eq!(cache.bytes(), 2 * 512 * 8 * 2);
    cache.compress(&mut cpu(), 0, 32, 436).unwrap();
    cache.layout_mut().compress(0, 32, 436);
    cache.reserve(&mut cpu(), 1).unwrap();
    assert_eq!(cache.bytes(), 2 * (128 * 8 + 436 * 4) * 2);
    let [keys, _] = cache.full_rows(&mut cpu(), 0, 0..64).unwrap();
    for (row, key) in keys.chunks_exact(8).enumerate() {
        let position = if row < 32 { row } else { row + 436 };
        let found = key.iter().zip(&rows[position * 8..]);
        assert!(
            found
                .clone()
                .all(|(a, b)| (a - b).abs() <= b.abs() / 2048.0 + 1e-7)
        );
    }
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Read(usize),
    Compress(usize),
    Keep(usize),
    Cut(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => (1..70_usize).prop_map(Move::Read),
        2 => (0..60_usize).prop_map(Move::Compress),
        1 => (1..4_usize).prop_map(Move::Keep),
        1 => (0..30_usize).prop_map(Move::Cut),
    ];
    prop::collection::vec(one, 1..14)
}

struct Runner<B: Backend> {
    backend: B,
    kv: B::Kv,
}

impl<B: Backend> Runner<B> {
    fn new(mut backend: B, plan: &KvPlan, bases: Option<&KvBases>) -> Self {
        let mut kv = backend.kv(plan).unwrap();
        if let (Some(bases), Some(ranks)) = (bases, plan.ranks(0)) {
            let layer = Arc::new(bases.layer(0, ranks));
            kv.set_bases(&mut backend, 0, &layer, None).unwrap();
        }
        Runner { backend, kv }
    }

    fn buffer(&mut self, numbers: &[f32]) -> B::Buffer {
        let mut buffer = B::Buffer::default();
        self.backend.resize(&mut buffer, numbers.len()).unwrap();
        self.backend.upload(numbers, &mut buffer).unwrap();
        buffer
    }

    fn read(&mut self, n: usize, [q, keys, values]: [&[f32]; 3], shape: HeadShape) -> Vec<f32> {
        let [q, keys, values] = [q, keys, values].map(|x| self.buffer(x));
        let mut out = self.buffer(&vec![0.0; n * shape.heads * shape.size]);
        let (backend, kv) = (&mut self.backend, &mut self.kv);
        kv.reserve(backend, n).unwrap();
        kv.append(backend, 0, 0..n, &keys, &values).unwrap();
        let attention = Attention {
            scale: 1.0 / (shape.size as f32).sqrt(),
            softcap: None,
            window: None,
        };
        let own = || SequenceRows {
            rows: 0..n,
            kv: &*kv,
        };
        backend
            .attention(shape, &q, &[own()], 0, &attention, &mut out)
            .unwrap();
        let mut found = backend
            .importance(shape, &q, own(), 0, &attention, n.min(3))
            .unwrap();
        kv.advance(n);
        let mut scratch = vec![];
        let count = n * shape.heads * shape.size;
        found.extend_from_slice(self.backend.read(&out, count, &mut scratch).unwrap());
        found
    }

    fn make(&mut self, step: Move) {
        let layout = self.kv.layout();
        let (full, compressed) = (layout.full_rows(0), layout.low_rank_rows(0));
        match step {
            Move::Read(_) => {}
            Move::Compress(most) => {
                let front = if compressed > 0 {
                    layout.front_rows(0)
                } else {
                    full.min(5)
                };
                let count = most.min(full - front);
                if layout.plan().kind().rank().is_some() && count > 0 {
                    self.kv
                        .compress(&mut self.backend, 0, front, count)
                        .unwrap();
                    self.kv.layout_mut().compress(0, front, count);
                }
            }
            Move::Keep(of) => {
                let low_rank = compressed > 0;
                let rows = if low_rank { compressed } else { full };
                let of_head = |head: usize| {
                    let group = (0..rows / of).map(|i| i * of + head % of);
                    group.collect::<Vec<_>>()
                };
                let heads = layout.plan().shape().kv_heads;
                let kept = KeptRows {
                    low_rank,
                    rows: (0..heads).map(of_head).collect(),
                };
                self.kv.keep(&mut self.backend, 0, &kept).unwrap();
                let dropped = rows - rows / of;
                self.kv.layout_mut().evict(0, low_rank, dropped);
            }
            Move::Cut(n) => {
                // Only positions since the last eviction, as sessions ensure.
                let tail = full - layout.front_rows(0);
                let length = self.kv.len() - n.min(tail.saturating_sub(1));
                self.kv.truncate(length);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cache_agrees_with_the_reference_after_any_moves(
        moves in moves(),
        kv_heads in 1..4_usize,
        group in 1..4_usize,
        kind in 0..6_usize,
        size in prop::sample::select(vec![32, 64]),
        seed in any::<u64>(),
    ) {
        let kind = ["f16", "f32", "q8_0", "q4_0", "oja:0.4", "static:0.9"][kind];
        let size = if kind.contains(':') { size - 11 } else { size };
        let shape = KvShape { layers: 1, kv_heads, head_size: size };
        let mut random = Random(seed);
        let options = KvOptions::new(kind.parse::<KvKind>().unwrap());
        let bases = options.kind.rank().map(|_| random_bases(&mut random, shape));
        let plan = KvPlan::new(shape, &options, bases.as_ref()).unwrap();
        let mut first = Runner::new(Cpu::with_threads(2).unwrap(), &plan, bases.as_ref());
        let mut second = Runner::new(Reference, &plan, bases.as_ref());
        for step in moves.into_iter().chain([Move::Read(1), Move::Read(5)]) {
            if let Move::Read(n) = step {
                let row = kv_heads * size;
                let q = random.numbers(n * row * group);
                let [keys, values] = [0, 1].map(|_| random.numbers(n * row));
                let heads = HeadShape { rows: n, heads: kv_heads * group, size };
                let found = first.read(n, [&q, &keys, &values], heads);
                let expected = second.read(n, [&q, &keys, &values], heads);
                for (a, b) in found.iter().zip(&expected) {
                    // Coordinates may be rounded to either neighbour.
                    prop_assert!((a - b).abs() < 2e-3, "{a} for {b}");
                }
                prop_assert_eq!(found.len(), expected.len());
            }
            first.make(step);
            second.make(step);
            prop_assert_eq!(first.kv.layout(), second.kv.layout());
        }
    }
}

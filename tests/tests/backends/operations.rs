//! Single operations.

use htc_formats::DType;
use htc_formats::model::{Activation, RopePairs};
use htc_loader::backend::{Attention, HeadShape, Reference, SequenceRows};
use htc_loader::kv::{Kv, KvPlan, KvShape, KvType};
use htc_loader::tensor::Tensor;
use htc_loader::{Backend, ExecError};
use htc_tests::model::Random;

use super::Named;

pub trait Operation {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32>;

    fn bounds(&self, expected: &[f32]) -> Vec<f64>;

    fn name(&self) -> String;
}

/// Relative error of one rounding to f32.
pub const HALF_ULP: f64 = 6e-8;

pub fn assert_agrees<B: Backend>(backends: &mut [Named<B>], operation: &impl Operation) {
    let expected = operation.run(&mut Reference);
    let bounds = operation.bounds(&expected);
    assert_eq!(bounds.len(), expected.len());
    for (name, backend) in backends {
        let found = operation.run(backend);
        assert_eq!(found.len(), expected.len());
        for (i, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
            let error = (f64::from(found) - f64::from(expected)).abs();
            let allowed = bounds[i] + HALF_ULP * f64::from(expected.abs());
            let label = operation.name();
            assert!(
                error <= allowed,
                "{name}, {label} [{i}]: {found} for {expected}, {error:.2e} above {allowed:.2e}"
            );
        }
    }
}

pub fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.normal()).collect()
}

pub fn allocate<B: Backend>(backend: &mut B, numbers: usize) -> B::Buffer {
    let mut buffer = B::Buffer::default();
    backend.resize(&mut buffer, numbers).unwrap();
    buffer
}

pub fn put<B: Backend>(backend: &mut B, x: &[f32]) -> B::Buffer {
    let mut buffer = allocate(backend, x.len());
    backend.upload(x, &mut buffer).unwrap();
    buffer
}

pub fn get<B: Backend>(backend: &mut B, buffer: &B::Buffer, numbers: usize) -> Vec<f32> {
    let mut room = Vec::new();
    backend.read(buffer, numbers, &mut room).unwrap().to_vec()
}

pub fn tensor(random: &mut Random, dtype: DType, shape: [usize; 2]) -> Tensor {
    let values = numbers(random, shape[0] * shape[1]);
    let mut bytes = vec![0; dtype.matrix_bytes(shape[0], shape[1]).unwrap()];
    let block = dtype.row_bytes(shape[1]).unwrap().max(1);
    let rows = bytes.chunks_exact_mut(block);
    for (row, values) in rows.zip(values.chunks_exact(shape[1].max(1))) {
        htc_formats::block::encode(dtype, values, row).unwrap();
    }
    Tensor::computed("test", dtype, shape, bytes).unwrap()
}

fn relative(expected: &[f32], bound: f64) -> Vec<f64> {
    let of = |x: &f32| bound * f64::from(x.abs());
    expected.iter().map(of).collect()
}

pub fn buffers_round_trip<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let x = numbers(&mut Random::new(1), 1000);
    for (name, mut backend) in backends() {
        let mut buffer = put(&mut backend, &x);
        assert_eq!(get(&mut backend, &buffer, 1000), x, "{name}");
        assert_eq!(get(&mut backend, &buffer, 10), x[..10], "{name}");
        for numbers in [5000, 7] {
            backend.resize(&mut buffer, numbers).unwrap();
            backend.upload(&x[3..10], &mut buffer).unwrap();
            assert_eq!(get(&mut backend, &buffer, 7), x[3..10], "{name}");
        }
    }
}

struct Embedding {
    table: Tensor,
    tokens: Vec<u32>,
    scale: Option<f32>,
}

impl Operation for Embedding {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let table = backend.weight(&self.table).unwrap();
        let count = self.tokens.len() * self.table.cols();
        let mut out = allocate(backend, count);
        let scale = self.scale;
        backend
            .embed(&table, &self.tokens, scale, &mut out)
            .unwrap();
        get(backend, &out, count)
    }

    /// Bounds the error by one rounding.
    fn bounds(&self, expected: &[f32]) -> Vec<f64> {
        let exact = if self.scale.is_some() { HALF_ULP } else { 0.0 };
        relative(expected, exact)
    }

    fn name(&self) -> String {
        format!("embedding of {}", self.table.dtype())
    }
}

pub fn embedding<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(2);
    let backends = &mut backends();
    for &dtype in htc_formats::block::writable_types() {
        let table = tensor(&mut random, dtype, [9, 2 * dtype.block_len().max(24)]);
        for scale in [None, Some(45.25)] {
            let (table, tokens) = (table.clone(), vec![8, 0, 3, 3]);
            assert_agrees(
                backends,
                &Embedding {
                    table,
                    tokens,
                    scale,
                },
            );
        }
    }
}

struct Norm {
    x: Vec<f32>,
    weight: Vec<f32>,
    in_place: bool,
}

impl Operation for Norm {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let n = self.x.len() / self.weight.len();
        let weight = backend.vector(self.weight.clone()).unwrap();
        let mut x = put(backend, &self.x);
        if self.in_place {
            backend.rms_norm_in_place(n, &mut x, &weight, 1e-5).unwrap();
            return get(backend, &x, self.x.len());
        }
        let mut out = allocate(backend, self.x.len());
        backend.rms_norm(n, &x, &weight, 1e-5, &mut out).unwrap();
        get(backend, &out, self.x.len())
    }

    /// A few roundings.
    fn bounds(&self, expected: &[f32]) -> Vec<f64> {
        relative(expected, 1e-6)
    }

    fn name(&self) -> String {
        format!("norm of {} in {}", self.weight.len(), self.x.len())
    }
}

pub fn norms<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(3);
    let backends = &mut backends();
    for width in [1, 5, 16, 48, 257, 4096] {
        for n in [1, 3, 70] {
            for in_place in [false, true] {
                let x = numbers(&mut random, n * width);
                let weight = numbers(&mut random, width);
                assert_agrees(
                    backends,
                    &Norm {
                        x,
                        weight,
                        in_place,
                    },
                );
            }
        }
    }
}

struct Sum {
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Operation for Sum {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let mut x = put(backend, &self.x);
        if self.x.len() == self.y.len() {
            let y = put(backend, &self.y);
            backend.add(self.x.len(), &mut x, &y).unwrap();
        } else {
            let bias = backend.vector(self.y.clone()).unwrap();
            let n = self.x.len() / self.y.len();
            backend.add_bias(n, &mut x, &bias).unwrap();
        }
        get(backend, &x, self.x.len())
    }

    fn bounds(&self, expected: &[f32]) -> Vec<f64> {
        relative(expected, HALF_ULP)
    }

    fn name(&self) -> String {
        format!("sum of {} and {}", self.x.len(), self.y.len())
    }
}

pub fn biases_and_sums<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(4);
    let backends = &mut backends();
    for width in [1, 17, 1000] {
        for n in [1, 2, 40] {
            let x = numbers(&mut random, n * width);
            for count in [width, n * width] {
                let (x, y) = (x.clone(), numbers(&mut random, count));
                assert_agrees(backends, &Sum { x, y });
            }
        }
    }
}

struct Gate {
    activation: Activation,
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Operation for Gate {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let mut gate = put(backend, &self.gate);
        let up = put(backend, &self.up);
        let count = self.gate.len();
        backend
            .activate(self.activation, count, &mut gate, &up)
            .unwrap();
        get(backend, &gate, count)
    }

    /// An exponential with a relative error of 3e-7.
    fn bounds(&self, expected: &[f32]) -> Vec<f64> {
        let of = |(expected, up): (&f32, &f32)| {
            2e-6 * f64::from(expected.abs()) + 2e-7 * f64::from(up.abs())
        };
        expected.iter().zip(&self.up).map(of).collect()
    }

    fn name(&self) -> String {
        format!("{:?} of {}", self.activation, self.gate.len())
    }
}

pub fn activations<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(5);
    let backends = &mut backends();
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for count in [1, 15, 33, 40_000] {
            let gate = numbers(&mut random, count);
            let gate = gate.iter().map(|x| 6.0 * x).collect();
            let up = numbers(&mut random, count);
            assert_agrees(
                backends,
                &Gate {
                    activation,
                    gate,
                    up,
                },
            );
        }
    }
}

struct Rotate {
    pairs: RopePairs,
    shape: HeadShape,
    start: usize,
    frequencies: Vec<f64>,
    factor: f32,
    x: Vec<f32>,
}

impl Operation for Rotate {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let mut rotation = B::Rotation::default();
        let (n, frequencies) = (self.shape.rows, &self.frequencies);
        // Other positions first, as rotations are reused.
        let own = self.start..self.start + n;
        for positions in [0..n + 1, own.clone(), own] {
            let positions = std::slice::from_ref(&positions);
            let filled = backend.rotate_to(&mut rotation, positions, frequencies, self.factor);
            filled.unwrap();
        }
        let mut x = put(backend, &self.x);
        let turned = backend.rope(self.pairs, &rotation, self.shape, &mut x);
        turned.unwrap();
        get(backend, &x, self.x.len())
    }

    /// Roundings of cosine, sine and their products with the factor, then of two products and their
    /// sum, each relative to the pair's length.
    fn bounds(&self, _: &[f32]) -> Vec<f64> {
        let heads = self.x.chunks_exact(self.shape.size);
        let length = |head: &[f32]| {
            let square = |x: &f32| f64::from(*x) * f64::from(*x);
            head.iter().map(square).sum::<f64>().sqrt()
        };
        let bound = |head: &[f32]| 4e-7 * f64::from(self.factor) * length(head);
        heads
            .flat_map(|head| vec![bound(head); self.shape.size])
            .collect()
    }

    fn name(&self) -> String {
        format!("{:?} rotation from {}", self.pairs, self.start)
    }
}

pub fn rotations<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(6);
    let backends = &mut backends();
    for pairs in [RopePairs::Adjacent, RopePairs::Halves] {
        for (rows, heads, size, rotated) in
            [(1, 1, 2, 1), (5, 3, 8, 4), (3, 4, 80, 16), (2, 2, 5, 2)]
        {
            for (start, factor) in [(0, 1.0), (100_000, 1.19)] {
                let theta = |i: usize| 10_000f64.powf(-(i as f64) / rotated as f64);
                assert_agrees(
                    backends,
                    &Rotate {
                        pairs,
                        shape: HeadShape { rows, heads, size },
                        start,
                        frequencies: (0..rotated).map(theta).collect(),
                        factor,
                        x: numbers(&mut random, rows * heads * size),
                    },
                );
            }
        }
    }
}

struct Attend {
    shape: KvShape,
    group: usize,
    kv_type: KvType,
    attention: Attention,
    batches: Vec<usize>,
    kept: usize,
    q: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Operation for Attend {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let row = self.shape.kv_heads * self.shape.head_size;
        let plan = KvPlan::uncompressed(self.shape, self.kv_type).unwrap();
        let mut kv = backend.kv(&plan).unwrap();
        let mut found = Vec::new();
        let mut at = 0;
        for (index, &n) in self.batches.iter().enumerate() {
            let shape = HeadShape {
                rows: n,
                heads: self.shape.kv_heads * self.group,
                size: self.shape.head_size,
            };
            let part = |x: &[f32], row: usize| x[at * row..(at + n) * row].to_vec();
            let q = put(backend, &part(&self.q, row * self.group));
            let keys = put(backend, &part(&self.keys, row));
            let values = put(backend, &part(&self.values, row));
            let count = n * row * self.group;
            let mut out = allocate(backend, count);
            kv.reserve(backend, n).unwrap();
            // The other layer has keys and values swapped.
            kv.append(backend, 0, 0..n, &values, &keys).unwrap();
            kv.append(backend, 1, 0..n, &keys, &values).unwrap();
            let own = SequenceRows {
                rows: 0..n,
                kv: &kv,
            };
            let attended = backend.attention(shape, &q, &[own], 1, &self.attention, &mut out);
            attended.unwrap();
            found.extend(get(backend, &out, count));
            kv.advance(n);
            at += n;
            if index == 0 {
                kv.truncate(self.kept);
            }
            assert!(kv.bytes() > 0);
        }
        found
    }

    /// Relative to the largest value, which bounds a mean of values.
    fn bounds(&self, expected: &[f32]) -> Vec<f64> {
        let largest = self.values.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        vec![2e-6 * f64::from(largest); expected.len()]
    }

    fn name(&self) -> String {
        format!(
            "{:?} attention of {:?} in {:?}, {:?}",
            self.kv_type, self.batches, self.shape, self.attention
        )
    }
}

pub fn attention<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(7);
    let backends = &mut backends();
    let batches: [&[usize]; 4] = [&[1, 1, 1], &[7, 1, 70], &[300, 1, 1], &[65, 3, 1]];
    for (case, batches) in batches.into_iter().enumerate() {
        for (kv_heads, group, head_size) in [(1, 1, 8), (2, 3, 20), (1, 4, 64)] {
            for kv_type in [KvType::F16, KvType::F32] {
                for (softcap, window) in [(None, None), (Some(1.5), Some(7)), (None, Some(64))] {
                    let shape = KvShape {
                        layers: 2,
                        kv_heads,
                        head_size,
                    };
                    let positions: usize = batches.iter().sum();
                    let row = kv_heads * head_size;
                    assert_agrees(
                        backends,
                        &Attend {
                            shape,
                            group,
                            kv_type,
                            attention: Attention {
                                scale: 1.0 / (head_size as f32).sqrt(),
                                softcap,
                                window,
                            },
                            batches: batches.to_vec(),
                            kept: batches[0] - case.min(1),
                            q: numbers(&mut random, positions * row * group),
                            keys: numbers(&mut random, positions * row),
                            values: numbers(&mut random, positions * row),
                        },
                    );
                }
            }
        }
    }
}

pub fn keys_out_of_range_are_refused_with_their_layer<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let shape = KvShape {
        layers: 3,
        kv_heads: 2,
        head_size: 4,
    };
    for (name, mut backend) in backends() {
        for (kv_type, bad) in [
            (KvType::F16, 65_520.0),
            (KvType::F16, f32::NAN),
            (KvType::F32, f32::INFINITY),
        ] {
            for bad_side in ["key", "value"] {
                let good = put(&mut backend, &[0.5; 24]);
                let mut x = [65_504.0; 24];
                x[2 * 8 + 5] = bad;
                let wrong = put(&mut backend, &x);
                let plan = KvPlan::uncompressed(shape, kv_type).unwrap();
                let mut kv = backend.kv(&plan).unwrap();
                kv.reserve(&mut backend, 3).unwrap();
                kv.append(&mut backend, 2, 0..3, &good, &good).unwrap();
                kv.advance(3);
                kv.reserve(&mut backend, 3).unwrap();
                let appended = match bad_side {
                    "key" => kv.append(&mut backend, 2, 0..3, &wrong, &good),
                    _ => kv.append(&mut backend, 2, 0..3, &good, &wrong),
                };
                let mut room = Vec::new();
                let error = appended
                    .and_then(|()| backend.read(&good, 1, &mut room).map(|_| ()))
                    .unwrap_err();
                let ExecError::KvRange {
                    layer,
                    side,
                    position,
                    value,
                } = error
                else {
                    panic!("{name}: {error}");
                };
                assert_eq!((layer, side, position), (2, bad_side, 5), "{name}");
                assert_eq!(value.is_nan(), bad.is_nan());
                assert_eq!(kv.len(), 3, "{name}");
            }
        }
    }
}

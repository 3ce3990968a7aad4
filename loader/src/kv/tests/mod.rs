//! Kinds of KV cache compared with closed forms and float64.

mod features;
mod foreseen;
#[cfg(any(feature = "cuda", feature = "emulated"))]
mod gpu;
mod kinds;
mod sessions;
mod store;
mod updates;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::source::ModelFile;

use super::*;
use crate::backend::Backend;
use crate::exec::{Point, Tap};
use crate::model::Model;
use crate::tokenizer::AddSpecialTokens;
use crate::{Cpu, Session};

/// Numbers between -1 and 1 (SplitMix64).
pub(super) struct Random(pub u64);

impl Random {
    pub fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// Eigenvectors as rows and eigenvalues, the largest first, by cyclic Jacobi rotations.
pub(super) fn eigen(matrix: &[f64], size: usize) -> (Vec<f32>, Vec<f32>) {
    let mut a = matrix.to_vec();
    let mut rows: Vec<f64> = (0..size * size)
        .map(|i| f64::from(u8::from(i % (size + 1) == 0)))
        .collect();
    for _ in 0..12 {
        for p in 0..size {
            for q in p + 1..size {
                let off = a[p * size + q];
                if off == 0.0 {
                    continue;
                }
                let theta = (a[q * size + q] - a[p * size + p]) / (2.0 * off);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for k in 0..size {
                    let (x, y) = (a[k * size + p], a[k * size + q]);
                    (a[k * size + p], a[k * size + q]) = (c * x - s * y, s * x + c * y);
                }
                for k in 0..size {
                    let (x, y) = (a[p * size + k], a[q * size + k]);
                    (a[p * size + k], a[q * size + k]) = (c * x - s * y, s * x + c * y);
                    let (x, y) = (rows[p * size + k], rows[q * size + k]);
                    (rows[p * size + k], rows[q * size + k]) = (c * x - s * y, s * x + c * y);
                }
            }
        }
    }
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|&i, &j| a[j * (size + 1)].total_cmp(&a[i * (size + 1)]));
    let of_row = |i: &usize| rows[i * size..(i + 1) * size].iter().map(|&x| x as f32);
    let energies = order.iter().map(|i| a[i * (size + 1)].max(0.0) as f32);
    (order.iter().flat_map(of_row).collect(), energies.collect())
}

pub(super) fn random_bases(random: &mut Random, shape: KvShape) -> KvBases {
    let size = shape.head_size;
    let sides = [0, 1].map(|_| {
        let (mut components, mut energies) = (vec![], vec![]);
        for _ in 0..shape.layers * shape.kv_heads {
            let numbers = random.numbers(size * size);
            let gram: Vec<f64> = (0..size * size)
                .map(|i| {
                    let row = |r: usize| numbers[r * size..(r + 1) * size].iter();
                    let products = row(i / size).zip(row(i % size));
                    products.map(|(a, b)| f64::from(a * b)).sum()
                })
                .collect();
            let (rows, values) = eigen(&gram, size);
            components.extend(rows);
            energies.extend(values);
        }
        BasisSide {
            components,
            energies,
        }
    });
    KvBases::new(shape, sides).unwrap()
}

pub(super) fn demo() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../assets/demo/reference-7m-f16.gguf")
}

pub(super) fn load<B: Backend>(backend: &mut B) -> Arc<Model<B>> {
    let file = ModelFile::open(demo()).unwrap();
    Arc::new(Model::load(file, backend).unwrap())
}

pub(super) fn tokens(count: usize) -> Vec<u32> {
    let folder = demo();
    let folder = folder.parent().unwrap();
    let text = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .min()
        .unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    let text: String = text.chars().take(20 * count).collect();
    let tokenizer = Model::open(demo()).unwrap().tokenizer().unwrap();
    let mut tokens = tokenizer.encode(&text, AddSpecialTokens::Prompt);
    assert!(tokens.len() >= count);
    tokens.truncate(count);
    tokens
}

/// Second moments of queries and keys together, and of values, of every kv head.
struct Moments {
    shape: KvShape,
    group: usize,
    sums: [Vec<f64>; 2],
}

impl Tap for Moments {
    fn see(&mut self, layer: usize, point: Point, x: &[f32]) {
        let (side, group) = match point {
            Point::Queries => (0, self.group),
            Point::Keys => (0, 1),
            Point::Values => (1, 1),
            _ => return,
        };
        let (heads, size) = (self.shape.kv_heads, self.shape.head_size);
        for (index, vector) in x.chunks_exact(size).enumerate() {
            let head = layer * heads + index % (heads * group) / group;
            let sums = &mut self.sums[side][head * size * size..][..size * size];
            for (row, &x) in sums.chunks_exact_mut(size).zip(vector) {
                for (sum, &y) in row.iter_mut().zip(vector) {
                    *sum += f64::from(x) * f64::from(y);
                }
            }
        }
    }
}

pub(super) fn calibrated(model: &Arc<Model>, tokens: &[u32]) -> Arc<KvBases> {
    let (hyper, shape) = (model.hyper(), KvShape::from(model.hyper()));
    let count = shape.layers * shape.kv_heads * shape.head_size * shape.head_size;
    let mut moments = Moments {
        shape,
        group: hyper.heads / hyper.kv_heads,
        sums: [vec![0.0; count], vec![0.0; count]],
    };
    let cpu = Cpu::with_threads(1).unwrap();
    let mut session = Session::new(Arc::clone(model), cpu, tokens.len()).unwrap();
    let mut x = vec![0.0; tokens.len() * hyper.width];
    session.embed(tokens, &mut x).unwrap();
    for layer in 0..hyper.layers {
        session.reset();
        session.block(layer, &mut x, &mut moments).unwrap();
    }
    let square = shape.head_size * shape.head_size;
    let sides = moments.sums.each_ref().map(|sums| {
        let heads = sums.chunks_exact(square);
        let (components, energies): (Vec<_>, Vec<_>) =
            heads.map(|head| eigen(head, shape.head_size)).unzip();
        BasisSide {
            components: components.concat(),
            energies: energies.concat(),
        }
    });
    Arc::new(KvBases::new(shape, sides).unwrap())
}

/// Largest difference, in standard deviations of the expected numbers.
pub(super) fn difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let n = expected.len() as f64;
    let mean = expected.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = expected.iter().map(|&x| (f64::from(x) - mean).powi(2));
    let deviation = (variance.sum::<f64>() / n).sqrt();
    let differences = found.iter().zip(expected);
    differences
        .map(|(a, b)| f64::from((a - b).abs()))
        .fold(0.0, f64::max)
        / deviation
}

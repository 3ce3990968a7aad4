//! Projections through every stored form, and logits.

use htc_formats::DType;
use htc_formats::block;
use htc_loader::Backend;
use htc_loader::backend::{Factor, Input, Product};
use htc_loader::tensor::Tensor;
use htc_tests::model::Random;

use super::Named;
use super::operations::{Operation, allocate, assert_agrees, get, numbers, put, tensor};

/// Tolerance of a product, relative to `Σ |w x|`.
const PRODUCT: f64 = 2e-6;

#[derive(Clone)]
struct Uncertain {
    x: Vec<f64>,
    error: Vec<f64>,
}

impl Uncertain {
    fn exact(x: &[f32]) -> Self {
        Uncertain {
            x: x.iter().map(|&x| f64::from(x)).collect(),
            error: vec![0.0; x.len()],
        }
    }

    /// A backend may round inputs in blocks, to a 127th of the largest of 32.
    fn rounded_for(&self, dtype: DType) -> Self {
        let mut seen = self.clone();
        if dtype.block_len() == 1 {
            return seen;
        }
        let blocks = self.x.chunks(32).zip(self.error.chunks(32));
        for ((x, error), out) in blocks.zip(seen.error.chunks_mut(32)) {
            let reach = |(x, e): (&f64, &f64)| x.abs() + e;
            let largest = x.iter().zip(error).map(reach).fold(0.0, f64::max);
            out.iter_mut()
                .for_each(|out| *out += largest / 254.0 * 1.000_01);
        }
        seen
    }

    fn times(&self, w: &Tensor, rows: usize) -> Self {
        let seen = self.rounded_for(w.dtype());
        let values = w.to_f32().unwrap();
        let mut y = Uncertain {
            x: Vec::new(),
            error: Vec::new(),
        };
        for row in values.chunks_exact(w.cols()).take(rows) {
            let (mut sum, mut error) = (0.0, 0.0);
            for ((&w, x), e) in row.iter().zip(&seen.x).zip(&seen.error) {
                let w = f64::from(w);
                sum += w * x;
                error += w.abs() * (e + PRODUCT * (x.abs() + e));
            }
            y.x.push(sum);
            y.error.push(error);
        }
        y
    }
}

enum Form {
    Dense(Tensor),
    /// Index of the first factor.
    Factored(usize, Tensor),
}

struct Projection {
    n: usize,
    width: usize,
    x: Vec<f32>,
    /// Matrix, computed rows, used rank.
    factors: Vec<(Tensor, usize, usize)>,
    projections: Vec<Form>,
}

impl Operation for Projection {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let x = put(backend, &self.x);
        let weights: Vec<_> = self
            .factors
            .iter()
            .map(|(w, _, _)| backend.weight(w).unwrap())
            .collect();
        let factors: Vec<_> = weights
            .iter()
            .zip(&self.factors)
            .map(|(weight, &(_, rows, rank))| Factor { weight, rows, rank })
            .collect();
        let mut seconds = Vec::new();
        for projection in &self.projections {
            let (w, input, cols) = match projection {
                Form::Dense(w) => (w, Input::Vector, self.width),
                Form::Factored(index, w) => (w, Input::Inner(*index), self.factors[*index].1),
            };
            let y = allocate(backend, self.n * w.rows());
            seconds.push((backend.weight(w).unwrap(), w.rows(), cols, input, y));
        }
        let mut projections: Vec<_> = seconds
            .iter_mut()
            .map(|(weight, rows, cols, input, y)| Product::<B> {
                weight,
                rows: *rows,
                cols: *cols,
                input: *input,
                y,
            })
            .collect();
        backend
            .project(self.n, &x, &factors, &mut projections)
            .unwrap();
        let results = seconds.iter();
        let mut found = Vec::new();
        for (_, rows, _, _, y) in results {
            found.extend(get(backend, y, self.n * rows));
        }
        found
    }

    fn bounds(&self, _: &[f32]) -> Vec<f64> {
        let rows: Vec<_> = self.x.chunks_exact(self.width).collect();
        let of_projection = |projection: &Form| {
            let bounds = rows.iter().map(|x| {
                let x = Uncertain::exact(x);
                match projection {
                    Form::Dense(w) => x.times(w, w.rows()),
                    Form::Factored(index, w) => {
                        let (a, rows, rank) = &self.factors[*index];
                        let mut inner = x.times(a, *rank);
                        inner.x.resize(*rows, 0.0);
                        inner.error.resize(*rows, 0.0);
                        inner.times(w, w.rows())
                    }
                }
            });
            bounds.flat_map(|y| y.error).collect::<Vec<_>>()
        };
        self.projections.iter().flat_map(of_projection).collect()
    }

    fn name(&self) -> String {
        let projections = self.projections.iter().map(|projection| match projection {
            Form::Dense(w) => format!("{}", w.dtype()),
            Form::Factored(index, w) => {
                let (a, rows, rank) = &self.factors[*index];
                format!("{} of {} at {rank} in {rows}", w.dtype(), a.dtype())
            }
        });
        format!(
            "{} rows through {:?}",
            self.n,
            projections.collect::<Vec<_>>()
        )
    }
}

pub fn projections<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(11);
    let backends = &mut backends();
    let width = 512;
    for &dtype in block::writable_types() {
        let block = dtype.block_len();
        let full = 96_usize.next_multiple_of(block);
        let mut made = |shape| tensor(&mut random, dtype, shape);
        let first = [full, width];
        let (a, basis) = (made(first), made(first));
        let dense = made([70, width]);
        let behind = [41, 5, 33].map(|rows| made([rows, full]));
        let [b, k, v] = behind;
        for rank in [full, full / 2 + 1, 1] {
            let rows = rank.next_multiple_of(block).min(full);
            for n in [1, 2, 100] {
                assert_agrees(
                    backends,
                    &Projection {
                        n,
                        width,
                        x: numbers(&mut random, n * width),
                        factors: vec![(a.clone(), rows, rank), (basis.clone(), rows, rank)],
                        projections: vec![
                            Form::Dense(dense.clone()),
                            Form::Factored(0, b.clone()),
                            Form::Factored(1, k.clone()),
                            Form::Factored(1, v.clone()),
                        ],
                    },
                );
            }
        }
        for projections in [vec![Form::Dense(dense.clone())], vec![Form::Factored(0, b)]] {
            let factors = match projections[0] {
                Form::Dense(_) => Vec::new(),
                Form::Factored(..) => vec![(a.clone(), full, full)],
            };
            let x = numbers(&mut random, 3 * width);
            assert_agrees(
                backends,
                &Projection {
                    n: 3,
                    width,
                    x,
                    factors,
                    projections,
                },
            );
        }
    }
}

struct Logits {
    output: Tensor,
    rows: std::ops::Range<usize>,
    cap: Option<f32>,
    x: Vec<f32>,
}

impl Operation for Logits {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let output = backend.weight(&self.output).unwrap();
        let x = put(backend, &self.x);
        let count = self.rows.len() * self.output.rows();
        let mut out = allocate(backend, count);
        let rows = self.rows.clone();
        let done = backend.logits(&output, rows, &x, self.cap, &mut out);
        done.unwrap();
        get(backend, &out, count)
    }

    /// The slope of tanh is at most 1.
    fn bounds(&self, _: &[f32]) -> Vec<f64> {
        let width = self.output.cols();
        let of_row = |t: usize| {
            let x = Uncertain::exact(&self.x[t * width..][..width]);
            x.times(&self.output, self.output.rows()).error
        };
        let tangent = 3e-7 * f64::from(self.cap.unwrap_or(0.0));
        let errors = self.rows.clone().flat_map(of_row);
        errors.map(|error| error + tangent).collect()
    }

    fn name(&self) -> String {
        let (dtype, rows, cap) = (self.output.dtype(), &self.rows, self.cap);
        format!("logits of {rows:?} by {dtype}, cap {cap:?}")
    }
}

pub fn logits<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(12);
    let backends = &mut backends();
    for &dtype in block::writable_types() {
        let width = 2 * dtype.block_len().max(20);
        let output = tensor(&mut random, dtype, [150, width]);
        for (rows, cap) in [
            (0..1, None),
            (2..3, Some(5.0)),
            (1..4, Some(30.0)),
            (2..2, None),
        ] {
            let (output, x) = (output.clone(), numbers(&mut random, 4 * width));
            assert_agrees(
                backends,
                &Logits {
                    output,
                    rows,
                    cap,
                    x,
                },
            );
        }
    }
}

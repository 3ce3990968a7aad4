//! Estimates of compilation time: operation counts divided by the speed of a short benchmark on
//! this machine.

use std::time::Instant;

use htc_formats::model::{Part, Role};
use htc_formats::source::{ModelFile, ModelTensor};
use htc_kernels::Matrix;
use htc_kernels::cpu::{Cpu, Scratch};
use htc_loader::exec::BATCH;

use super::stages;
use crate::math::{SvdMethod, Weight, low_rank, low_rank_error};
use crate::plan::{MatrixForm, UnitPlan};

/// Full speed, in a fraction of a second.
const ORDER: usize = 384;

/// Multiply-adds equivalent to encoding one element without feedback in types with a scale search,
/// with error measurement.
const PRODUCTS_PER_ENCODED_ELEMENT: f64 = 2000.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct OperationCount {
    products: f64,
    /// Sum of the cubed orders of decomposed matrices.
    cubes: f64,
}

/// Operations per second of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Speed(OperationCount);

impl Speed {
    /// Benchmarks the calling thread on a small matrix.
    pub fn measure() -> Speed {
        let values: Vec<f32> = (0..ORDER * ORDER)
            .map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5)
            .collect();
        let weight = Weight {
            rows: ORDER,
            cols: ORDER,
            values: &values,
        };
        let cube = (ORDER as f64).powi(3);
        let product = best_of_three(|| {
            std::hint::black_box(low_rank_error(weight, &values, &values, ORDER));
        });
        let products = cube / product;
        let whole = best_of_three(|| {
            let found = low_rank(weight, ORDER / 2, SvdMethod::Gram);
            std::hint::black_box(found.is_ok());
        });
        let decomposition = (whole - 1.5 * product).max(0.1 * whole);
        Speed(OperationCount {
            products,
            cubes: cube / decomposition,
        })
    }

    #[cfg(test)]
    pub(super) const fn from_rates(products: f64, cubes: f64) -> Speed {
        Speed(OperationCount { products, cubes })
    }

    /// Returns the seconds of `count` multiply-adds in matrix products on one thread.
    pub fn product_seconds(self, count: f64) -> f64 {
        count / self.0.products
    }

    /// Returns the seconds of decompositions on one thread.
    pub fn decomposition_seconds(self, cubes: f64) -> f64 {
        cubes / self.0.cubes
    }

    /// Returns the seconds for units on several threads, with or without second moments of the
    /// inputs.
    pub fn unit_seconds<'a>(
        self,
        units: impl Iterator<Item = (&'a UnitPlan, bool)>,
        threads: usize,
    ) -> f64 {
        let each = units.map(|(unit, calibrated)| {
            let OperationCount { products, cubes } = count_operations(unit, calibrated);
            products / self.0.products + cubes / self.0.cubes
        });
        let (sum, largest) = each.fold((0.0, 0.0), |(sum, largest): (f64, f64), seconds| {
            (sum + seconds, largest.max(seconds))
        });
        (sum / threads.max(1) as f64).max(largest)
    }
}

fn best_of_three(run: impl Fn()) -> f64 {
    let seconds = (0..3).map(|_| {
        let begun = Instant::now();
        run();
        begun.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min).max(1e-9)
}

/// Gram matrix, decomposition, product with the vectors, and error. With a second moment, the Gram
/// matrix and the output error multiply with it, and its root is decomposed if there are more
/// outputs than inputs.
fn count_operations(unit: &UnitPlan, calibrated: bool) -> OperationCount {
    let rank = unit.rank().unwrap_or(0) as f64;
    let rows: f64 = unit.members.iter().map(|m| m.rows as f64).sum();
    let cols = unit.members.first().map_or(0.0, |m| m.cols as f64);
    let order = match &unit.form {
        MatrixForm::Unchanged => return OperationCount::default(),
        MatrixForm::Dense { .. } | MatrixForm::ColumnGroups { .. } => {
            if let Some(products) = stages::coded_unit_cost(unit).filter(|_| calibrated) {
                return OperationCount {
                    products,
                    cubes: 0.0,
                };
            }
            let moments = if calibrated {
                2.0 * rows * cols * cols
            } else {
                0.0
            };
            return OperationCount {
                products: PRODUCTS_PER_ENCODED_ELEMENT * rows * cols + moments,
                cubes: 0.0,
            };
        }
        MatrixForm::LowRank { .. } | MatrixForm::Residual { .. } => rows.min(cols),
        MatrixForm::SharedBasis { .. } => cols,
    };
    let (moments, root) = if !calibrated {
        (0.0, 0.0)
    } else if order == cols {
        (3.0 * rows * cols * cols, cols.powi(3))
    } else {
        (3.0 * rows * cols * cols, 0.0)
    };
    OperationCount {
        products: rows * cols * order + 2.0 * rows * cols * rank + moments,
        cubes: order.powi(3) + root,
    }
}

/// The rest is attention, norms and output processing.
const PRODUCT_FRACTION: f64 = 0.6;

/// Returns the seconds of a forward pass of `tokens`, optionally with logits: the time of one
/// product with a weight of the model, scaled by size.
pub fn forward_seconds(
    source: &ModelFile,
    tokens: usize,
    threads: usize,
    logits: bool,
) -> Option<f64> {
    const ROWS: usize = BATCH;
    let weights = || {
        source.tensors.iter().filter(|tensor| {
            let part = Part::Weight;
            matches!(tensor.role, Role::Linear { part: own, .. } if own == part)
        })
    };
    let size = |tensor: &ModelTensor| (tensor.rows * tensor.cols) as f64;
    let logits = if logits {
        (source.hyper.vocabulary * source.hyper.width) as f64
    } else {
        0.0
    };
    let all = weights().map(size).sum::<f64>() + logits;
    let largest = weights().max_by(|a, b| size(a).total_cmp(&size(b)))?;
    let w = Matrix::new(
        largest.dtype,
        largest.rows,
        largest.cols,
        source.bytes(largest),
    );
    let w = w.ok()?;
    let cpu = Cpu::with_threads(threads).ok()?;
    let x = vec![0.5; ROWS * largest.cols];
    let mut y = vec![0.0; ROWS * largest.rows];
    let mut scratch = Scratch::new();
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let begun = Instant::now();
        cpu.matmul(w, ROWS, &x, &mut y, &mut scratch).ok()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    let products = best * (tokens as f64 / ROWS as f64) * all / size(largest);
    Some(products / PRODUCT_FRACTION)
}

#[cfg(test)]
mod tests;

//! How long a compilation takes, estimated before its work: operations from the shapes, by the speed
//! that a short trial of the same code has on this machine.

use std::time::Instant;

use htc_formats::model::{Part, Role};
use htc_formats::source::{ModelFile, ModelTensor};
use htc_kernels::cpu::{self, Scratch};
use htc_kernels::{Matrix, Pool};

use crate::factorise::{Path, Weight, low_rank};
use crate::plan::{Form, UnitPlan};

/// Order of the matrix that is decomposed for the speed: large enough for full speed, small enough
/// for a fraction of a second.
const ORDER: usize = 256;

/// Multiplications of an eigendecomposition over the cube of its order, beside the Gram matrix and
/// the products, in units of what a matrix product of that many multiplications takes. Measured:
/// decompositions run at a fraction of the speed of products.
const DECOMPOSITION: f64 = 30.0;

/// Operations per second and thread, in the units of [`operations`].
#[derive(Clone, Copy, Debug)]
pub struct Speed(f64);

impl Speed {
    /// Decomposes a small matrix on the calling thread.
    pub fn measure() -> Speed {
        let values: Vec<f32> = (0..ORDER * ORDER)
            .map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5)
            .collect();
        let weight = Weight {
            rows: ORDER,
            cols: ORDER,
            values: &values,
        };
        let work = low_rank_operations(ORDER as f64, ORDER as f64, ORDER as f64 / 2.0);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let begun = Instant::now();
            let found = low_rank(weight, ORDER / 2, Path::Gram);
            let seconds = begun.elapsed().as_secs_f64();
            if std::hint::black_box(found).is_ok() {
                best = best.min(seconds);
            }
        }
        Speed(work / best.max(1e-9))
    }

    /// Seconds for units on so many threads; with second moments of their inputs, if they are used.
    pub fn seconds<'a>(
        self,
        units: impl Iterator<Item = &'a UnitPlan>,
        threads: usize,
        calibrated: bool,
    ) -> f64 {
        let each: Vec<f64> = units.map(|unit| operations(unit, calibrated)).collect();
        let largest = each.iter().copied().fold(0.0, f64::max);
        let total: f64 = each.iter().sum();
        (total / threads.max(1) as f64).max(largest) / self.0
    }
}

/// Multiplications, decompositions weighted.
fn operations(unit: &UnitPlan, calibrated: bool) -> f64 {
    let rank = unit.rank().unwrap_or(0) as f64;
    let rows: f64 = unit.members.iter().map(|m| m.rows as f64).sum();
    let cols = unit.members.first().map_or(0.0, |m| m.cols as f64);
    // The product with a second moment, once for the gauge and once for the error of the output.
    let moments = if calibrated {
        2.0 * rows * cols * cols
    } else {
        0.0
    };
    moments
        + match unit.form {
            Form::Dense => return 0.0,
            Form::LowRank { .. } => low_rank_operations(rows, cols, rank),
            Form::SharedBasis { .. } => {
                rows * cols * cols + DECOMPOSITION * cols.powi(3) + 2.0 * rows * cols * rank
            }
        }
}

/// Gram matrix, decomposition, the product with the vectors, and measuring the error.
fn low_rank_operations(rows: f64, cols: f64, rank: f64) -> f64 {
    let order = rows.min(cols);
    rows * cols * order + DECOMPOSITION * order.powi(3) + 2.0 * rows * cols * rank
}

/// Seconds for a forward pass of so many tokens through all blocks: the time of one product with a
/// weight of the model, by their sizes. `None` where the model has no such weight.
pub fn forward_seconds(source: &ModelFile, tokens: usize, threads: usize) -> Option<f64> {
    const ROWS: usize = 128;
    let weights = || {
        source.tensors.iter().filter(|tensor| {
            let part = Part::Weight;
            matches!(tensor.role, Role::Linear { part: own, .. } if own == part)
        })
    };
    let size = |tensor: &ModelTensor| (tensor.rows * tensor.cols) as f64;
    let all: f64 = weights().map(size).sum();
    let largest = weights().max_by(|a, b| size(a).total_cmp(&size(b)))?;
    let w = Matrix::new(
        largest.dtype,
        largest.rows,
        largest.cols,
        source.bytes(largest),
    );
    let w = w.ok()?;
    let pool = Pool::new(threads).ok()?;
    let x = vec![0.5; ROWS * largest.cols];
    let mut y = vec![0.0; ROWS * largest.rows];
    let mut scratch = Scratch::new();
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let begun = Instant::now();
        cpu::matmul(&pool, w, ROWS, &x, &mut y, &mut scratch).ok()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Some(best * (tokens as f64 / ROWS as f64) * all / size(largest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Member;
    use htc_formats::DType;
    use htc_formats::model::Slot;

    fn unit(rows: usize, cols: usize, rank: usize) -> UnitPlan {
        UnitPlan {
            layer: 0,
            members: vec![Member {
                slot: Slot::Up,
                rows,
                cols,
                source_type: DType::F32,
            }],
            form: Form::LowRank {
                rank,
                a: DType::F32,
                b: DType::F32,
            },
            notes: Vec::new(),
        }
    }

    #[test]
    fn threads_share_units_but_not_one_unit() {
        let speed = Speed(1e9);
        let units = [unit(512, 512, 64), unit(512, 512, 64)];
        let one = speed.seconds(units.iter(), 1, false);
        assert_eq!(speed.seconds(units.iter(), 2, false), one / 2.0);
        assert_eq!(speed.seconds(units.iter(), 8, false), one / 2.0);
        assert!(speed.seconds(units.iter(), 1, true) > one);
        let mut dense = unit(512, 512, 64);
        dense.form = Form::Dense;
        assert_eq!(speed.seconds([dense].iter(), 1, true), 0.0);
    }

    /// What is forecast for a matrix is what it takes, within a factor that leaves room for a busy
    /// machine.
    #[test]
    fn the_speed_is_that_of_this_machine() {
        let speed = Speed::measure();
        assert!(speed.0.is_finite() && speed.0 > 1e7, "{speed:?}");
    }
}

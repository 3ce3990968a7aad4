//! Comparison of low-rank projections with dense ones of the same size in bytes.

use std::time::Instant;

use htc_formats::DType;
use htc_formats::model::ProjectionKind;
use htc_loader::backend::{Backend, Factor, Input, Product};
use htc_loader::tensor::Tensor;
use serde_json::{Value, json};

use super::figures::Median;
use super::model::MatrixGenerator;
use super::on::{BenchmarkExecutor, Outcome, Task};
use super::shape::Shape;

/// Products of every projection of a shape.
pub struct ProjectionsTask {
    pub shape: Shape,
    pub rank: usize,
    pub dtype: DType,
    /// Total bytes of the matrices used in rotation, enough to evict each from the caches before
    /// its next use.
    pub bytes: usize,
    pub runs: usize,
}

struct MatrixRotation<B: Backend> {
    matrices: Vec<(Option<B::Weight>, B::Weight)>,
    rows: usize,
    cols: usize,
    rank: usize,
    x: B::Buffer,
    y: B::Buffer,
}

/// Returns the rows of a dense matrix with `cols` columns and as many elements as the factors of
/// `[rows, cols]`.
fn equal_size_rows(rank: usize, rows: usize, cols: usize) -> usize {
    (rank * (rows + cols) + cols / 2) / cols
}

impl ProjectionsTask {
    fn turns<B: Backend>(
        &self,
        backend: &mut B,
        maker: &mut MatrixGenerator,
        [rows, cols]: [usize; 2],
        rank: Option<usize>,
    ) -> Outcome<(MatrixRotation<B>, usize)> {
        let dtype = self.dtype;
        let mut matrix = |rows: usize, cols: usize| -> Outcome<Tensor> {
            let bytes = maker.bytes(dtype, None, [rows, cols])?;
            Ok(Tensor::computed("random", dtype, [rows, cols], bytes)?)
        };
        let bytes_of = |rows, cols| dtype.matrix_bytes(rows, cols).unwrap_or(1);
        let bytes = match rank {
            Some(rank) => bytes_of(rank, cols) + bytes_of(rows, rank),
            None => bytes_of(rows, cols),
        };
        let mut matrices = Vec::new();
        for _ in 0..(self.bytes / bytes).max(1) {
            let first = match rank {
                Some(rank) => Some(backend.weight(&matrix(rank, cols)?)?),
                None => None,
            };
            let second = backend.weight(&matrix(rows, rank.unwrap_or(cols))?)?;
            matrices.push((first, second));
        }
        let (mut x, mut y) = (B::Buffer::default(), B::Buffer::default());
        backend.resize(&mut x, cols)?;
        backend.resize(&mut y, rows)?;
        let numbers: Vec<f32> = (0..cols).map(|i| (i as f32 * 0.37).sin()).collect();
        backend.upload(&numbers, &mut x)?;
        let rank = rank.unwrap_or(cols);
        Ok((
            MatrixRotation {
                matrices,
                rows,
                cols,
                rank,
                x,
                y,
            },
            bytes,
        ))
    }
}

impl<B: Backend> MatrixRotation<B> {
    fn once(&mut self, backend: &mut B, on: &impl BenchmarkExecutor) -> Outcome<f64> {
        let mut host_buffer = Vec::new();
        let started = Instant::now();
        on.begin()?;
        for (first, second) in &self.matrices {
            let factor = first.as_ref().map(|weight| Factor {
                weight,
                rows: self.rank,
                rank: self.rank,
            });
            let factors: Vec<_> = factor.into_iter().collect();
            let input = match first {
                Some(_) => Input::Inner(0),
                None => Input::Vector,
            };
            let mut products = [Product {
                weight: second,
                rows: self.rows,
                cols: if first.is_some() {
                    self.rank
                } else {
                    self.cols
                },
                input,
                y: &mut self.y,
            }];
            backend.project(1, &self.x, &factors, &mut products)?;
        }
        on.end()?;
        backend.read(&self.y, 1, &mut host_buffer)?;
        Ok(started.elapsed().as_secs_f64() / self.matrices.len() as f64)
    }
}

impl Task for ProjectionsTask {
    fn run<M: BenchmarkExecutor>(self, on: &M) -> Outcome<Value> {
        let (hyper, mut backend) = (self.shape.hyper(1), on.backend());
        let mut in_one = on.single_launch_backend();
        let mut maker = MatrixGenerator::new(true);
        let mut found = Vec::new();
        for projection in [
            ProjectionKind::Q,
            ProjectionKind::K,
            ProjectionKind::Gate,
            ProjectionKind::Down,
        ] {
            let (rows, cols) = hyper.projection_shape(projection);
            let rank = self.rank.min(rows).min(cols);
            let dense = equal_size_rows(rank, rows, cols);
            let (mut low, low_bytes) =
                self.turns(&mut backend, &mut maker, [rows, cols], Some(rank))?;
            let (mut one, one_bytes) = self.turns(&mut backend, &mut maker, [dense, cols], None)?;
            let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
            let mut of_one_launch = Vec::new();
            for run in 0..=self.runs {
                // Alternating, so that both run at the same clock rates; times are for the same
                // bytes.
                let seconds = low.once(&mut backend, on)?;
                if let Some(in_one) = &mut in_one {
                    let of_one = low.once(in_one, on)?;
                    if run > 0 {
                        of_one_launch.push(of_one / seconds);
                    }
                }
                let low = seconds / low_bytes as f64;
                let one = one.once(&mut backend, on)? / one_bytes as f64;
                if run > 0 {
                    times[0].push(1.0 / low);
                    times[1].push(1.0 / one);
                    ratios.push(low / one);
                }
            }
            let [low, one] = times.map(Median::from_values);
            found.push(json!({
                "projection": projection.name(),
                "rows": rows,
                "cols": cols,
                "rank": rank,
                "dense_rows": dense,
                "bytes": low_bytes,
                "low_rank_bytes_per_second": low,
                "dense_bytes_per_second": one,
                "time_ratio": Median::from_values(ratios),
                "one_launch_time_ratio": Median::from_values(of_one_launch),
            }));
        }
        Ok(json!({ "device": on.device(), "projections": found }))
    }
}

#[cfg(test)]
mod tests;

//! Stored vectors of the residual stream, and their geometry.

use std::ops::Range;

use faer::Mat;

use crate::math::{FactoriseError, Host, symmetric_eigen, symmetric_eigenvalues};
use crate::system::random::Rng;

/// Distinct vectors in the order of the text, relative to their mean.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// `[n, width]`.
    rows: Mat<f64>,
    windows: Vec<usize>,
}

impl Sample {
    /// Takes the distinct rows, since distances of zero would distort the neighbourhoods.
    pub(super) fn new(values: &[f32], width: usize, windows: &[usize]) -> Sample {
        let mut different: Vec<&[f32]> = Vec::new();
        let mut of = Vec::new();
        for (row, &window) in values.chunks_exact(width.max(1)).zip(windows) {
            if !different.contains(&row) {
                different.push(row);
                of.push(window);
            }
        }
        let n = different.len();
        let rows = centred(Mat::from_fn(n, width, |i, j| f64::from(different[i][j])));
        Sample { rows, windows: of }
    }

    pub(super) fn blocks(&self) -> Vec<Range<usize>> {
        let mut begin = 0;
        let of_windows = self.windows.chunk_by(|one, next| one == next);
        let blocks = of_windows.map(|block| {
            begin += block.len();
            begin - block.len()..begin
        });
        blocks.collect()
    }

    pub(super) fn count(&self) -> usize {
        self.rows.nrows()
    }

    pub(super) fn width(&self) -> usize {
        self.rows.ncols()
    }

    pub(super) fn select(&self, places: &[usize]) -> Sample {
        let rows = Mat::from_fn(places.len(), self.width(), |i, j| self.rows[(places[i], j)]);
        let windows = places.iter().map(|&place| self.windows[place]).collect();
        Sample { rows, windows }
    }

    #[cfg(test)]
    pub(super) fn rows_for_tests(&self) -> Mat<f64> {
        self.rows.clone()
    }

    /// Returns `‖x_i − x_j‖² [n, n]`.
    pub(super) fn distances(&self) -> Mat<f64> {
        let transposed = self.rows.transpose().to_owned();
        let n = self.count();
        let mut distances = Mat::zeros(n, n);
        for i in 0..n {
            for j in 0..i {
                let pairs = transposed.col(i).iter().zip(transposed.col(j).iter());
                let squared: f64 = pairs.map(|(x, y)| (x - y) * (x - y)).sum();
                distances[(i, j)] = squared;
                distances[(j, i)] = squared;
            }
        }
        distances
    }

    /// Returns the variances along the principal directions, decreasing, up to a common factor.
    pub(super) fn variances(&self) -> Result<Vec<f64>, FactoriseError> {
        let centred = self.centred();
        if centred.nrows() == 0 || centred.ncols() == 0 {
            return Ok(Vec::new());
        }
        positive_eigenvalues(shorter_gram(&centred))
    }

    /// Returns the leading principal directions `[width, k]`; `count` computes `k` from the
    /// variances.
    pub(super) fn directions(
        &self,
        count: impl FnOnce(&[f64]) -> usize,
    ) -> Result<Mat<f64>, FactoriseError> {
        let centred = self.centred();
        let (n, width) = centred.shape();
        if n == 0 || width == 0 {
            return Ok(Mat::zeros(width, 0));
        }
        let mut found = symmetric_eigen(shorter_gram(&centred), n.min(width), &Host)?;
        found.values.iter_mut().for_each(|v| *v = v.max(0.0));
        let determined = found
            .values
            .partition_point(|v| *v > 1e-12 * found.values[0]);
        let k = count(&found.values).min(determined);
        let vectors = found.vectors.subcols(0, k);
        if width <= n {
            return Ok(vectors.to_owned());
        }
        let mut directions = centred.transpose() * vectors;
        for (direction, value) in directions.col_iter_mut().zip(&found.values) {
            let length = value.sqrt();
            direction.iter_mut().for_each(|x| *x /= length);
        }
        Ok(directions)
    }

    /// A part of a sample has another mean.
    fn centred(&self) -> Mat<f64> {
        centred(self.rows.clone())
    }
}

pub(super) struct WeightedSample<'a> {
    rows: &'a Mat<f64>,
    /// `X Xᵀ`, if that is the smaller product.
    products: Option<Mat<f64>>,
}

impl<'a> WeightedSample<'a> {
    pub(super) fn new(sample: &'a Sample) -> WeightedSample<'a> {
        let (n, width) = sample.rows.shape();
        let products = (n < width).then(|| shorter_gram(&sample.rows));
        WeightedSample {
            rows: &sample.rows,
            products,
        }
    }

    /// Vector `i` occurs `times[i]` times; up to a common factor.
    pub(super) fn variances(&self, times: &[f64]) -> Result<Vec<f64>, FactoriseError> {
        let drawn: Vec<usize> = (0..times.len()).filter(|&i| times[i] > 0.0).collect();
        let all: f64 = times.iter().sum();
        if drawn.is_empty() || self.rows.ncols() == 0 {
            return Ok(Vec::new());
        }
        let gram = match &self.products {
            Some(products) => {
                // ⟨x_i − m, x_j − m⟩ = ⟨x_i, x_j⟩ − ⟨x_i, m⟩ − ⟨x_j, m⟩ + ⟨m, m⟩.
                let with_mean = |i: usize| {
                    let sum: f64 = drawn.iter().map(|&j| times[j] * products[(i, j)]).sum();
                    sum / all
                };
                let along: Vec<f64> = drawn.iter().map(|&i| with_mean(i)).collect();
                let weighted = drawn.iter().zip(&along).map(|(&i, x)| times[i] * x);
                let mean = weighted.sum::<f64>() / all;
                Mat::from_fn(drawn.len(), drawn.len(), |i, j| {
                    let product = products[(drawn[i], drawn[j])] - along[i] - along[j] + mean;
                    (times[drawn[i]] * times[drawn[j]]).sqrt() * product
                })
            }
            None => {
                let mut rows = Mat::zeros(drawn.len(), self.rows.ncols());
                for (to, from) in rows.col_iter_mut().zip(self.rows.col_iter()) {
                    let mean = drawn.iter().map(|&i| times[i] * from[i]).sum::<f64>() / all;
                    for (x, &i) in to.iter_mut().zip(&drawn) {
                        *x = times[i].sqrt() * (from[i] - mean);
                    }
                }
                shorter_gram(&rows)
            }
        };
        positive_eigenvalues(gram)
    }
}

fn positive_eigenvalues(gram: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
    let values = symmetric_eigenvalues(gram, &Host)?;
    Ok(values.into_iter().map(|v| v.max(0.0)).collect())
}

fn centred(mut rows: Mat<f64>) -> Mat<f64> {
    let n = rows.nrows().max(1) as f64;
    for column in rows.col_iter_mut() {
        let mean = column.as_ref().iter().sum::<f64>() / n;
        column.iter_mut().for_each(|x| *x -= mean);
    }
    rows
}

/// The smaller of `X Xᵀ` and `XᵀX`; their nonzero eigenvalues are equal.
fn shorter_gram(x: &Mat<f64>) -> Mat<f64> {
    if x.ncols() <= x.nrows() {
        x.transpose() * x
    } else {
        x * x.transpose()
    }
}

/// Returns the mean and the standard deviation, zero without values.
pub(super) fn mean_and_deviation<I: Iterator<Item = f64>>(values: impl Fn() -> I) -> (f64, f64) {
    let count = values().count().max(1) as f64;
    let mean = values().sum::<f64>() / count;
    let squares: f64 = values().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}

/// Returns a random permutation of `0..count` (Fisher and Yates).
pub(super) fn shuffled(count: usize, random: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, random.below(i + 1));
    }
    order
}

#[cfg(test)]
mod tests;

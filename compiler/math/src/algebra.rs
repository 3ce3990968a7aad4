//! Backends for matrix products and decompositions: the calling thread, or a device supplied by the
//! caller.

use std::fmt;
use std::ops::Range;

use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::{Accum, Mat, MatMut, MatRef, Par};

#[cfg(not(feature = "openblas"))]
use super::decompose as backend;
#[cfg(feature = "openblas")]
use super::openblas as backend;
use super::{BACKEND, FactoriseError};

/// Leading part of a decomposition of order `n`.
#[derive(Clone, Debug)]
pub struct LeadingVectors {
    /// All `n` eigenvalues or singular values, decreasing.
    pub values: Vec<f64>,
    /// `[n, k]`, orthonormal: column `j` belongs to `values[j]`; signs are arbitrary.
    pub vectors: Mat<f64>,
}

impl LeadingVectors {
    /// Converts LAPACK results: eigenvalues in increasing order and vectors, column-major `[n, n]`.
    pub fn from_ascending(values: Vec<f64>, vectors: &[f64], k: usize) -> LeadingVectors {
        let n = values.len();
        let columns = MatRef::from_column_major_slice(vectors, n, n);
        LeadingVectors {
            vectors: Mat::from_fn(n, k, |i, j| columns[(i, n - 1 - j)]),
            values: values.into_iter().rev().collect(),
        }
    }
}

/// Copies a matrix to contiguous column-major storage, as BLAS and LAPACK expect.
pub fn to_column_major(matrix: MatRef<'_, f64>) -> Vec<f64> {
    let (m, n) = matrix.shape();
    let mut out = vec![0.0; m * n];
    MatMut::from_column_major_slice_mut(&mut out, m, n).copy_from(matrix);
    out
}

/// Backend for products and decompositions in float64.
///
/// Results are reproducible to the byte on any number of threads, but differ between
/// implementations in the last bits.
pub trait Algebra: fmt::Debug + Send + Sync {
    /// Returns the library and device, for the provenance of an artifact.
    fn name(&self) -> String;

    /// Returns the number of rows of `width` numbers per product.
    fn panel_rows(&self, width: usize) -> usize {
        let _ = width;
        512
    }

    /// Returns the `k` leading eigenvectors of the symmetric matrix given by its lower triangle.
    fn eigen(&self, matrix: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError>;

    /// Returns all eigenvalues, decreasing, of the symmetric matrix given by its lower triangle;
    /// much cheaper than vectors.
    fn eigenvalues(&self, matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError>;

    /// Returns the `k` leading right singular vectors of `tall [m, n]`, `m ≥ n`.
    fn right_singular_vectors(
        &self,
        tall: Mat<f64>,
        k: usize,
    ) -> Result<LeadingVectors, FactoriseError>;

    /// Computes `out = scale · X Y`, or adds it to `out`.
    fn multiply(
        &self,
        out: MatMut<'_, f64>,
        accumulate: Accum,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
        scale: f64,
    ) -> Result<(), FactoriseError>;

    /// Returns `X Y` in the lower triangle of a square matrix; the rest is unspecified.
    fn multiply_lower(
        &self,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
    ) -> Result<Mat<f64>, FactoriseError>;

    /// Returns a zero Gram matrix of this order.
    fn new_gram(&self, order: usize) -> Result<Box<dyn GramAccumulator>, FactoriseError>;
}

const COLUMNS_PER_FETCH: usize = 256;

/// Accumulator of `Σ xᵀ x` over rows `x`.
pub trait GramAccumulator: fmt::Debug + Send {
    /// Returns the length of a row.
    fn row_len(&self) -> usize;

    /// Adds `scale · XᵀX` of `rows [n, order]`.
    fn add_rows(&mut self, scale: f64, rows: MatRef<'_, f64>) -> Result<(), FactoriseError>;

    /// Multiplies the sums by `factor`.
    fn scale(&mut self, factor: f64) -> Result<(), FactoriseError>;

    /// Returns some columns of the sums, `[order, n]`; entries above the diagonal are unspecified.
    fn columns(&self, which: Range<usize>) -> Result<Mat<f64>, FactoriseError>;

    /// Returns the sums `[order, order]`; only the lower triangle is valid.
    fn finish(self: Box<Self>) -> Result<Mat<f64>, FactoriseError> {
        let order = self.row_len();
        let mut sums = Mat::zeros(order, order);
        for first in (0..order).step_by(COLUMNS_PER_FETCH) {
            let count = COLUMNS_PER_FETCH.min(order - first);
            let columns = self.columns(first..first + count)?;
            sums.as_mut().subcols_mut(first, count).copy_from(&columns);
        }
        Ok(sums)
    }
}

/// Backend on the calling thread, with the library of [`BACKEND`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Default for &dyn Algebra {
    fn default() -> Self {
        &Host
    }
}

impl Algebra for Host {
    fn name(&self) -> String {
        BACKEND.to_owned()
    }

    fn eigen(&self, matrix: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError> {
        backend::eigen(matrix, k)
    }

    fn eigenvalues(&self, matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
        backend::eigenvalues(matrix)
    }

    fn right_singular_vectors(
        &self,
        tall: Mat<f64>,
        k: usize,
    ) -> Result<LeadingVectors, FactoriseError> {
        backend::right_singular(tall, k)
    }

    fn multiply(
        &self,
        out: MatMut<'_, f64>,
        accumulate: Accum,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
        scale: f64,
    ) -> Result<(), FactoriseError> {
        matmul(out, accumulate, x, y, scale, Par::Seq);
        Ok(())
    }

    fn multiply_lower(
        &self,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
    ) -> Result<Mat<f64>, FactoriseError> {
        let mut product = Mat::zeros(x.nrows(), y.ncols());
        add_lower(product.as_mut(), x, y, 1.0);
        Ok(product)
    }

    fn new_gram(&self, order: usize) -> Result<Box<dyn GramAccumulator>, FactoriseError> {
        Ok(Box::new(HostGramAccumulator(Mat::zeros(order, order))))
    }
}

#[derive(Debug)]
struct HostGramAccumulator(Mat<f64>);

impl GramAccumulator for HostGramAccumulator {
    fn row_len(&self) -> usize {
        self.0.nrows()
    }

    fn add_rows(&mut self, scale: f64, rows: MatRef<'_, f64>) -> Result<(), FactoriseError> {
        add_lower(self.0.as_mut(), rows.transpose(), rows, scale);
        Ok(())
    }

    fn scale(&mut self, factor: f64) -> Result<(), FactoriseError> {
        self.0 *= faer::Scale(factor);
        Ok(())
    }

    fn columns(&self, which: Range<usize>) -> Result<Mat<f64>, FactoriseError> {
        Ok(self.0.subcols(which.start, which.len()).to_owned())
    }

    fn finish(self: Box<Self>) -> Result<Mat<f64>, FactoriseError> {
        Ok(self.0)
    }
}

fn add_lower(to: MatMut<'_, f64>, x: MatRef<'_, f64>, y: MatRef<'_, f64>, scale: f64) {
    triangular::matmul(
        to,
        BlockStructure::TriangularLower,
        Accum::Add,
        x,
        BlockStructure::Rectangular,
        y,
        BlockStructure::Rectangular,
        scale,
        Par::Seq,
    );
}

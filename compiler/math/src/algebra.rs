//! What multiplies and decomposes: the calling thread, or a device that a caller brings.

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

/// The leading part of a decomposition of order `n`.
#[derive(Clone, Debug)]
pub struct Leading {
    /// All `n` eigenvalues or singular values, decreasing.
    pub values: Vec<f64>,
    /// `[n, k]`, orthonormal: column `j` belongs to `values[j]`; the signs are as they come.
    pub vectors: Mat<f64>,
}

impl Leading {
    /// Of all eigenvalues in increasing order and their vectors, column-major `[n, n]`, as LAPACK has them.
    pub fn of_ascending(values: Vec<f64>, vectors: &[f64], k: usize) -> Leading {
        let n = values.len();
        let columns = MatRef::from_column_major_slice(vectors, n, n);
        Leading {
            vectors: Mat::from_fn(n, k, |i, j| columns[(i, n - 1 - j)]),
            values: values.into_iter().rev().collect(),
        }
    }
}

/// A matrix column by column, without gaps between them, as libraries other than `faer` take it.
pub fn column_major(matrix: MatRef<'_, f64>) -> Vec<f64> {
    let (m, n) = matrix.shape();
    let mut out = vec![0.0; m * n];
    MatMut::from_column_major_slice_mut(&mut out, m, n).copy_from(matrix);
    out
}

/// Products and decompositions in float64, the parts of a factorisation that take the time.
///
/// The same numbers give the same bytes each time, on any number of threads that ask; those of another algebra differ in their last
/// bits, and so do factors that are made with it.
pub trait Algebra: fmt::Debug + Send + Sync {
    /// The library that computes, and on what: it belongs into the provenance of an artifact.
    fn name(&self) -> String;

    /// Rows of a long matrix with rows of `width` numbers that are multiplied at a time: enough for products at full speed, few enough
    /// that their copy in float64 takes little.
    fn panel(&self, width: usize) -> usize {
        let _ = width;
        512
    }

    /// The `k` leading eigenvectors of the symmetric matrix whose lower triangle is that of `matrix`.
    ///
    /// # Errors
    /// [`FactoriseError::NoConvergence`], or what the device says.
    fn eigen(&self, matrix: Mat<f64>, k: usize) -> Result<Leading, FactoriseError>;

    /// All eigenvalues of the symmetric matrix whose lower triangle is that of `matrix`, decreasing: a fraction of the time and
    /// of the memory that the vectors take.
    ///
    /// # Errors
    /// As [`eigen`](Algebra::eigen).
    fn eigenvalues(&self, matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError>;

    /// The `k` leading right singular vectors of `tall [m, n]`, `m ≥ n`.
    ///
    /// # Errors
    /// As [`eigen`](Algebra::eigen).
    fn right_singular(&self, tall: Mat<f64>, k: usize) -> Result<Leading, FactoriseError>;

    /// `out = scale · X Y`, or that added to it.
    ///
    /// # Errors
    /// What the device says.
    fn multiply(
        &self,
        out: MatMut<'_, f64>,
        accumulate: Accum,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
        scale: f64,
    ) -> Result<(), FactoriseError>;

    /// `X Y` in the lower triangle of a square matrix; what is above it is not said.
    ///
    /// # Errors
    /// What the device says.
    fn multiply_lower(
        &self,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
    ) -> Result<Mat<f64>, FactoriseError>;

    /// A Gram matrix of rows of `order` numbers, of none at first.
    ///
    /// # Errors
    /// What the device says, such as that there is no room for it.
    fn gram(&self, order: usize) -> Result<Box<dyn Gram>, FactoriseError>;
}

/// Columns of a Gram matrix that are fetched at a time.
const STRIPE: usize = 256;

/// `Σ xᵀ x` of rows `x`, as they come.
pub trait Gram: fmt::Debug + Send {
    /// Numbers of a row.
    fn order(&self) -> usize;

    /// Adds `scale · XᵀX` of `rows [n, order]`.
    ///
    /// # Errors
    /// What the device says.
    fn add(&mut self, scale: f64, rows: MatRef<'_, f64>) -> Result<(), FactoriseError>;

    /// Multiplies the sums so far.
    ///
    /// # Errors
    /// What the device says.
    fn scale(&mut self, factor: f64) -> Result<(), FactoriseError>;

    /// Some columns of the sums, `[order, n]`, of which what is on and below the diagonal of the sums counts.
    ///
    /// # Errors
    /// What the device says.
    fn columns(&self, which: Range<usize>) -> Result<Mat<f64>, FactoriseError>;

    /// The sums `[order, order]`, of which the lower triangle counts.
    ///
    /// # Errors
    /// What the device says.
    fn finish(self: Box<Self>) -> Result<Mat<f64>, FactoriseError> {
        let order = self.order();
        let mut sums = Mat::zeros(order, order);
        for first in (0..order).step_by(STRIPE) {
            let count = STRIPE.min(order - first);
            let columns = self.columns(first..first + count)?;
            sums.as_mut().subcols_mut(first, count).copy_from(&columns);
        }
        Ok(sums)
    }
}

/// The calling thread, with the library of [`BACKEND`] for decompositions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// The host's.
impl Default for &dyn Algebra {
    fn default() -> Self {
        &Host
    }
}

impl Algebra for Host {
    fn name(&self) -> String {
        BACKEND.to_owned()
    }

    fn eigen(&self, matrix: Mat<f64>, k: usize) -> Result<Leading, FactoriseError> {
        backend::eigen(matrix, k)
    }

    fn eigenvalues(&self, matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
        backend::eigenvalues(matrix)
    }

    fn right_singular(&self, tall: Mat<f64>, k: usize) -> Result<Leading, FactoriseError> {
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

    fn gram(&self, order: usize) -> Result<Box<dyn Gram>, FactoriseError> {
        Ok(Box::new(HostGram(Mat::zeros(order, order))))
    }
}

#[derive(Debug)]
struct HostGram(Mat<f64>);

impl Gram for HostGram {
    fn order(&self) -> usize {
        self.0.nrows()
    }

    fn add(&mut self, scale: f64, rows: MatRef<'_, f64>) -> Result<(), FactoriseError> {
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

/// Adds `scale · X Y` to the lower triangle.
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

//! Linear algebra on the device that executes models.

use std::ops::Range;

use faer::{Accum, Mat, MatMut, MatRef};
use htc_kernels::cuda::device::DeviceError;
use htc_kernels::linear::{self, LinearAlgebra, ProductShape};

use crate::math::{Algebra, FactoriseError, GramAccumulator, LeadingVectors, to_column_major};

/// Returns the rows of length `width` per transfer: 64 MiB, within 512 to 8192 rows.
pub fn panel_rows(width: usize) -> usize {
    const BYTES: usize = 64 << 20;
    (BYTES / (size_of::<f64>() * width.max(1))).clamp(512, 8192)
}

#[derive(Debug)]
pub(super) struct DeviceAlgebra(pub Box<dyn LinearAlgebra>);

fn device_error(error: DeviceError) -> FactoriseError {
    match error {
        DeviceError::NoConvergence { order } => FactoriseError::NoConvergence { order },
        error => FactoriseError::Device {
            message: error.to_string(),
        },
    }
}

impl DeviceAlgebra {
    fn product(&self, x: MatRef<'_, f64>, y: MatRef<'_, f64>) -> Result<Vec<f64>, FactoriseError> {
        let shape = ProductShape {
            rows: x.nrows(),
            inner: x.ncols(),
            columns: y.ncols(),
        };
        let mut product = vec![0.0; shape.rows * shape.columns];
        let [x, y] = [x, y].map(to_column_major);
        let multiplied = self.0.multiply(shape, &x, &y, &mut product);
        multiplied.map_err(device_error)?;
        Ok(product)
    }
}

impl Algebra for DeviceAlgebra {
    fn name(&self) -> String {
        self.0.name()
    }

    /// The right factor is transferred for each panel.
    fn panel_rows(&self, width: usize) -> usize {
        panel_rows(width)
    }

    fn eigen(&self, matrix: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError> {
        let mut vectors = to_column_major(matrix.as_ref());
        let mut values = vec![0.0; matrix.nrows()];
        drop(matrix);
        let found = self.0.symmetric_eigen(&mut vectors, &mut values, true);
        found.map_err(device_error)?;
        Ok(LeadingVectors::from_ascending(values, &vectors, k))
    }

    fn eigenvalues(&self, matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
        let mut values = vec![0.0; matrix.nrows()];
        let mut numbers = to_column_major(matrix.as_ref());
        drop(matrix);
        let found = self.0.symmetric_eigen(&mut numbers, &mut values, false);
        found.map_err(device_error)?;
        values.reverse();
        Ok(values)
    }

    fn right_singular_vectors(
        &self,
        tall: Mat<f64>,
        k: usize,
    ) -> Result<LeadingVectors, FactoriseError> {
        let n = tall.ncols();
        let (mut values, mut right) = (vec![0.0; n], vec![0.0; n * n]);
        let numbers = to_column_major(tall.as_ref());
        drop(tall);
        let found = self
            .0
            .right_singular_vectors(&numbers, &mut values, &mut right);
        found.map_err(device_error)?;
        let rows = MatRef::from_column_major_slice(&right, n, n);
        Ok(LeadingVectors {
            vectors: Mat::from_fn(n, k, |i, j| rows[(j, i)]),
            values,
        })
    }

    fn multiply(
        &self,
        mut out: MatMut<'_, f64>,
        accumulate: Accum,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
        scale: f64,
    ) -> Result<(), FactoriseError> {
        let product = self.product(x, y)?;
        let product = MatRef::from_column_major_slice(&product, out.nrows(), out.ncols());
        for (to, of) in out.as_mut().col_iter_mut().zip(product.col_iter()) {
            for (to, of) in to.iter_mut().zip(of.iter()) {
                *to = match accumulate {
                    Accum::Replace => scale * of,
                    Accum::Add => *to + scale * of,
                };
            }
        }
        Ok(())
    }

    fn multiply_lower(
        &self,
        x: MatRef<'_, f64>,
        y: MatRef<'_, f64>,
    ) -> Result<Mat<f64>, FactoriseError> {
        let product = self.product(x, y)?;
        Ok(MatRef::from_column_major_slice(&product, x.nrows(), y.ncols()).to_owned())
    }

    fn new_gram(&self, order: usize) -> Result<Box<dyn GramAccumulator>, FactoriseError> {
        let sums = self.0.new_gram(order).map_err(device_error)?;
        Ok(Box::new(DeviceGram { order, sums }))
    }
}

#[derive(Debug)]
struct DeviceGram {
    order: usize,
    sums: Box<dyn linear::GramMatrix>,
}

impl GramAccumulator for DeviceGram {
    fn row_len(&self) -> usize {
        self.order
    }

    fn add_rows(&mut self, scale: f64, rows: MatRef<'_, f64>) -> Result<(), FactoriseError> {
        let vectors = to_column_major(rows.transpose());
        self.sums.add(scale, &vectors).map_err(device_error)
    }

    fn scale(&mut self, factor: f64) -> Result<(), FactoriseError> {
        self.sums.scale(factor).map_err(device_error)
    }

    fn columns(&self, which: Range<usize>) -> Result<Mat<f64>, FactoriseError> {
        let mut columns = vec![0.0; self.order * which.len()];
        let read = self.sums.read(which.start, &mut columns);
        read.map_err(device_error)?;
        Ok(MatRef::from_column_major_slice(&columns, self.order, which.len()).to_owned())
    }
}

#[cfg(test)]
pub(super) mod tests;

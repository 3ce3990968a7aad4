//! Dense linear algebra in double precision, by a device's libraries.
//!
//! Matrices are column-major without gaps. An implementation checks every shape first and is
//! deterministic, independent of threads and earlier calls.

use crate::cuda::device::DeviceError;
use crate::error::{self, ShapeError, check_numbers, check_size};

/// Sizes of a product of two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Rows of the left matrix and of the product.
    pub rows: usize,
    /// Columns of the left matrix and rows of the right one.
    pub inner: usize,
    /// Columns of the right matrix and of the product.
    pub columns: usize,
}

/// Decompositions and products.
pub trait LinearAlgebra: std::fmt::Debug + Send + Sync {
    /// Returns the libraries and device, e.g. `cuSOLVER 11.7.5, cuBLAS 12.8.4 on NVIDIA H100,
    /// sm_90`.
    fn name(&self) -> String;

    /// Computes eigenvalues of a symmetric `matrix [n, n]`, ascending, into `values [n]`. Only the
    /// lower triangle is read. With `vectors` the matrix is replaced by orthonormal eigenvectors
    /// (column `j` for `values[j]`); without, its content is unspecified afterwards.
    fn symmetric_eigen(
        &self,
        matrix: &mut [f64],
        values: &mut [f64],
        vectors: bool,
    ) -> Result<(), DeviceError>;

    /// Computes singular values of `tall [m, n]`, `m ≥ n`, decreasing, into `values [n]`, and the
    /// transposed right singular vectors into `right [n, n]` (row `j` for `values[j]`).
    fn right_singular_vectors(
        &self,
        tall: &[f64],
        values: &mut [f64],
        right: &mut [f64],
    ) -> Result<(), DeviceError>;

    /// Computes `out [rows, columns] = left [rows, inner] right [inner, columns]`.
    fn multiply(
        &self,
        shape: ProductShape,
        left: &[f64],
        right: &[f64],
        out: &mut [f64],
    ) -> Result<(), DeviceError>;

    /// Creates a zero Gram matrix of vectors of `order` numbers on the device. It keeps the
    /// resources it needs alive.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if the sums do not fit, and any other [`DeviceError`].
    fn new_gram(&self, order: usize) -> Result<Box<dyn GramMatrix>, DeviceError>;
}

/// Accumulated Gram matrix `Σ v vᵀ` on a device.
pub trait GramMatrix: std::fmt::Debug + Send {
    /// Adds `scale · Σ v vᵀ` of the columns `v` of `vectors [order, n]`.
    ///
    /// # Errors
    /// [`DeviceError`]. Earlier sums are kept if the vectors have another order or exceed the
    /// memory.
    fn add(&mut self, scale: f64, vectors: &[f64]) -> Result<(), DeviceError>;

    /// Multiplies the sums by a factor.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn scale(&mut self, factor: f64) -> Result<(), DeviceError>;

    /// Reads columns of the sums from `first` into `out [order, n]`: the lower triangle, with zeros
    /// above.
    ///
    /// # Errors
    /// [`DeviceError`], also of earlier additions.
    fn read(&self, first: usize, out: &mut [f64]) -> Result<(), DeviceError>;
}

/// Returns the order of a matrix for an eigendecomposition.
pub fn check_square(matrix: &[f64], values: &[f64]) -> Result<usize, ShapeError> {
    let order = values.len();
    let what = "matrix (numbers)";
    check_numbers(what, &[order, order], matrix.len())?;
    Ok(order)
}

/// Returns rows and columns of a matrix for a singular value decomposition.
pub fn check_tall(tall: &[f64], values: &[f64], right: &[f64]) -> Result<[usize; 2], ShapeError> {
    let columns = values.len();
    let square = error::checked_product("right (numbers)", &[columns, columns])?;
    check_size("right (numbers)", square, right.len())?;
    error::check_rows("tall (numbers, whole rows)", columns, tall.len())?;
    if tall.len() < square {
        return Err(ShapeError::new(
            "tall (numbers, at least)",
            square,
            tall.len(),
        ));
    }
    Ok([tall.len().checked_div(columns).unwrap_or(0), columns])
}

/// Checks the sizes of the arguments of a product.
pub fn check_product(
    shape: ProductShape,
    left: &[f64],
    right: &[f64],
    out: &[f64],
) -> Result<(), ShapeError> {
    let ProductShape {
        rows,
        inner,
        columns,
    } = shape;
    for (what, sizes, found) in [
        ("left (numbers)", [rows, inner], left.len()),
        ("right (numbers)", [inner, columns], right.len()),
        ("out (numbers)", [rows, columns], out.len()),
    ] {
        check_numbers(what, &sizes, found)?;
    }
    Ok(())
}

/// Returns the number of vectors of this order.
pub fn vector_count(order: usize, vectors: &[f64]) -> Result<usize, ShapeError> {
    error::check_rows("vectors (numbers, whole vectors)", order, vectors.len())?;
    Ok(vectors.len().checked_div(order).unwrap_or(0))
}

#[cfg(test)]
mod tests;

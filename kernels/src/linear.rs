//! Dense linear algebra in double precision, by whatever a device has for it.
//!
//! All matrices are column-major, without gaps between columns. An implementation checks every shape before it computes
//! anything, and gives the same bytes for the same numbers, whatever ran before and on however many threads.

use crate::cuda::device::DeviceError;
use crate::error::{self, ShapeError, expect};

/// Why a matrix was not decomposed or multiplied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LinearError {
    /// Of the device: no room, for instance.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Arguments that do not fit each other.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A decomposition that was not found, for numbers that are not finite for instance.
    #[error("the decomposition of a matrix of order {order} did not converge")]
    NoConvergence {
        /// Rows and columns of the matrix, or its columns where it has more rows.
        order: usize,
    },
    /// A library that is not there, is too old, or does not start.
    #[error(
        "{library} {message}; install cuSOLVER and cuBLAS of the CUDA toolkit (12.2 or newer), or put the libraries of the packages nvidia-cusolver and nvidia-cublas of PyPI, and of those they need, on the library path"
    )]
    Unavailable {
        /// Its name, as `cuSOLVER`.
        library: &'static str,
        /// What is wrong with it, as `is not installed`.
        message: String,
    },
    /// Something else that a library says.
    #[error("{doing}: {message}")]
    Library {
        /// What was tried.
        doing: &'static str,
        /// What the library says.
        message: String,
    },
}

/// The sizes of a product of two matrices.
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
pub trait Linear: std::fmt::Debug + Send + Sync {
    /// What computes, as in `cuSOLVER 11.7.5, cuBLAS 12.8.4 on NVIDIA H100, sm_90`.
    fn name(&self) -> String;

    /// Eigenvalues of a symmetric `matrix [n, n]`, ascending, into `values [n]`. Of the matrix only the lower triangle
    /// counts. With `vectors` it is replaced by orthonormal eigenvectors, of which column `j` belongs to `values[j]`;
    /// without, what it holds afterwards is unspecified.
    ///
    /// # Errors
    /// [`LinearError`], before or after the matrix was written to.
    fn symmetric_eigen(
        &self,
        matrix: &mut [f64],
        values: &mut [f64],
        vectors: bool,
    ) -> Result<(), LinearError>;

    /// Singular values of `tall [m, n]`, of at least as many rows as columns, decreasing, into `values [n]`, and the
    /// singular vectors on its right, transposed, into `right [n, n]`, of which row `j` belongs to `values[j]`.
    ///
    /// # Errors
    /// [`LinearError`].
    fn right_singular(
        &self,
        tall: &[f64],
        values: &mut [f64],
        right: &mut [f64],
    ) -> Result<(), LinearError>;

    /// `out [rows, columns] = left [rows, inner] right [inner, columns]`.
    ///
    /// # Errors
    /// [`LinearError`].
    fn product(
        &self,
        shape: ProductShape,
        left: &[f64],
        right: &[f64],
        out: &mut [f64],
    ) -> Result<(), LinearError>;

    /// Sums of products of vectors of `order` numbers with themselves, zero at first, which stay on the device. They
    /// keep what they need of this.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where there is no room for the sums, and any other [`LinearError`].
    fn gram(&self, order: usize) -> Result<Box<dyn Gram>, LinearError>;
}

/// Sums of products of vectors with themselves.
pub trait Gram: std::fmt::Debug + Send {
    /// Adds `scale · Σ v vᵀ` of the columns `v` of `vectors [order, n]`.
    ///
    /// # Errors
    /// [`LinearError`]. What was added before is kept where the vectors are of another order, or have no room.
    fn add(&mut self, scale: f64, vectors: &[f64]) -> Result<(), LinearError>;

    /// Multiplies the sums so far.
    ///
    /// # Errors
    /// [`LinearError`].
    fn scale(&mut self, factor: f64) -> Result<(), LinearError>;

    /// Columns of the sums so far from `first` on, as many as `out [order, n]` has: the lower triangle counts, above it is nothing but
    /// zeros.
    ///
    /// # Errors
    /// [`LinearError`], also of what was added before.
    fn read(&self, first: usize, out: &mut [f64]) -> Result<(), LinearError>;
}

/// The order of a matrix whose eigenvalues are wanted.
///
/// # Errors
/// Where it is not square, or has not as many rows as there is room for values.
pub fn eigen_order(matrix: &[f64], values: &[f64]) -> Result<usize, ShapeError> {
    let order = values.len();
    let what = "matrix (numbers)";
    expect(what, error::product(what, &[order, order])?, matrix.len())?;
    Ok(order)
}

/// Rows and columns of a matrix whose singular values are wanted.
///
/// # Errors
/// Where it has fewer rows than columns, or other columns than there is room for.
pub fn tall_shape(tall: &[f64], values: &[f64], right: &[f64]) -> Result<[usize; 2], ShapeError> {
    let columns = values.len();
    let square = error::product("right (numbers)", &[columns, columns])?;
    expect("right (numbers)", square, right.len())?;
    error::expect_rows("tall (numbers, whole rows)", columns, tall.len())?;
    if tall.len() < square {
        return Err(ShapeError {
            what: "tall (numbers, at least)",
            expected: square,
            found: tall.len(),
        });
    }
    Ok([tall.len().checked_div(columns).unwrap_or(0), columns])
}

/// That the arguments of a product are of its sizes.
///
/// # Errors
/// Of the first that is not.
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
        expect(what, error::product(what, &sizes)?, found)?;
    }
    Ok(())
}

/// Vectors of this order that so many numbers are.
///
/// # Errors
/// Where the last one is not whole.
pub fn vectors_of(order: usize, vectors: &[f64]) -> Result<usize, ShapeError> {
    error::expect_rows("vectors (numbers, whole vectors)", order, vectors.len())?;
    Ok(vectors.len().checked_div(order).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_told() {
        let error = LinearError::Unavailable {
            library: "cuBLAS",
            message: "is not installed".to_owned(),
        };
        let text = error.to_string();
        assert!(
            text.starts_with("cuBLAS is not installed; install cuSOLVER"),
            "{text}"
        );
        assert!(text.contains("nvidia-cublas of PyPI"), "{text}");
    }

    #[test]
    fn orders_are_those_of_squares() {
        assert_eq!(eigen_order(&[0.0; 9], &[0.0; 3]), Ok(3));
        assert_eq!(eigen_order(&[], &[]), Ok(0));
        let error = eigen_order(&[0.0; 8], &[0.0; 3]).unwrap_err();
        assert_eq!((error.expected, error.found), (9, 8));
    }

    #[test]
    fn tall_matrices_have_as_many_rows_as_columns_at_least() {
        let shape = |tall, values, right| {
            tall_shape(&vec![0.0; tall], &vec![0.0; values], &vec![0.0; right])
        };
        assert_eq!(shape(12, 3, 9), Ok([4, 3]));
        assert_eq!(shape(9, 3, 9), Ok([3, 3]));
        assert_eq!(shape(0, 0, 0), Ok([0, 0]));
        assert_eq!(
            shape(6, 3, 9).unwrap_err().to_string(),
            "tall (numbers, at least): expected 9, found 6"
        );
        assert_eq!(
            shape(11, 3, 9).unwrap_err().what,
            "tall (numbers, whole rows)"
        );
        assert_eq!(shape(12, 3, 6).unwrap_err().what, "right (numbers)");
        assert!(shape(5, 0, 0).is_err());
    }

    #[test]
    fn every_argument_of_a_product_is_looked_at() {
        let check = |[rows, inner, columns]: [usize; 3], [left, right, out]: [usize; 3]| {
            let shape = ProductShape {
                rows,
                inner,
                columns,
            };
            check_product(shape, &vec![0.0; left], &vec![0.0; right], &vec![0.0; out])
                .map_err(|error| error.what)
        };
        assert_eq!(check([2, 3, 5], [6, 15, 10]), Ok(()));
        assert_eq!(check([2, 0, 5], [0, 0, 10]), Ok(()));
        assert_eq!(check([2, 3, 5], [5, 15, 10]), Err("left (numbers)"));
        assert_eq!(check([2, 3, 5], [6, 14, 10]), Err("right (numbers)"));
        assert_eq!(check([2, 3, 5], [6, 15, 11]), Err("out (numbers)"));
        assert_eq!(check([usize::MAX, 2, 0], [0, 0, 0]), Err("left (numbers)"));
    }

    #[test]
    fn vectors_are_whole() {
        assert_eq!(vectors_of(3, &[0.0; 12]), Ok(4));
        assert_eq!(vectors_of(3, &[]), Ok(0));
        assert_eq!(vectors_of(0, &[]), Ok(0));
        assert!(vectors_of(3, &[0.0; 11]).is_err());
        assert!(vectors_of(0, &[0.0]).is_err());
    }
}

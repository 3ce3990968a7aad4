//! Eigenvalues and -vectors of symmetric matrices, for those who do not factorise with them.

use faer::Mat;

use super::{FactoriseError, backend};

/// The leading part of a decomposition of order `n`.
#[derive(Clone, Debug)]
pub struct Eigen {
    /// All `n` eigenvalues, decreasing.
    pub values: Vec<f64>,
    /// `[n, k]`, orthonormal: column `j` belongs to `values[j]`; the signs are as they come.
    pub vectors: Mat<f64>,
}

/// The `k` leading eigenvectors of the symmetric matrix whose lower triangle is that of `matrix`.
///
/// # Errors
/// A matrix that is empty, not square or not finite, `k` above its order.
pub fn symmetric_eigen(matrix: Mat<f64>, k: usize) -> Result<Eigen, FactoriseError> {
    check(&matrix)?;
    if k > matrix.nrows() {
        return Err(FactoriseError::Rank {
            requested: k,
            largest: matrix.nrows(),
        });
    }
    let found = backend::eigen(matrix, k)?;
    Ok(Eigen {
        values: found.values,
        vectors: found.vectors,
    })
}

/// All eigenvalues of the symmetric matrix whose lower triangle is that of `matrix`, decreasing.
///
/// # Errors
/// A matrix that is empty, not square or not finite.
pub fn symmetric_eigenvalues(matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
    check(&matrix)?;
    backend::eigenvalues(matrix)
}

fn check(matrix: &Mat<f64>) -> Result<(), FactoriseError> {
    let (rows, cols) = matrix.shape();
    if rows == 0 || rows != cols {
        return Err(FactoriseError::Empty {
            index: 0,
            rows,
            cols,
        });
    }
    for (col, column) in matrix.col_iter().enumerate() {
        for (row, &value) in column.iter().enumerate().skip(col) {
            if !value.is_finite() {
                return Err(FactoriseError::MomentEntry { row, col, value });
            }
        }
    }
    Ok(())
}

//! Eigenvalues and eigenvectors of symmetric matrices.

use faer::Mat;

use super::{Algebra, FactoriseError, LeadingVectors};

/// Returns the `k` leading eigenvectors of the symmetric matrix given by its lower triangle.
pub fn symmetric_eigen(
    matrix: Mat<f64>,
    k: usize,
    algebra: &dyn Algebra,
) -> Result<LeadingVectors, FactoriseError> {
    check(&matrix)?;
    if k > matrix.nrows() {
        return Err(FactoriseError::Rank {
            requested: k,
            largest: matrix.nrows(),
        });
    }
    algebra.eigen(matrix, k)
}

/// Returns all eigenvalues of the symmetric matrix given by its lower triangle, decreasing.
pub fn symmetric_eigenvalues(
    matrix: Mat<f64>,
    algebra: &dyn Algebra,
) -> Result<Vec<f64>, FactoriseError> {
    check(&matrix)?;
    algebra.eigenvalues(matrix)
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

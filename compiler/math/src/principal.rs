//! The principal components of vectors: the bases that an adaptive KV cache begins with.
//!
//! OjaKV (appendix A.2) begins with the leading singular vectors of what a calibration saw: for keys of queries and keys
//! together, so that both are projected on the same subspace, for values of these alone. The paper sets queries and keys
//! side by side, `[N, 2 d_h]`, and takes the left vectors `U`, which have `N` numbers and not the `d_h` that it then says; what fits is one above
//! the other, `X [2 N, d_h]`, and the right vectors. These are the eigenvectors of `Xᵀ X`, which is all that is kept of `X`.

use faer::Mat;

use super::gauge::INDEFINITE;
use super::{Algebra, FactoriseError, SecondMoment, is_negative, symmetric_eigen};

/// An orthonormal basis with what each of its components holds.
#[derive(Clone, Debug, PartialEq)]
pub struct PrincipalBasis {
    /// `[n, n]`, row-major: a row for each component, in decreasing order of energy. The entry of largest magnitude of each
    /// row is positive as it is stored, of equal ones the first.
    pub components: Vec<f64>,
    /// `[n]`: the part of the energy `E‖x‖²` that each component holds, decreasing. They sum to 1; all are zero where there is no energy.
    pub energies: Vec<f64>,
}

/// The eigenvectors of `E[x xᵀ]`, all of them, with the parts of its trace that belong to them. The first `r` are the
/// subspace of rank `r` outside of which least of the energy lies (Eckart and Young 1936). `as_stored` is what becomes of
/// a number where it is stored, of which the signs are fixed.
///
/// An eigenvalue that rounding put below zero counts as zero.
///
/// # Errors
/// A second moment that is none: of another length, not finite, or with eigenvalues below zero that rounding does not explain.
pub fn principal_basis(
    moment: SecondMoment<'_>,
    as_stored: impl Fn(f64) -> f32,
    algebra: &dyn Algebra,
) -> Result<PrincipalBasis, FactoriseError> {
    moment.check()?;
    let n = moment.order;
    let found = symmetric_eigen(moment.lower().to_owned(), n, algebra)?;
    let (largest, smallest) = match (found.values.first(), found.values.last()) {
        (Some(&largest), Some(&smallest)) => (largest, smallest),
        _ => (0.0, 0.0),
    };
    if smallest < -INDEFINITE * largest.max(0.0) {
        return Err(FactoriseError::Indefinite { smallest, largest });
    }
    let trace: f64 = found.values.iter().map(|value| value.max(0.0)).sum();
    let part = |value: &f64| match trace > 0.0 {
        true => value.max(0.0) / trace,
        false => 0.0,
    };
    Ok(PrincipalBasis {
        components: rows(&found.vectors, as_stored),
        energies: found.values.iter().map(part).collect(),
    })
}

/// Columns as rows, with their signs fixed.
fn rows(vectors: &Mat<f64>, as_stored: impl Fn(f64) -> f32) -> Vec<f64> {
    let mut rows = Vec::with_capacity(vectors.nrows() * vectors.ncols());
    for column in vectors.col_iter() {
        let sign = match is_negative(column.iter().map(|&entry| as_stored(entry))) {
            true => -1.0,
            false => 1.0,
        };
        rows.extend(column.iter().map(|entry| sign * entry));
    }
    rows
}

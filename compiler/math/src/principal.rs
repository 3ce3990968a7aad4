//! Principal components of vectors: the initial bases of an adaptive KV cache.
//!
//! OjaKV (appendix A.2) starts from the leading singular vectors of calibration activations: for
//! keys of queries and keys together. It concatenates them as `[N, 2 d_h]`; consistent with the
//! stated length is the stacked `X [2 N, d_h]` with the eigenvectors of `Xᵀ X`.

use faer::Mat;

use super::gauge::NEGATIVE_EIGENVALUE_TOLERANCE;
use super::{Algebra, FactoriseError, SecondMoment, sign_of_largest, symmetric_eigen};

/// Orthonormal basis with the energy of each component.
#[derive(Clone, Debug, PartialEq)]
pub struct PrincipalBasis {
    /// `[n, n]`, row-major: one row per component, in decreasing order of energy, with a positive
    /// entry of largest magnitude.
    pub components: Vec<f64>,
    /// `[n]`: fraction of the energy `E‖x‖²` per component.
    pub energies: Vec<f64>,
}

/// Computes all eigenvectors of `E[x xᵀ]` with their fractions of its trace, optimal at every rank
/// (Eckart and Young 1936). Signs are fixed on numbers rounded by `round_to_f16`.
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
    if smallest < -NEGATIVE_EIGENVALUE_TOLERANCE * largest.max(0.0) {
        return Err(FactoriseError::Indefinite { smallest, largest });
    }
    let trace: f64 = found.values.iter().map(|value| value.max(0.0)).sum();
    let part = |value: &f64| {
        if trace > 0.0 {
            value.max(0.0) / trace
        } else {
            0.0
        }
    };
    Ok(PrincipalBasis {
        components: rows(&found.vectors, as_stored),
        energies: found.values.iter().map(part).collect(),
    })
}

fn rows(vectors: &Mat<f64>, as_stored: impl Fn(f64) -> f32) -> Vec<f64> {
    let mut rows = Vec::with_capacity(vectors.nrows() * vectors.ncols());
    for column in vectors.col_iter() {
        let sign = sign_of_largest(column.iter().map(|&entry| as_stored(entry)));
        rows.extend(column.iter().map(|entry| sign * entry));
    }
    rows
}

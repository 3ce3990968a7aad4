//! The basis that slots with the same input share (global rank compression).

use faer::Mat;

use super::panels::Panels;
use super::{FactoriseError, Weight, backend, is_negative};

/// How much each slot counts in the shared basis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BasisWeighting {
    /// `1/‖W‖_F²`: every slot counts the same, however large its numbers are. A slot that is
    /// zero counts nothing.
    #[default]
    Normalised,
    /// 1, the form of the literature: slots with large numbers displace the others.
    Equal,
}

/// A basis shared by slots that read the same input of width `d`.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedBasis {
    /// `Pᵀ`, row-major `[k, d]`: row `j` is the `j`-th basis vector. The rows are
    /// orthonormal; the entry of largest magnitude of each is positive.
    pub basis: Vec<f32>,
    /// Per slot, in the order given, `W̃ = W P`, row-major `[out, k]`.
    pub projected: Vec<Vec<f32>>,
    /// All `d` eigenvalues of `K`, decreasing. With [`BasisWeighting::Normalised`] their sum is
    /// the number of slots that are not zero.
    pub eigenvalues: Vec<f64>,
}

/// The `k` leading eigenvectors `P` of `K = Σ w_i W_iᵀ W_i [d, d]`, and every slot projected on
/// them: `P` minimises `Σ w_i ‖W_i − W_i P Pᵀ‖_F²` among all orthonormal `[d, k]`.
///
/// `k = d` reproduces every slot to rounding.
///
/// # Errors
/// No weight, weights with different inputs, `k` outside `1..=d`, numbers that are not finite
/// or whose projection exceeds float32.
pub fn shared_basis(
    weights: &[Weight<'_>],
    k: usize,
    weighting: BasisWeighting,
) -> Result<SharedBasis, FactoriseError> {
    let (p, eigenvalues) = basis_f64(weights, k, weighting)?;
    let mut projected = Vec::with_capacity(weights.len());
    for (index, &weight) in weights.iter().enumerate() {
        let mut rows = Vec::with_capacity(weight.rows * k);
        Panels::of(weight).times(p.as_ref(), |_, panel| {
            for row in panel.row_iter() {
                rows.extend(row.iter().map(|&v| v as f32));
            }
        });
        if rows.iter().any(|v| !v.is_finite()) {
            return Err(FactoriseError::Overflow { index });
        }
        projected.push(rows);
    }
    Ok(SharedBasis {
        basis: p
            .col_iter()
            .flat_map(|column| column.iter().map(|&v| v as f32))
            .collect(),
        projected,
        eigenvalues,
    })
}

/// `P [d, k]` before rounding and all `d` eigenvalues, decreasing.
pub(super) fn basis_f64(
    weights: &[Weight<'_>],
    k: usize,
    weighting: BasisWeighting,
) -> Result<(Mat<f64>, Vec<f64>), FactoriseError> {
    let d = weights.first().ok_or(FactoriseError::NoWeights)?.cols;
    for (index, weight) in weights.iter().enumerate() {
        weight.check(index)?;
        if weight.cols != d {
            return Err(FactoriseError::Inputs {
                index,
                expected: d,
                found: weight.cols,
            });
        }
    }
    if k == 0 || k > d {
        return Err(FactoriseError::Rank {
            requested: k,
            largest: d,
        });
    }
    let mut gram = Mat::<f64>::zeros(d, d);
    for &weight in weights {
        let norm_squared = weight.norm_squared();
        if norm_squared > 0.0 {
            let scale = match weighting {
                BasisWeighting::Normalised => 1.0 / norm_squared,
                BasisWeighting::Equal => 1.0,
            };
            Panels::of(weight).add_gram(scale, &mut gram);
        }
    }
    let mut found = backend::eigen(gram, k)?;
    for column in found.vectors.col_iter_mut() {
        if is_negative(column.as_ref().iter().map(|&v| v as f32)) {
            column.iter_mut().for_each(|v| *v = -*v);
        }
    }
    // K has no negative eigenvalue; rounding may have made a zero one negative.
    found.values.iter_mut().for_each(|v| *v = v.max(0.0));
    Ok((found.vectors, found.values))
}

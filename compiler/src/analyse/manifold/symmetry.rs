//! Heads with nearly equal subspaces of queries, keys or values, as stored.

use faer::Mat;

use crate::analyse::dimension::components_for;
use crate::analyse::record::{HeadPair, Symmetry, rounded};
use crate::calibrate::{StoredLayer, StoredMoment};
use crate::math::{FactoriseError, Host, symmetric_eigen, symmetric_eigenvalues};

/// Fraction of a head's energy `E‖x‖²` that its subspace holds.
pub(super) const ENERGY: f64 = 0.9;

/// Minimum mean cosine: at 18 degrees a subspace still holds nine tenths (`cos²`) of the other.
pub(super) const THRESHOLD: f64 = 0.95;

const MAX_LISTED_PAIRS: usize = 16;

pub(super) fn layer_symmetry(stored: &StoredLayer) -> Result<Vec<Symmetry>, FactoriseError> {
    let mut subspaces: [Vec<Mat<f64>>; 3] = Default::default();
    for head in 0..stored.kv_heads() {
        for (list, moment) in subspaces.iter_mut().zip(stored.head(head)) {
            list.push(subspace(&moment)?);
        }
    }
    let names = ["queries", "keys", "values"];
    let named = names.into_iter().zip(&subspaces);
    named
        .map(|(of, subspaces)| compare(of, subspaces))
        .collect()
}

fn subspace(moment: &StoredMoment) -> Result<Mat<f64>, FactoriseError> {
    let n = moment.mean.len();
    let second = moment.lower();
    let found = symmetric_eigen(Mat::from_fn(n, n, |i, j| second[i * n + j]), n, &Host)?;
    let k = components_for(&found.values, ENERGY);
    Ok(found.vectors.subcols(0, k).to_owned())
}

fn compare(of: &str, subspaces: &[Mat<f64>]) -> Result<Symmetry, FactoriseError> {
    let (mut pairs, mut undecided) = (0, 0);
    let mut near = Vec::new();
    for (b, second) in subspaces.iter().enumerate() {
        for (a, first) in subspaces[..b].iter().enumerate() {
            pairs += 1;
            let larger = first.ncols().max(second.ncols());
            let chance = (larger as f64 / first.nrows().max(1) as f64).sqrt();
            if chance >= THRESHOLD {
                undecided += 1;
                continue;
            }
            let cosine = mean_cosine(first, second)?;
            if cosine >= THRESHOLD {
                let (cosine, chance) = (rounded(cosine), rounded(chance));
                near.push(HeadPair {
                    a,
                    b,
                    cosine,
                    chance,
                });
            }
        }
    }
    near.sort_by(|x, y| y.cosine.total_cmp(&x.cosine));
    Ok(Symmetry {
        of: of.to_owned(),
        dimensions: subspaces.iter().map(Mat::ncols).collect(),
        pairs,
        undecided,
        near_equal: near.len(),
        closest: near.into_iter().take(MAX_LISTED_PAIRS).collect(),
    })
}

/// Mean singular value of `AᵀB`, over the smaller dimension.
fn mean_cosine(a: &Mat<f64>, b: &Mat<f64>) -> Result<f64, FactoriseError> {
    let (a, b) = if a.ncols() <= b.ncols() {
        (a, b)
    } else {
        (b, a)
    };
    let k = a.ncols();
    if k == 0 {
        return Ok(0.0);
    }
    let cross = a.transpose() * b;
    let squares = symmetric_eigenvalues(&cross * cross.transpose(), &Host)?;
    let cosines = squares.iter().map(|v| v.clamp(0.0, 1.0).sqrt());
    Ok(cosines.sum::<f64>() / k as f64)
}

#[cfg(test)]
mod tests;

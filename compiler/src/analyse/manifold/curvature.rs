//! Curvature of the nearest-neighbour graph: Forman's, with triangles as faces (Samal et al. 2018).

use faer::Mat;

use crate::analyse::record::{Curvature, rounded};
use crate::analyse::sample::mean_and_deviation;

pub(super) const ESTIMATOR: &str = "forman_augmented";

pub(super) const NEIGHBOURS: usize = 8;

/// Computes the curvature from squared distances; `None` for too few vectors.
pub(super) fn sample_curvature(distances: &Mat<f64>) -> Option<Curvature> {
    (distances.nrows() > NEIGHBOURS)
        .then(|| neighbours(distances))
        .and_then(|graph| curvature(&graph))
}

fn neighbours(distances: &Mat<f64>) -> Vec<Vec<bool>> {
    let n = distances.nrows();
    let mut joined = vec![vec![false; n]; n];
    for i in 0..n {
        let mut others: Vec<usize> = (0..n).filter(|&j| j != i).collect();
        others.sort_by(|&a, &b| distances[(i, a)].total_cmp(&distances[(i, b)]));
        for &j in others.iter().take(NEIGHBOURS) {
            joined[i][j] = true;
            joined[j][i] = true;
        }
    }
    joined
}

fn curvature(joined: &[Vec<bool>]) -> Option<Curvature> {
    let degrees: Vec<usize> = joined
        .iter()
        .map(|row| row.iter().filter(|joined| **joined).count())
        .collect();
    let mut values = Vec::new();
    for (v, row) in joined.iter().enumerate() {
        for u in (0..v).filter(|&u| row[u]) {
            let common = row.iter().zip(&joined[u]);
            let triangles = common.filter(|(a, b)| **a && **b).count();
            values.push(4.0 + 3.0 * triangles as f64 - (degrees[u] + degrees[v]) as f64);
        }
    }
    if values.is_empty() {
        return None;
    }
    let (mean, deviation) = mean_and_deviation(|| values.iter().copied());
    let negative = values.iter().filter(|value| **value < 0.0).count();
    Some(Curvature {
        mean: rounded(mean),
        deviation: rounded(deviation),
        negative: rounded(negative as f64 / values.len() as f64),
        edges: values.len(),
    })
}

#[cfg(test)]
mod tests;

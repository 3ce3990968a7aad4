//! Curvature of the nearest-neighbour graph: Forman's, with triangles as faces (Samal et al. 2018).

use faer::Mat;

use crate::analyse::record::{Curvature, rounded};
use crate::analyse::sinks::mean_and_deviation;

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
mod tests {
    use super::*;

    fn graph(n: usize, is_edge: impl Fn(usize, usize) -> bool) -> Vec<Vec<bool>> {
        let joined = |i: usize, j: usize| i != j && (is_edge(i, j) || is_edge(j, i));
        (0..n)
            .map(|i| (0..n).map(|j| joined(i, j)).collect())
            .collect()
    }

    #[test]
    fn known_graphs_have_their_curvature() {
        // A cycle is flat: 4 − 2 − 2. A triangle is a complete graph.
        for n in [4, 7, 30] {
            let found = curvature(&graph(n, |i, j| (i + 1) % n == j)).unwrap();
            assert_eq!((found.mean, found.deviation, found.edges), (0.0, 0.0, n));
        }
        for n in [2, 3, 9] {
            let found = curvature(&graph(n, |_, _| true)).unwrap();
            assert_eq!((found.mean, found.negative), (n as f64, 0.0));
            assert_eq!(found.edges, n * (n - 1) / 2);
        }
        let star = curvature(&graph(9, |i, _| i == 0)).unwrap();
        assert_eq!((star.mean, star.negative, star.edges), (-5.0, 1.0, 8));
        assert!(curvature(&graph(5, |_, _| false)).is_none());
    }

    #[test]
    fn graph_connects_nearest_neighbours() {
        let n = 30;
        let distances = Mat::from_fn(n, n, |i, j| (i as f64 - j as f64).powi(2));
        let joined = neighbours(&distances);
        for (i, row) in joined.iter().enumerate().take(21).skip(9) {
            let near: Vec<usize> = (0..n).filter(|&j| row[j]).collect();
            let expected: Vec<usize> = (i - 4..=i + 4).filter(|&j| j != i).collect();
            assert_eq!(near, expected, "{i}");
        }
        assert!(sample_curvature(&Mat::zeros(8, 8)).is_none());
        assert!(sample_curvature(&Mat::zeros(9, 9)).is_some());
    }
}

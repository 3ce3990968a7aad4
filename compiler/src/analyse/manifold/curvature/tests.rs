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

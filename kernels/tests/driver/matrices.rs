//! Plain Rust matrices, column-major, as a reference.

/// Returns pseudo-random numbers between -1 and 1.
pub fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns `a [rows, inner] b [inner, columns]`.
pub fn matmul(a: &[f64], b: &[f64], [rows, inner, columns]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; rows * columns];
    for (j, out) in out.chunks_exact_mut(rows).enumerate() {
        let factors = &b[inner * j..inner * (j + 1)];
        for (column, factor) in a.chunks_exact(rows).zip(factors) {
            let pairs = out.iter_mut().zip(column);
            pairs.for_each(|(sum, x)| *sum += x * factor);
        }
    }
    out
}

/// Returns the transpose of `a [rows, columns]`.
pub fn transposed(a: &[f64], rows: usize) -> Vec<f64> {
    let columns = a.len() / rows;
    let at = |k: usize| a[k / columns + rows * (k % columns)];
    (0..a.len()).map(at).collect()
}

/// Asserts that finite numbers differ by at most `bound`.
pub fn assert_close(found: &[f64], expected: &[f64], bound: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= bound, "{what}: {i}: {a} is not {b}");
    }
}

/// Asserts that the columns of `a [n, n]` are orthonormal.
pub fn assert_orthonormal(a: &[f64], n: usize, bound: f64, what: &str) {
    let one = |k: usize| f64::from(k.is_multiple_of(n + 1));
    let one: Vec<f64> = (0..n * n).map(one).collect();
    assert_close(&matmul(&transposed(a, n), a, [n, n, n]), &one, bound, what);
}

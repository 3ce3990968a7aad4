use faer::Mat;

use super::super::decompose::{eigen, right_singular};
use super::super::{FactoriseError, LeadingVectors};
use super::{close, decreasing, norm, orthonormal, orthonormality};

type Solver = fn(Mat<f64>, usize) -> Result<LeadingVectors, FactoriseError>;

const EIGEN: &[(&str, Solver)] = &[
    ("faer", eigen),
    #[cfg(feature = "openblas")]
    ("openblas", super::super::openblas::eigen),
];
const RIGHT_SINGULAR: &[(&str, Solver)] = &[
    ("faer", right_singular),
    #[cfg(feature = "openblas")]
    ("openblas", super::super::openblas::right_singular),
];

fn spectra(n: usize) -> Vec<(&'static str, Vec<f64>)> {
    let at = |i: usize| i as f64 / n as f64;
    vec![
        ("linear", (0..n).map(|i| 1.0 - at(i)).collect()),
        (
            "graded",
            (0..n).map(|i| 10f64.powf(-14.0 * at(i))).collect(),
        ),
        (
            "clustered",
            (0..n)
                .map(|i| 2f64.powi(-((8 * i / n) as i32)) * (1.0 + 1e-13 * i as f64))
                .collect(),
        ),
        (
            "repeated",
            (0..n).map(|i| if 3 * i < n { 2.0 } else { 1.0 }).collect(),
        ),
        (
            "deficient",
            (0..n)
                .map(|i| if 2 * i < n { 1.0 + at(i) } else { 0.0 })
                .collect(),
        ),
        ("zero", vec![0.0; n]),
    ]
    .into_iter()
    .map(|(name, mut values)| {
        values.sort_by(|a, b| b.total_cmp(a));
        (name, values)
    })
    .collect()
}

fn scaled_columns(m: &Mat<f64>, factors: &[f64]) -> Mat<f64> {
    Mat::from_fn(m.nrows(), factors.len(), |i, j| m[(i, j)] * factors[j])
}

fn lower(m: &Mat<f64>) -> Mat<f64> {
    Mat::from_fn(m.nrows(), m.ncols(), |i, j| {
        if i >= j { m[(i, j)] } else { f64::NAN }
    })
}

/// The threshold of divide and conquer is 128.
#[test]
fn eigenpairs_satisfy_their_equation() {
    for n in [1, 2, 17, 127, 128, 129, 300] {
        let turn = orthonormal(n, n, 7);
        for (name, spectrum) in spectra(n) {
            let matrix = scaled_columns(&turn, &spectrum) * turn.transpose();
            for scale in [1e-60, 1e-8, 1.0, 1e60] {
                let matrix = Mat::from_fn(n, n, |i, j| matrix[(i, j)] * scale);
                for (backend, solve) in EIGEN {
                    let found = solve(lower(&matrix), n).unwrap();
                    let v = &found.vectors;
                    let residual = norm(&(&matrix * v - scaled_columns(v, &found.values)));
                    let tolerance = 1e-14 * (n as f64).sqrt() * scale;
                    assert!(
                        residual <= 10.0 * tolerance,
                        "{backend} {name} n = {n} scale {scale:e}: residual {residual:e}"
                    );
                    assert!(orthonormality(v) < 1e-13, "{backend} {name} n = {n}");
                    assert!(found.values.windows(2).all(|w| w[0] >= w[1]));
                    for (value, expected) in found.values.iter().zip(&spectrum) {
                        close(*value, expected * scale, tolerance);
                    }
                }
            }
        }
    }
}

#[test]
fn right_singular_vectors_satisfy_their_equation() {
    for (m, n) in [
        (1, 1),
        (2, 1),
        (130, 1),
        (2, 2),
        (127, 127),
        (160, 129),
        (161, 129),
        (162, 129),
        (400, 150),
    ] {
        let (left, right) = (orthonormal(m, n, 3), orthonormal(n, n, 5));
        for (name, spectrum) in spectra(n) {
            let matrix = scaled_columns(&left, &spectrum) * right.transpose();
            for scale in [1e-35, 1.0, 1e35] {
                let matrix = Mat::from_fn(m, n, |i, j| matrix[(i, j)] * scale);
                for (backend, solve) in RIGHT_SINGULAR {
                    let found = solve(matrix.clone(), n).unwrap();
                    assert!(decreasing(&found.values));
                    assert!(orthonormality(&found.vectors) < 1e-13, "{backend} {name}");
                    let product = &matrix * &found.vectors;
                    let gram = product.transpose() * &product;
                    for j in 0..n {
                        close(found.values[j], spectrum[j] * scale, 5e-14 * scale);
                        for i in 0..j {
                            close(gram[(i, j)], 0.0, 1e-13 * scale * scale);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn eigenvalues_equal_those_of_the_full_decomposition() {
    type Values = fn(Mat<f64>) -> Result<Vec<f64>, FactoriseError>;
    let solvers: &[(&str, Values)] = &[
        ("faer", super::super::decompose::eigenvalues),
        #[cfg(feature = "openblas")]
        ("openblas", super::super::openblas::eigenvalues),
    ];
    for n in [1, 2, 3, 20, 130] {
        let vectors = orthonormal(n, n, 37);
        for (spectrum, values) in spectra(n) {
            for scale in [1e-24, 1.0, 1e12] {
                let values: Vec<f64> = values.iter().map(|v| v * scale).collect();
                let matrix = scaled_columns(&vectors, &values) * vectors.transpose();
                for (name, solve) in solvers {
                    let found = solve(matrix.clone()).unwrap();
                    assert_eq!(found.len(), n);
                    let ordered = found.windows(2).all(|w| w[0] >= w[1]);
                    assert!(ordered, "{name}: {spectrum}");
                    for (found, expected) in found.iter().zip(&values) {
                        close(*found, *expected, 1e-13 * values[0]);
                    }
                }
            }
        }
    }
}

#[test]
fn fewer_vectors_are_the_first_ones() {
    for n in [20, 150] {
        let matrix = orthonormal(n, n, 23);
        let matrix = scaled_columns(&matrix, &spectra(n)[0].1) * matrix.transpose();
        for solve in EIGEN.iter().chain(RIGHT_SINGULAR).map(|(_, solve)| solve) {
            let all = solve(matrix.clone(), n).unwrap();
            let some = solve(matrix.clone(), n / 3).unwrap();
            assert_eq!(all.values, some.values);
            for j in 0..n / 3 {
                for i in 0..n {
                    close(some.vectors[(i, j)], all.vectors[(i, j)], 1e-14);
                }
            }
        }
    }
}

#[cfg(feature = "openblas")]
#[test]
fn backends_agree() {
    use super::super::sign_of_largest;

    for n in [5, 60, 200] {
        let (left, right) = (orthonormal(2 * n, n, 29), orthonormal(n, n, 31));
        let spectrum = &spectra(n)[0].1;
        let tall = scaled_columns(&left, spectrum) * right.transpose();
        let gram = tall.transpose() * &tall;
        for (solvers, matrix) in [(EIGEN, &gram), (RIGHT_SINGULAR, &tall)] {
            let [one, other] = [0, 1].map(|i| {
                let mut found = solvers[i].1(matrix.clone(), n / 2).unwrap();
                for column in found.vectors.col_iter_mut() {
                    if sign_of_largest(column.as_ref().iter().map(|&v| v as f32)) < 0.0 {
                        column.iter_mut().for_each(|v| *v = -*v);
                    }
                }
                found
            });
            for (a, b) in one.values.iter().zip(&other.values) {
                close(*a, *b, 1e-14);
            }
            assert!(norm(&(one.vectors - other.vectors)) < 1e-9);
        }
    }
}

//! The integer products of every instruction set this machine has, against exact sums over the
//! same codes, and against the numbers themselves.

use htc_formats::DType;

use super::super::activations::{self, Strip};
use super::super::kernels;
use super::super::matmul::matmul_with;
use super::super::scratch::Scratch;
use super::super::tests::Random;
use super::{available, takes};
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::reference;

fn formats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| takes(dtype))
}

/// `x [n, cols]` after quantisation, as numbers.
fn quantised(cols: usize, x: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    let mut strips = vec![Strip::ZERO; activations::strips(cols)];
    for x in x.chunks_exact(cols) {
        activations::quantise(x, &mut strips);
        let blocks = strips.iter().flat_map(|s| s.codes.iter().zip(s.scales));
        let numbers = blocks.flat_map(|(codes, d)| codes.map(|c| f64::from(c) * f64::from(d)));
        out.extend(numbers.take(cols));
    }
    out
}

/// `y [n, rows]` in double precision, and `Σ |w x|` of each.
fn exact(w: Matrix<'_>, x: &[f64]) -> Vec<[f64; 2]> {
    let mut rows = vec![vec![0.0; w.cols()]; w.rows()];
    for (i, row) in rows.iter_mut().enumerate() {
        reference::embed(w, i, row).unwrap();
    }
    let mut y = Vec::new();
    for x in x.chunks_exact(w.cols()) {
        for row in &rows {
            let products = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x);
            y.push([products.clone().sum(), products.map(f64::abs).sum()]);
        }
    }
    y
}

/// Bound on what is rounded off a result relative to `Σ |w x|`, the weights' rounding included.
/// With minima the terms are larger than their sum: a weight is a difference of two numbers.
fn rounding(dtype: DType, cols: usize) -> f64 {
    let terms = cols as f64 / 32.0 + 8.0;
    let growth = match dtype {
        DType::Q4K | DType::Q5K | DType::Q2K | DType::Q4_1 | DType::Q5_1 => 40.0,
        _ => 1.0,
    };
    terms * growth * 6e-8
}

#[test]
fn products_are_exact_sums_of_codes_on_any_number_of_threads() {
    let mut random = Random(41);
    let pools = [1, 2, 3, 4].map(|threads| Pool::new(threads).unwrap());
    let mut scratch = Scratch::new();
    for dtype in formats() {
        for blocks in [1, 2, 3, 5] {
            for (rows, n) in [
                (1, 2),
                (5, 3),
                (16, 4),
                (17, 5),
                (31, 6),
                (33, 17),
                (70, 8),
                (130, 9),
                (3, 512),
            ] {
                let cols = blocks * dtype.block_len() * if rows == 70 { 9 } else { 1 };
                let bytes = random.matrix(dtype, rows, cols);
                let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
                let x = random.numbers(n * cols);
                let expected = exact(w, &quantised(cols, &x));
                for tiles in available() {
                    let k = kernels::available()[0];
                    let results = pools.each_ref().map(|pool| {
                        let mut y = vec![f32::NAN; n * rows];
                        matmul_with(k, Some(tiles), pool, w, n, &x, &mut y, &mut scratch).unwrap();
                        y
                    });
                    for (i, [expected, magnitude]) in expected.iter().enumerate() {
                        let error = (f64::from(results[0][i]) - expected).abs();
                        assert!(
                            error <= rounding(dtype, cols) * magnitude,
                            "{} {dtype} {rows}x{cols} n {n} [{i}]: {} for {expected}, {:e}",
                            tiles.name,
                            results[0][i],
                            error / magnitude,
                        );
                    }
                    assert!(results.iter().all(|y| *y == results[0]));
                }
            }
        }
    }
}

//! Products with one vector and projections.

use super::super::kernels::Kernels;
use super::*;

/// Types with integer products.
pub(super) const INTEGER: [DType; 12] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::IQ4NL,
    DType::IQ4XS,
];

const FLOAT: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::TQ2_0];

fn all() -> impl Iterator<Item = DType> {
    INTEGER.into_iter().chain(FLOAT)
}

fn code_bytes(dtype: DType) -> std::ops::Range<usize> {
    match dtype {
        DType::Q4_1 => 4..20,
        DType::Q5_1 => 4..24,
        DType::Q2K => 16..80,
        DType::Q4K => 16..144,
        DType::Q5K => 16..176,
        _ => 0..0,
    }
}

/// Scale of the rounding errors of a row's product: `Σ |w| |x|`, and with minima `Σ (|w| + 2 |m|)
/// |x|`, an upper bound of `|d c| + |m|`.
fn magnitude(dtype: DType, row: &[u8], x: &[f64]) -> f64 {
    let sum = |row: &[u8], factor: f64| {
        let mut numbers = vec![0.0; x.len()];
        htc_formats::block::decode(dtype, row, &mut numbers).unwrap();
        let products = numbers
            .iter()
            .zip(x)
            .map(|(&w, x)| (f64::from(w) * x).abs());
        products.sum::<f64>() * factor
    };
    let codes = code_bytes(dtype);
    let mut minima = row.to_vec();
    for block in minima.chunks_exact_mut(dtype.block_bytes()) {
        block[codes.clone()].fill(0);
    }
    sum(row, 1.0)
        + if codes.is_empty() {
            0.0
        } else {
            sum(&minima, 2.0)
        }
}

/// Checks `y = W x`: for quantised weights within rounding errors of the product with the quantised
/// vector, and within half a step per number of the product with `x` itself.
pub(super) fn check(w: Matrix<'_>, x: &[f32], y: &[f32], what: &str) {
    let (rows, dtype) = (w.rows(), w.dtype());
    let mut exact = vec![0.0; rows];
    reference::matvec(w, x, &mut exact).unwrap();
    let (expected, seen) = if INTEGER.contains(&dtype) {
        let mut quantised = vec![0.0; rows];
        reference::quantised_matmul(w, 1, x, &mut quantised).unwrap();
        (quantised, reference::quantised_vector(x))
    } else {
        (exact.clone(), x.iter().map(|&x| f64::from(x)).collect())
    };
    // Half of 1/127 of the largest number of each block.
    let steps: Vec<f64> = x
        .chunks(32)
        .flat_map(|x| {
            let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            x.iter().map(move |_| f64::from(largest) / 254.0)
        })
        .collect();
    let mut row = vec![0.0; w.cols()];
    for i in 0..rows {
        let rounding = PRODUCT_ERROR * magnitude(dtype, w.row(i), &seen);
        let error = f64::from(y[i] - expected[i]).abs();
        let (found, expected) = (y[i], expected[i]);
        assert!(error <= rounding, "{what} row {i}: {found} for {expected}");
        reference::embed(w, i, &mut row).unwrap();
        let steps: f64 = row
            .iter()
            .zip(&steps)
            .map(|(w, s)| f64::from(w.abs()) * s)
            .sum();
        let (error, exact) = (f64::from(y[i] - exact[i]).abs(), exact[i]);
        let bound = steps * 1.000_01 + rounding;
        assert!(
            error <= bound,
            "{what} row {i}: {found} for {exact} unquantised"
        );
    }
}

fn product(kernels: &'static Kernels, pool: &Arc<Pool>, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; w.rows()];
    on(kernels, pool)
        .matvec(w, x, &mut y, &mut Scratch::new())
        .unwrap();
    y
}

#[test]
fn products_match_the_reference_on_any_number_of_threads() {
    let mut random = Random(2);
    let pools = pools([1, 2, 3, 4]);
    for dtype in all() {
        let block = dtype.block_len();
        let widths: &[usize] = match block {
            1 => &[0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 100, 257, 1000],
            32 => &[0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 31, 40],
            _ => &[0, 1, 2, 3, 5, 7],
        };
        for cols in widths.iter().map(|blocks| blocks * block) {
            for rows in [0, 1, 2, 3, 4, 5, 6, 7, 130] {
                let bytes = random.matrix(dtype, rows, cols);
                let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
                let x = random.numbers(cols);
                for k in available() {
                    let results = pools.each_ref().map(|pool| product(k, pool, w, &x));
                    let what = format!("{} {dtype} {rows}x{cols}", k.name);
                    check(w, &x, &results[0], &what);
                    for result in &results[1..] {
                        assert_eq!(result, &results[0], "{what}");
                    }
                }
            }
        }
    }
}

/// A row longer than a task, as in a low-rank factor of a wide input, and longer than a kernel
/// prepares at a time.
#[test]
fn few_long_rows_agree_with_the_reference() {
    let mut random = Random(23);
    for dtype in all() {
        let block = dtype.block_len();
        for (rows, cols) in [(9, 8192), (5, 20_480 + block), (2, 65_536)] {
            let bytes = random.matrix(dtype, rows, cols);
            let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
            let x = random.numbers(cols);
            for k in available() {
                let y = product(k, &pools([2])[0], w, &x);
                check(w, &x, &y, &format!("{} {dtype} {rows}x{cols}", k.name));
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    let mut random = Random(24);
    let cols = 512;
    for dtype in INTEGER {
        for (fill, bytes) in extreme_rows(&mut random, dtype, cols) {
            let w = Matrix::new(dtype, 1, cols, &bytes).unwrap();
            for x in [[1.0; 512], [-1.0; 512]] {
                for k in available() {
                    let y = product(k, &pools([1])[0], w, &x);
                    check(w, &x, &y, &format!("{} {dtype} {fill:#x}", k.name));
                }
            }
        }
    }
}

#[test]
fn non_finite_inputs_make_products_nan() {
    let mut random = Random(25);
    let [pool] = pools([1]);
    for dtype in all() {
        let cols = 512;
        let bytes = random.matrix(dtype, 5, cols);
        let w = Matrix::new(dtype, 5, cols, &bytes).unwrap();
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.numbers(cols);
            x[300] = odd;
            for k in available() {
                for y in product(k, &pool, w, &x) {
                    assert!(!y.is_finite(), "{} {dtype} {odd}: {y}", k.name);
                }
            }
        }
    }
}

fn project_separately(
    k: &'static Kernels,
    pool: &Arc<Pool>,
    x: &[f32],
    factors: &[Factor<'_>],
    (w, input): (Matrix<'_>, Input),
) -> Vec<f32> {
    match input {
        Input::Vector => product(k, pool, w, x),
        Input::Inner(index) => {
            let factor = factors[index];
            let mut inner = product(k, pool, factor.w, x);
            inner[factor.rank..].fill(0.0);
            product(k, pool, w, &inner)
        }
    }
}

#[test]
fn project_matches_separate_products_on_any_number_of_threads() {
    let mut random = Random(26);
    let cols = 512;
    // All mixtures of types; a rank of whole blocks and one that is not.
    let shapes = [
        (DType::Q8_0, 96, 96),
        (DType::F16, 64, 50),
        (DType::Q4K, 256, 193),
        (DType::F32, 32, 0),
    ];
    let bytes: Vec<_> = shapes
        .map(|(t, rank, _)| random.matrix(t, rank, cols))
        .into();
    let factors: Vec<_> = shapes
        .iter()
        .zip(&bytes)
        .map(|(&(dtype, rows, rank), bytes)| Factor {
            w: Matrix::new(dtype, rows, cols, bytes).unwrap(),
            rank,
        })
        .collect();
    let projections = [
        (DType::Q6K, 300, cols, Input::Vector),
        (DType::Q8_0, 41, 96, Input::Inner(0)),
        (DType::F16, 7, 96, Input::Inner(0)),
        (DType::Q8_0, 130, 64, Input::Inner(1)),
        (DType::F32, 5, 64, Input::Inner(1)),
        (DType::Q4K, 70, 256, Input::Inner(2)),
        (DType::BF16, 33, cols, Input::Vector),
        (DType::Q8_0, 9, 32, Input::Inner(3)),
        (DType::F16, 0, 32, Input::Inner(3)),
    ];
    let bytes = projections.map(|(dtype, rows, cols, _)| random.matrix(dtype, rows, cols));
    let projections: Vec<_> = projections
        .iter()
        .zip(&bytes)
        .map(|(&(dtype, rows, cols, input), bytes)| {
            (Matrix::new(dtype, rows, cols, bytes).unwrap(), input)
        })
        .collect();
    let pools = pools([1, 2, 3, 4]);
    let mut scratch = Scratch::new();
    for (factors, projections) in [
        (&factors[..], &projections[..]),
        (&factors[..], &projections[..1]),
        (&factors[..0], &projections[..1]),
        (&factors[..1], &projections[1..3]),
        (&factors[..2], &projections[1..4]),
        (&factors[..0], &[]),
    ] {
        for n in [1, 2, 130] {
            let x = random.numbers(n * cols);
            for k in available() {
                let mut run = |pool: &Arc<Pool>| {
                    let mut y: Vec<_> = projections
                        .iter()
                        .map(|(w, _)| vec![f32::NAN; n * w.rows()])
                        .collect();
                    let mut projections: Vec<_> = projections
                        .iter()
                        .zip(&mut y)
                        .map(|(&(w, input), y)| Projection { w, input, y })
                        .collect();
                    on(k, pool)
                        .project(n, &x, factors, &mut projections, &mut scratch)
                        .unwrap();
                    y
                };
                let results = pools.each_ref().map(&mut run);
                for result in &results[1..] {
                    assert_eq!(result, &results[0], "{}", k.name);
                }
                for (s, &projection) in projections.iter().enumerate() {
                    let rows = projection.0.rows();
                    for t in [0, n - 1] {
                        let x = &x[t * cols..][..cols];
                        let alone = project_separately(k, &pools[0], x, factors, projection);
                        let found = &results[0][s][t * rows..][..rows];
                        if n == 1 {
                            assert_eq!(found, alone, "{} projection {s}", k.name);
                            continue;
                        }
                        // Products of several rows add in another order.
                        for (f, a) in found.iter().zip(&alone) {
                            let largest = alone.iter().fold(1e-3, |m: f32, a| m.max(a.abs()));
                            assert!(
                                (f - a).abs() < 0.03 * largest,
                                "{} projection {s}: {f} for {a}",
                                k.name
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn mismatched_projections_are_rejected_before_writing() {
    let cpu = Cpu::with_threads(1).unwrap();
    let mut scratch = Scratch::new();
    let bytes = [0; 4 * 6];
    let w = Matrix::new(DType::F32, 2, 3, &bytes).unwrap();
    let next = Matrix::new(DType::F32, 3, 2, &bytes).unwrap();
    let factor = Factor { w, rank: 2 };
    let x = [1.0; 3];
    let mut run = |n: usize, x: &[f32], factors: &[Factor<'_>], w, input, y: usize| {
        let mut numbers = [7.0; 9];
        let y = &mut numbers[..y];
        let outcome = cpu.project(
            n,
            x,
            factors,
            &mut [Projection { w, input, y }],
            &mut scratch,
        );
        if outcome.is_err() {
            assert_eq!(numbers, [7.0; 9]);
        }
        outcome.map_err(|e| (e.argument, e.expected, e.actual))
    };
    let inner = Input::Inner(0);
    assert_eq!(run(1, &x, &[factor], next, inner, 3), Ok(()));
    assert_eq!(run(3, &[1.0; 9], &[factor], next, inner, 9), Ok(()));
    assert_eq!(run(0, &[], &[factor], next, inner, 0), Ok(()));
    let error = |what, expected, found| Err((what, expected, found));
    assert_eq!(
        run(1, &x[..2], &[], w, Input::Vector, 2),
        error("x (numbers)", 3, 2)
    );
    assert_eq!(
        run(1, &x[..2], &[factor], next, inner, 3),
        error("x (numbers)", 3, 2)
    );
    assert_eq!(
        run(1, &x, &[], w, Input::Vector, 3),
        error("y (numbers)", 2, 3)
    );
    assert_eq!(
        run(1, &x, &[factor], next, inner, 2),
        error("y (numbers)", 3, 2)
    );
    assert_eq!(
        run(1, &x, &[factor], w, inner, 2),
        error("inner vector (numbers)", 3, 2)
    );
    let beyond = Input::Inner(1);
    assert_eq!(
        run(1, &x, &[factor], next, beyond, 3),
        error("factor (index, below)", 1, 1)
    );
    let high = Factor { w, rank: 3 };
    assert_eq!(
        run(1, &x, &[high], next, inner, 3),
        error("rank (at most)", 2, 3)
    );
    assert!(run(usize::MAX, &x, &[factor], next, inner, 3).is_err());
}

//! Integer products of quantised weights and several vectors.

use super::product_tests::{INTEGER, check};
use super::*;

fn tables() -> impl Iterator<Item = &'static Kernels> {
    available().into_iter().filter(|k| k.int_gemm.is_some())
}

fn product(k: &'static Kernels, threads: usize, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let n = x.len() / w.cols();
    let mut y = vec![f32::NAN; n * w.rows()];
    let [pool] = pools([threads]);
    on(k, &pool)
        .matmul(w, n, x, &mut y, &mut Scratch::new())
        .unwrap();
    y
}

#[test]
fn products_match_the_reference_on_any_number_of_threads() {
    let mut random = Random(41);
    for dtype in INTEGER {
        let widths: &[usize] = match dtype.block_len() {
            32 => &[1, 2, 7, 8, 9, 17, 33],
            _ => &[1, 2, 3, 5],
        };
        for (i, cols) in widths
            .iter()
            .map(|blocks| blocks * dtype.block_len())
            .enumerate()
        {
            let shapes: &[(usize, usize)] = match i {
                // Every remainder of a tile, and of a panel's rows.
                0 => &[(1, 2), (7, 3), (8, 4), (9, 5), (16, 6), (33, 512)],
                1 => &[(17, 17), (31, 7), (32, 13), (130, 8)],
                2 => &[(33, 9), (300, 2)],
                _ => &[(70, 10), (1, 11)],
            };
            for &(rows, n) in shapes {
                let bytes = random.matrix(dtype, rows, cols);
                let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
                let x = random.numbers(n * cols);
                for k in tables() {
                    let what = format!("{} {dtype} {rows}x{cols} n {n}", k.name);
                    let y = product(k, 1, w, &x);
                    for (t, (x, y)) in x.chunks(cols).zip(y.chunks(rows)).enumerate() {
                        check(w, x, y, &format!("{what} [{t}]"));
                    }
                    for threads in [2, 3, 4] {
                        assert_eq!(product(k, threads, w, &x), y, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn long_rows_agree_with_the_reference() {
    let mut random = Random(42);
    let (rows, cols) = (9, 8192);
    for dtype in INTEGER {
        let bytes = random.matrix(dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let x = random.numbers(2 * cols);
        for k in tables() {
            let y = product(k, 2, w, &x);
            for (x, y) in x.chunks(cols).zip(y.chunks(rows)) {
                check(w, x, y, &format!("{} {dtype}", k.name));
            }
        }
    }
}

#[test]
fn column_prefixes_match_separate_matrices() {
    let mut random = Random(43);
    for dtype in [DType::Q8_0, DType::Q6K] {
        let (rows, cols, n) = (400, 1024, 5);
        let bytes = random.matrix(dtype, rows, cols);
        let wide = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let w = wide.first_cols(768).unwrap();
        let alone: Vec<u8> = (0..rows).flat_map(|i| w.row(i)).copied().collect();
        let alone = Matrix::new(dtype, rows, 768, &alone).unwrap();
        let x = random.numbers(n * 768);
        for k in tables() {
            assert_eq!(product(k, 2, w, &x), product(k, 2, alone, &x), "{}", k.name);
        }
    }
}

#[test]
fn results_depend_on_row_and_vector_alone() {
    let mut random = Random(44);
    for dtype in INTEGER {
        let (rows, cols, n) = (37, 768, 17);
        let bytes = random.matrix(dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let mut x = random.numbers(n * cols);
        for k in tables() {
            let all = product(k, 2, w, &x);
            for t in 0..n - 1 {
                let two = product(k, 1, w, &x[t * cols..][..2 * cols]);
                assert_eq!(two, all[t * rows..][..2 * rows], "{} {dtype} {t}", k.name);
            }
            let row = product(k, 1, w.row_range(20, 1).unwrap(), &x);
            for t in 0..n {
                assert_eq!(row[t], all[t * rows + 20], "{} {dtype} {t}", k.name);
            }
            // A non-finite number makes only its own products NaN.
            for (odd, at) in [
                (f32::NAN, 3),
                (f32::INFINITY, 300),
                (f32::NEG_INFINITY, 767),
            ] {
                let before = std::mem::replace(&mut x[5 * cols + at], odd);
                let found = product(k, 1, w, &x);
                x[5 * cols + at] = before;
                for (t, (found, all)) in found.chunks(rows).zip(all.chunks(rows)).enumerate() {
                    if t == 5 {
                        assert!(found.iter().all(|y| y.is_nan()), "{} {dtype} {odd}", k.name);
                    } else {
                        assert_eq!(found, all, "{} {dtype} {odd}", k.name);
                    }
                }
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    let mut random = Random(45);
    let cols = 512;
    for dtype in INTEGER {
        for (fill, bytes) in extreme_rows(&mut random, dtype, cols) {
            let w = Matrix::new(dtype, 1, cols, &bytes).unwrap();
            let mut x = [1.0; 7 * 512];
            x[512..].fill(-1.0);
            for k in tables() {
                let y = product(k, 1, w, &x);
                for (x, y) in x.chunks(cols).zip(y.chunks(1)) {
                    check(w, x, y, &format!("{} {dtype} {fill:#x}", k.name));
                }
            }
        }
    }
}

#[test]
fn several_vectors_match_one_vector() {
    let mut random = Random(46);
    for dtype in INTEGER {
        let (rows, cols) = (33, 1024);
        let bytes = random.matrix(dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let x = random.numbers(2 * cols);
        for k in tables() {
            let one = product(k, 1, w, &x[..cols]);
            let largest = one.iter().fold(0.0, |m: f32, y| m.max(y.abs()));
            for (one, two) in one.iter().zip(product(k, 1, w, &x)) {
                assert!(
                    (one - two).abs() <= 2e-6 * largest,
                    "{} {dtype}: {two} for {one}",
                    k.name
                );
            }
        }
    }
}

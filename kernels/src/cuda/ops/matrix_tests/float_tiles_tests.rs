use super::tiles_tests::bits;
use super::*;
use crate::Matrix;
use crate::cpu::Input;
use crate::reference;

const FLOAT: [DType; FLOATS] = [DType::F32, DType::F16, DType::BF16];

fn stored(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let to = |&x: &f32| match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        _ => half::bf16::from_f32(x).to_le_bytes().to_vec(),
    };
    numbers.iter().flat_map(to).collect()
}

fn check(dtype: DType, [rows, cols]: [usize; 2], w: &[f32], x: &[f32], what: &str) -> Vec<f32> {
    let bytes = stored(dtype, w);
    let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
    let device = EmulatedDevice::new(rows as u64);
    let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
    let mut workspace = Workspace::default();
    let y = products(&device, &held, x, &mut workspace);
    let mut numbers = vec![0.0; rows * cols];
    for (i, row) in numbers.chunks_exact_mut(cols.max(1)).enumerate() {
        reference::embed(w, i, row).unwrap();
    }
    for (t, y) in y.chunks_exact(rows).enumerate() {
        for (i, &y) in y.iter().enumerate() {
            let (row, x) = (&numbers[i * cols..][..cols], &x[t * cols..][..cols]);
            let terms = || {
                row.iter()
                    .zip(x)
                    .map(|(&w, &x)| f64::from(w) * f64::from(x))
            };
            let (sum, magnitude) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            let error = (f64::from(y) - sum).abs();
            assert!(
                error <= PRODUCT * magnitude + 1e-42,
                "{dtype} {what}, row {i} of {rows}, vector {t}: {y} for {sum}"
            );
        }
    }
    y
}

#[test]
fn tiled_float_products_match_double_precision() {
    let mut random = Random(41);
    for dtype in FLOAT {
        for (rows, cols, n) in [
            (1, 1, 32),
            (5, 7, 33),
            (64, 8, 40),
            (65, 31, 64),
            (127, 32, 65),
            (128, 33, 36),
            (130, 260, 70),
            (3, 1030, 129),
        ] {
            let (w, x) = (random.numbers(rows * cols), random.numbers(n * cols));
            check(dtype, [rows, cols], &w, &x, "of any shape");
        }
    }
}

#[test]
fn split_precision_keeps_values_of_any_magnitude() {
    let mut random = Random(42);
    let (rows, cols, n) = (20, 96, 34);
    for dtype in FLOAT {
        let w = random.numbers(rows * cols);
        for (what, exponents) in [
            ("large", [100, 100]),
            ("beyond half precision", [17, 17]),
            ("small", [-30, -30]),
            ("tiny", [-110, -110]),
            ("the smallest", [-140, -140]),
            ("the largest", [120, 120]),
            ("next to each other", [-12, 12]),
            ("as outliers are", [0, 10]),
        ] {
            let magnitude = |i: usize| 2.0_f32.powi(exponents[usize::from(i.is_multiple_of(7))]);
            let x = random.numbers(n * cols);
            let x: Vec<f32> = (0..n * cols).map(|i| x[i] * magnitude(i)).collect();
            check(dtype, [rows, cols], &w, &x, what);
        }
        let mut x = random.numbers(n * cols);
        x[5] = f32::MAX;
        x[n * cols - 1] = -f32::MAX;
        let quarter: Vec<f32> = w.iter().map(|w| w / 4.0).collect();
        check(dtype, [rows, cols], &quarter, &x, "the largest of all");
        if dtype == DType::F32 {
            let mut large = w.clone();
            large[cols + 7] = f32::MAX;
            let x: Vec<f32> = x.iter().map(|x| x.clamp(-0.25, 0.25)).collect();
            check(dtype, [rows, cols], &large, &x, "the largest weight of all");
        }
        let x = random.numbers(n * cols);
        for hidden in 0..3 {
            let magnitudes: [f32; 3] = std::array::from_fn(|of| {
                if of < hidden {
                    0.0
                } else {
                    [1e30, 1.0, 1e-30][of]
                }
            });
            let of = |i: usize| x[i] * magnitudes[i % cols / 32];
            let x: Vec<f32> = (0..n * cols).map(of).collect();
            check(dtype, [rows, cols], &w, &x, "apart");
        }
    }
}

#[test]
fn integer_valued_products_are_exact() {
    let mut random = Random(43);
    let (rows, cols, n) = (70, 64, 33);
    let mut whole = |count: usize, below: u32| -> Vec<f32> {
        let of = |_| (random.bits() % below) as f32 - (below / 2) as f32;
        (0..count).map(of).collect()
    };
    let (w, x) = (whole(rows * cols, 200), whole(n * cols, 1200));
    for dtype in FLOAT {
        let y = check(dtype, [rows, cols], &w, &x, "whole");
        for (t, y) in y.chunks_exact(rows).enumerate() {
            for (i, &y) in y.iter().enumerate() {
                let (w, x) = (&w[i * cols..][..cols], &x[t * cols..][..cols]);
                let sum: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w * x)).sum();
                assert_eq!(f64::from(y), sum, "{dtype}");
            }
        }
    }
}

#[test]
fn factored_float_projections_match_separate_products() {
    let mut random = Random(44);
    let device = EmulatedDevice::new(44);
    let mut workspace = Workspace::default();
    let (width, rows, rank, n, matrix_rows) = (52, 75, 70, 40, [131, 9]);
    for dtype in FLOAT {
        let make = |random: &mut Random, rows: usize, cols: usize| {
            stored(dtype, &random.numbers(rows * cols))
        };
        let a_bytes = make(&mut random, 90, width);
        let a = Matrix::new(dtype, 90, width, &a_bytes).unwrap();
        let b_bytes = matrix_rows.map(|rows| make(&mut random, rows + 3, 90));
        let b = [0, 1].map(|i| Matrix::new(dtype, matrix_rows[i] + 3, 90, &b_bytes[i]).unwrap());
        let hold = |w| DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        let (held_a, held_b) = (hold(a), b.map(hold));
        let x = random.numbers(n * width);
        let there = put(&device, &x);
        let before = matrix_rows.map(|rows| random.numbers(n * rows));
        let y = [0, 1].map(|i| put(&device, &before[i]));
        let factors = [Factor {
            matrix: &held_a,
            rows,
            rank,
        }];
        let projections = [0, 1].map(|i| Projection {
            matrix: &held_b[i],
            rows: matrix_rows[i],
            cols: rows,
            input: Input::Inner(0),
            y: &y[i],
            accumulate: i == 0,
        });
        project(&device, n, &there, &factors, &projections, &mut workspace).unwrap();
        let leading = hold(a.first_rows(rows).unwrap());
        let mut inner = products(&device, &leading, &x, &mut workspace);
        inner
            .chunks_exact_mut(rows)
            .for_each(|row| row[rank..].fill(0.0));
        for i in [0, 1] {
            let second = b[i].first_rows(matrix_rows[i]).unwrap();
            let second = hold(second.first_cols(rows).unwrap());
            let alone = products(&device, &second, &inner, &mut workspace);
            let expected = alone.iter().zip(&before[i]);
            let expected = expected.map(|(&y, &before)| if i == 0 { before + y } else { y });
            let found = get(&device, &y[i], n * matrix_rows[i]);
            assert_eq!(bits(&found), bits(&expected.collect::<Vec<_>>()), "{dtype}");
        }
    }
}

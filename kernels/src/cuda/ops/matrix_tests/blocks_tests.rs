//! Tests of block-quantised matrices of every type.

use htc_formats::DType;
use htc_formats::block::{decode, encode, writable_types};

use super::*;
use crate::{Matrix, reference};

pub(super) fn matrix(random: &mut Random, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rows * cols / dtype.block_len() {
        bytes.extend(block(random, dtype));
    }
    bytes
}

fn block(random: &mut Random, dtype: DType) -> Vec<u8> {
    let (length, size) = (dtype.block_len(), dtype.block_bytes());
    if writable_types().contains(&dtype) {
        let mut bytes = vec![0; size];
        encode(dtype, &random.numbers(length), &mut bytes).unwrap();
        return bytes;
    }
    if dtype == DType::F64 {
        return f64::from(random.number()).to_le_bytes().to_vec();
    }
    let mut values = vec![0.0; length];
    loop {
        let mut bytes = random.bytes(size);
        if dtype == DType::Q8K {
            bytes[..4].copy_from_slice(&random.number().to_le_bytes());
        }
        decode(dtype, &bytes, &mut values).unwrap();
        let moderate = |v: &f32| v.abs() < 1e20;
        if values.iter().all(moderate) {
            return bytes;
        }
    }
}

/// Tolerance: half a quantisation step of `x` per element, plus rounding.
pub(super) fn check(w: Matrix<'_>, x: &[f32], y: &[f32], what: &str) {
    let rows = w.rows();
    let integers = w.dtype().block_len() > 1;
    let mut expected = vec![0.0; rows];
    let seen: Vec<f64> = if integers {
        reference::quantised_matmul(w, 1, x, &mut expected).unwrap();
        reference::quantised_vector(x)
    } else {
        reference::matvec(w, x, &mut expected).unwrap();
        x.iter().map(|&x| f64::from(x)).collect()
    };
    let mut row = vec![0.0; w.cols()];
    for (i, (&found, &expected)) in y.iter().zip(&expected).enumerate() {
        reference::embed(w, i, &mut row).unwrap();
        let largest = |row: &[f32]| row.iter().fold(0.0, |m: f64, w| m.max(f64::from(w.abs())));
        let magnitude: f64 = row
            .chunks(16)
            .zip(seen.chunks(16))
            .map(|(w, x)| largest(w) * x.iter().map(|x| x.abs()).sum::<f64>())
            .sum();
        let error = (f64::from(found) - f64::from(expected)).abs();
        assert!(
            error <= PRODUCT * magnitude + 1e-35,
            "{what}, row {i}: {found} for {expected}"
        );
    }
}

fn widths(dtype: DType) -> &'static [usize] {
    match dtype.block_len() {
        1 => &[0, 1, 7, 8, 33, 260, 1030],
        32 => &[32, 96, 1056],
        _ => &[256, 1280],
    }
}

#[test]
fn products_of_every_type_agree_with_the_reference() {
    let mut random = Random(1);
    let mut workspace = Workspace::default();
    for &dtype in DType::ALL {
        for &cols in widths(dtype) {
            for (rows, n) in [(1, 1), (5, 2), (7, 3), (3, 9)] {
                let bytes = matrix(&mut random, dtype, rows, cols);
                let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
                let device = EmulatedDevice::new(random.bits().into());
                let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
                assert_eq!([held.rows(), held.cols()], [rows, cols]);
                let x = random.numbers(n * cols);
                let y = allocate(&device, n * rows);
                let x_there = put(&device, &x);
                product(&device, 0..n, &held, &x_there, &y, &mut workspace).unwrap();
                let y = get(&device, &y, n * rows);
                for (t, y) in y.chunks_exact(rows).enumerate() {
                    let what = format!("{dtype} {rows}x{cols} [{t} of {n}]");
                    check(w, &x[t * cols..][..cols], y, &what);
                }
            }
        }
    }
}

#[test]
fn block_rows_are_independent_of_the_batch() {
    let mut random = Random(2);
    let wide = [DType::F16, DType::Q8_0, DType::Q4K].map(|dtype| (dtype, 2, 4096));
    let all = DType::ALL.iter().map(|&dtype| (dtype, 3, 256));
    for (dtype, rows, cols) in all.chain(wide) {
        let bytes = matrix(&mut random, dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        let x = random.numbers(17 * cols);
        rows_are_the_same_in_any_batch(&device, &held, &x, dtype.name());
    }
}

#[test]
fn block_rows_are_dequantised_exactly() {
    let mut random = Random(3);
    for &dtype in DType::ALL {
        let (rows, cols) = (6, 3 * dtype.block_len().max(15));
        let bytes = matrix(&mut random, dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        let tokens = [5, 0, 3, 3];
        for scale in [None, Some(11.313_708)] {
            let out = allocate(&device, tokens.len() * cols);
            dequantise_rows(&device, &held, &tokens, scale, &out).unwrap();
            let found = get(&device, &out, tokens.len() * cols);
            let mut row = vec![0.0; cols];
            for (found, &token) in found.chunks_exact(cols).zip(&tokens) {
                reference::embed(w, token as usize, &mut row).unwrap();
                row.iter_mut().for_each(|x| *x *= scale.unwrap_or(1.0));
                assert_eq!(found, row, "{dtype} row {token}");
            }
        }
        let out = allocate(&device, cols);
        assert!(dequantise_rows(&device, &held, &[6], None, &out).is_err());
        assert!(dequantise_rows(&device, &held, &[1, 2], None, &out).is_err());
    }
}

#[test]
fn more_rows_than_a_launch_are_dequantised() {
    let mut random = Random(4);
    let bytes = matrix(&mut random, DType::Q8_0, 300, 32);
    let w = Matrix::new(DType::Q8_0, 300, 32, &bytes).unwrap();
    let device = EmulatedDevice::new(1);
    let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
    let tokens: Vec<u32> = (0..260).map(|_| random.bits() % 300).collect();
    let out = allocate(&device, 260 * 32);
    dequantise_rows(&device, &held, &tokens, None, &out).unwrap();
    let found = get(&device, &out, 260 * 32);
    let mut row = [0.0; 32];
    for (found, &token) in found.chunks_exact(32).zip(&tokens) {
        reference::embed(w, token as usize, &mut row).unwrap();
        assert_eq!(found, row);
    }
}

#[test]
fn non_finite_input_makes_products_non_finite() {
    let mut random = Random(5);
    let mut workspace = Workspace::default();
    for &dtype in DType::ALL {
        let cols = 512;
        let bytes = matrix(&mut random, dtype, 3, cols);
        let w = Matrix::new(dtype, 3, cols, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.numbers(3 * cols);
            x[cols + 300] = odd;
            let y = products(&device, &held, &x, &mut workspace);
            let finite: Vec<bool> = y.iter().map(|y| y.is_finite()).collect();
            // A finite non-zero value times infinity is infinite, zero times infinity is NaN.
            assert_eq!(finite[..3], [true; 3], "{dtype}");
            assert_eq!(finite[3..6], [false; 3], "{dtype} {odd}: {y:?}");
            assert_eq!(finite[6..], [true; 3], "{dtype}");
        }
        let tiny = vec![1e-38; cols];
        let y = products(&device, &held, &tiny, &mut workspace);
        if dtype.block_len() > 1 {
            assert_eq!(y, [0.0; 3], "{dtype}");
        }
        let zero = products(&device, &held, &vec![0.0; cols], &mut workspace);
        assert_eq!(zero, [0.0; 3], "{dtype}");
    }
}

#[test]
fn extremes_do_not_overflow() {
    let mut workspace = Workspace::default();
    let device = EmulatedDevice::new(6);
    for dtype in OWN[FLOATS..].iter().copied().chain([DType::Q2K]) {
        let cols = 512;
        for fill in [0xff, 0x00, 0x80, 0x7f] {
            let mut bytes = vec![fill; dtype.row_bytes(cols).unwrap()];
            let one = half::f16::ONE.to_le_bytes();
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                let places: &[usize] = match dtype {
                    DType::Q4K | DType::Q5K => &[0, 2],
                    DType::Q6K => &[208],
                    DType::Q2K => &[80, 82],
                    _ => &[0],
                };
                for &at in places {
                    block[at..at + 2].copy_from_slice(&one);
                }
            }
            let w = Matrix::new(dtype, 1, cols, &bytes).unwrap();
            let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
            for x in [[1.0; 512], [-1.0; 512]] {
                let y = products(&device, &held, &x, &mut workspace);
                check(w, &x, &y, &format!("{dtype} {fill:#x}"));
            }
        }
    }
}

#[test]
fn device_size_matches_the_estimate() {
    let mut random = Random(7);
    let device = EmulatedDevice::new(7);
    for &dtype in DType::ALL {
        let bytes = matrix(&mut random, dtype, 64, 512);
        let w = Matrix::new(dtype, 64, 512, &bytes).unwrap();
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        let foreseen = DeviceMatrix::<EmulatedDevice>::estimated_bytes(MatrixSource::Blocks(w));
        assert_eq!(held.bytes(), foreseen);
        if held.stored_format() == dtype.name() {
            assert!(held.bytes() < bytes.len() + 4 * 256, "{dtype}");
        }
        assert_eq!(held.stored_format() == dtype.name(), OWN.contains(&dtype));
    }
}

#[test]
fn products_are_independent_of_thread_order() {
    let mut random = Random(8);
    let bytes = matrix(&mut random, DType::Q4K, 9, 4096);
    let w = Matrix::new(DType::Q4K, 9, 4096, &bytes).unwrap();
    let x = random.numbers(3 * 4096);
    let mut found = (0..6).map(|seed| {
        let device = EmulatedDevice::new(seed);
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        products(&device, &held, &x, &mut Workspace::default())
    });
    let first = found.next().unwrap();
    assert!(found.all(|other| other == first));
}

#[test]
fn large_block_matrix_is_packed_by_any_threads() {
    let mut random = Random(15);
    let pool = Pool::new(3).unwrap();
    for (dtype, cols) in [
        (DType::F16, 1001),
        (DType::Q8_0, 1024),
        (DType::Q5K, 1024),
        (DType::Q6K, 1024),
        (DType::Q5_1, 1024),
    ] {
        let format = Format::for_dtype(dtype);
        let of_row = format.row_bytes(format.stride(cols)).iter().sum::<usize>();
        let at_a_time = STAGING_BYTES / of_row;
        let rows = 2 * at_a_time + 7;
        let bytes = matrix(&mut random, dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let ends = [
            0,
            at_a_time - 1,
            at_a_time,
            2 * at_a_time - 1,
            2 * at_a_time,
            rows - 1,
        ];
        let tokens = ends.map(|row| row as u32);
        for pool in [None, Some(&pool)] {
            let held = DeviceMatrix::new_with_pool(pool, &device, MatrixSource::Blocks(w)).unwrap();
            let out = allocate(&device, tokens.len() * cols);
            dequantise_rows(&device, &held, &tokens, None, &out).unwrap();
            let found = get(&device, &out, tokens.len() * cols);
            let mut row = vec![0.0; cols];
            for (found, &token) in found.chunks_exact(cols).zip(&tokens) {
                reference::embed(w, token as usize, &mut row).unwrap();
                assert_eq!(found, row, "{dtype} row {token} of {rows}");
            }
        }
    }
}

#[test]
fn error_of_a_piece_is_returned() {
    let pool = Pool::new(3).unwrap();
    for pool in [None, Some(&pool)] {
        let begun = std::sync::atomic::AtomicUsize::new(0);
        let failed = run_pieces(pool, 1000, |piece| {
            begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            match piece {
                5 => Err(crate::error::ShapeError::new("piece", 0, piece).into()),
                _ => Ok(()),
            }
        });
        assert!(matches!(failed, Err(DeviceError::Shape(error)) if error.actual == 5));
        assert!(begun.into_inner() >= 6);
        assert_eq!(run_pieces(pool, 1000, |_| Ok(())), Ok(()));
    }
}

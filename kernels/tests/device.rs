//! GPU operations against the double-precision reference.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

#[path = "driver/matrices.rs"]
pub mod matrices;

use htc_formats::DType;
use htc_formats::bands::{
    Code, CodeKind, Codes, ColumnGroupMatrix, ColumnGroupWriter, ColumnGroups, QUAD,
    QUADS_PER_GROUP,
};
use htc_formats::block::encode;
use htc_kernels::Matrix;
use htc_kernels::cuda::driver::{CudaOptions, DeviceSelector};
use htc_kernels::cuda::ops::{DeviceMatrix, MatrixSource};
use htc_kernels::cuda::{
    Cuda, CudaLinear, Device, DeviceError, DeviceMemory as _, StepCounts, ops,
};
use htc_kernels::linear::{LinearAlgebra, ProductShape};
use htc_kernels::reference;
use matrices::{assert_close, assert_orthonormal, matmul, numbers, transposed};

/// Opens the first device. Without a GPU prints a message and returns `None`; fails if
/// HTC_NEED_CUDA is set.
fn open_device(change: impl Fn(&mut CudaOptions<'_>)) -> Option<Cuda> {
    let mut options = CudaOptions::default();
    change(&mut options);
    match Cuda::open(DeviceSelector::Index(0), options) {
        Ok(device) => Some(device),
        Err(error) => {
            let needed = std::env::var_os("HTC_NEED_CUDA").is_some();
            assert!(error.is_unavailable() && !needed, "{error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn upload(device: &Cuda, numbers: &[f32]) -> <Cuda as Device>::Memory {
    ops::upload_floats(device, numbers).unwrap()
}

fn download(device: &Cuda, memory: &<Cuda as Device>::Memory, numbers: usize) -> Vec<f32> {
    ops::download_floats(device, memory, numbers).unwrap()
}

fn sine_numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

#[test]
fn rms_norm_matches_the_reference() {
    let Some(device) = open_device(|_| ()) else {
        return;
    };
    let (rows, width) = (3, 1000);
    let (x, weight) = (sine_numbers(rows * width), sine_numbers(width));
    let [on, by] = [&x, &weight].map(|numbers| upload(&device, numbers));
    let out = device.allocate(4 * rows * width).unwrap();
    let shape = ops::RowsShape { rows, cols: width };
    ops::rms_norm(&device, shape, &on, &by, 1e-5, &out).unwrap();
    let mut expected = vec![0.0; rows * width];
    reference::rms_norm(&x, &weight, 1e-5, &mut expected).unwrap();
    for (found, expected) in download(&device, &out, rows * width).iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0));
    }
}

#[test]
fn bytes_come_back_as_they_went() {
    let Some(device) = open_device(|_| ()) else {
        return;
    };
    let bytes: Vec<u8> = (0..60_000_001_usize)
        .map(|i| ((i * i) >> 7) as u8)
        .collect();
    let [a, b] = [0, 1].map(|_| device.allocate(bytes.len()).unwrap());
    assert_eq!(a.address() % 256, 0);
    device.upload(&bytes, &a, 0).unwrap();
    device.copy(a.at(1), b.at(0), bytes.len() - 1).unwrap();
    drop(a);
    let mut found = vec![0; bytes.len() - 1];
    device.download(&b, 0, &mut found).unwrap();
    assert!(found == bytes[1..]);
}

#[test]
fn replayed_steps_use_the_new_arguments() {
    let Some(device) = open_device(|_| ()) else {
        return;
    };
    let [x, y, z] = [1.0, 10.0, 100.0].map(|value| upload(&device, &[value; 600]));
    let step = |second, numbers| {
        device.begin_step().unwrap();
        ops::add(&device, 600, &x, &y).unwrap();
        ops::add(&device, numbers, &x, second).unwrap();
        device.end_step().unwrap();
        download(&device, &x, 600)
    };
    assert_eq!(step(&y, 600), [21.0; 600]);
    assert_eq!(step(&y, 600), [41.0; 600]);
    let found = step(&z, 300);
    assert_eq!(found[..300], [151.0; 300]);
    assert_eq!(found[300..], [51.0; 300]);
    let StepCounts {
        replayed,
        updated,
        changed_operations: changed,
        created: made,
        launched: plain,
        interrupted,
        ..
    } = device.step_counts();
    assert_eq!(
        [replayed, updated, changed, made, plain, interrupted],
        [1, 1, 1, 1, 0, 0]
    );
}

#[test]
fn large_shared_memory_is_available() {
    let Some(device) = open_device(|_| ()) else {
        return;
    };
    let size = 1 << 14;
    let numbers = sine_numbers(size);
    let x = upload(&device, &numbers);
    ops::hadamard(&device, size, size, &x).unwrap();
    let mut expected: Vec<f64> = numbers.iter().map(|&x| x.into()).collect();
    reference::hadamard(&mut expected, size).unwrap();
    for (found, expected) in download(&device, &x, size).into_iter().zip(expected) {
        assert!(
            (f64::from(found) - expected).abs() < 1e-4,
            "{found} for {expected}"
        );
    }
}

#[test]
fn excessive_allocations_report_sizes() {
    let Some(device) = open_device(|_| ()) else {
        return;
    };
    let [free, total] = device.memory_info().unwrap();
    assert!(0 < free && free <= total);
    match device.allocate(2 * total).unwrap_err() {
        DeviceError::OutOfMemory {
            needed, total: all, ..
        } => assert_eq!((needed, all), (2 * total, total)),
        other => panic!("{other}"),
    }
    assert_eq!(
        download(&device, &upload(&device, &[1.0, 2.0]), 2),
        [1.0, 2.0]
    );
}

#[test]
fn matrices_are_decomposed_and_multiplied_in_double_precision() {
    let Some(device) = open_device(|_| ()) else {
        return;
    };
    let linear = match device.linear() {
        Ok(linear) => linear,
        Err(error) => {
            let wanted = std::env::var_os("HTC_NEED_CUDA").is_some();
            let without = std::env::var_os("HTC_WITHOUT_LINEAR").is_some();
            assert!(!wanted || without, "{error} (or set HTC_WITHOUT_LINEAR)");
            eprintln!("skipped: {error}");
            return;
        }
    };
    let largest = if device.name().starts_with("Emulated") {
        65
    } else {
        1500
    };
    let orders = [1, 2, 33, 65, 400, 1500];
    for n in orders.into_iter().filter(|n| *n <= largest) {
        for norm in [1.0, 1e-20, 1e20] {
            symmetric_matrices_are_decomposed(&linear, n, norm);
            tall_matrices_are_decomposed(&linear, n, norm);
        }
    }
    let (n, rows) = (largest, largest + largest / 2);
    let decompose = || {
        let (mut vectors, mut values) = (symmetric(n, 1.0), vec![0.0; n]);
        (linear.symmetric_eigen(&mut vectors, &mut values, true)).unwrap();
        let (mut singular, mut right) = (vec![0.0; n], vec![0.0; n * n]);
        let tall = scaled(rows * n, 1.0);
        (linear.right_singular_vectors(&tall, &mut singular, &mut right)).unwrap();
        [vectors, values, singular, right]
    };
    let first = decompose();
    let others = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(decompose));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(others.iter().all(|other| *other == first));
}

fn scaled(count: usize, norm: f64) -> Vec<f64> {
    let numbers = numbers(count as u64, count).into_iter();
    numbers.map(|x| norm * x).collect()
}

fn symmetric(n: usize, norm: f64) -> Vec<f64> {
    let x = scaled(n * n, norm);
    let pairs = x.iter().zip(transposed(&x, n));
    pairs.map(|(a, b)| (a + b) / 2.0).collect()
}

fn bound(n: usize) -> f64 {
    1e-13 * n as f64
}

fn symmetric_matrices_are_decomposed(linear: &CudaLinear, n: usize, norm: f64) {
    let what = |what: &str| format!("{what} of {n} at {norm:e}");
    let matrix = symmetric(n, norm);
    let (mut vectors, mut values) = (matrix.clone(), vec![0.0; n]);
    (linear.symmetric_eigen(&mut vectors, &mut values, true)).unwrap();
    assert!(values.is_sorted(), "{values:?}");
    assert_orthonormal(&vectors, n, bound(n), &what("eigenvectors"));
    let mut stretched = vectors.clone();
    for (column, value) in stretched.chunks_exact_mut(n).zip(&values) {
        column.iter_mut().for_each(|x| *x *= value);
    }
    let bound = bound(n) * norm;
    let product = matmul(&matrix, &vectors, [n, n, n]);
    assert_close(&product, &stretched, bound, &what("A V"));
    let (mut alone, mut destroyed) = (vec![0.0; n], matrix.clone());
    (linear.symmetric_eigen(&mut destroyed, &mut alone, false)).unwrap();
    assert_close(&alone, &values, bound, &what("eigenvalues"));
    let shape = ProductShape {
        rows: n,
        inner: n,
        columns: n,
    };
    let mut found = vec![0.0; n * n];
    (linear.multiply(shape, &matrix, &vectors, &mut found)).unwrap();
    assert_close(&found, &product, bound, &what("a product"));
    let mut gram = linear.new_gram(n).unwrap();
    gram.add(2.0, &matrix).unwrap();
    let mut sums = vec![0.0; n * n];
    gram.read(0, &mut sums).unwrap();
    let mut expected = matmul(&matrix, &matrix, [n, n, n]);
    for (column, numbers) in expected.chunks_exact_mut(n).enumerate() {
        numbers.iter_mut().for_each(|x| *x *= 2.0);
        numbers[..column].fill(0.0);
    }
    assert_close(&sums, &expected, bound * norm, &what("sums"));
}

fn tall_matrices_are_decomposed(linear: &CudaLinear, n: usize, norm: f64) {
    let what = |what: &str| format!("{what} of {n} at {norm:e}");
    for rows in [n, n + n / 8, 2 * n] {
        let tall = scaled(rows * n, norm);
        let (mut values, mut right) = (vec![0.0; n], vec![0.0; n * n]);
        (linear.right_singular_vectors(&tall, &mut values, &mut right)).unwrap();
        assert!(values.iter().rev().is_sorted(), "{values:?}");
        let vectors = transposed(&right, n);
        assert_orthonormal(&vectors, n, bound(n), &what("singular vectors"));
        let lengths = matmul(&tall, &vectors, [rows, n, n]);
        let length = |column: &[f64]| {
            let squares = column.iter().map(|x| (x / norm).powi(2));
            norm * squares.sum::<f64>().sqrt()
        };
        let lengths: Vec<f64> = lengths.chunks_exact(rows).map(length).collect();
        let bound = bound(n) * norm * (rows as f64).sqrt();
        assert_close(&lengths, &values, bound, &what("A v"));
    }
}

fn random_column_groups(codes: &Codes, rows: usize) -> Vec<u8> {
    let mut packer = ColumnGroupWriter::new(codes, rows);
    let mut state = 7_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for (band, code) in codes.iter().enumerate() {
        for row in 0..rows {
            packer.set_row_scale(code.kind(), row, 0.01).unwrap();
        }
        for strip in 0..packer.tiles() {
            let padded = packer.tile_rows(strip);
            if code.kind() == CodeKind::Codebook {
                let scales: Vec<u8> = (0..padded).map(|_| byte() % 64).collect();
                packer.set_codebook_scales(strip, band, &scales);
            }
            for quad in 0..QUADS_PER_GROUP {
                let weights: Vec<u8> = (0..padded * QUAD).map(|_| byte()).collect();
                if code.kind() == CodeKind::Codebook {
                    let mask = ((1_u16 << code.bits()) - 1) as u8;
                    let levels: Vec<u8> = weights.iter().map(|byte| byte & mask).collect();
                    packer.set_codebook_codes(strip, band, quad, &levels);
                } else {
                    let states: Vec<u16> = weights.into_iter().map(u16::from).collect();
                    packer.set_trellis_states(strip, band, quad, &states);
                }
            }
        }
        for column in 0..32 {
            if code.kind() == CodeKind::Trellis {
                let scale = 1.0 + column as f32 / 64.0;
                packer.set_column_scale(band * 32 + column, scale).unwrap();
            }
        }
    }
    packer.finish()
}

#[test]
fn integer_products_are_identical_with_and_without_tensor_cores() {
    let Some(with) = open_device(|options| options.tensor_cores = true) else {
        return;
    };
    let without = open_device(|options| options.tensor_cores = false).unwrap();
    let (rows, cols, n) = (130, 768, 70);
    let x = sine_numbers(n * cols);
    let both = |source: MatrixSource<'_>| {
        [&with, &without].map(|device| {
            let held = DeviceMatrix::new(device, source).unwrap();
            let (x, y) = (upload(device, &x), device.allocate(4 * n * rows).unwrap());
            let mut workspace = ops::Workspace::default();
            ops::product(device, 0..n, &held, &x, &y, &mut workspace).unwrap();
            download(device, &y, n * rows)
        })
    };
    for code in Code::all() {
        let codes = Codes::uniform(code, cols).unwrap();
        let bytes = random_column_groups(&codes, rows);
        let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
        let [found, plain] = both(MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w)));
        assert!(found == plain, "{code:?}");
        assert!(found.iter().any(|&y| y != 0.0), "{code:?}");
    }
    for dtype in [
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
        DType::Q5_1,
        DType::IQ4XS,
    ] {
        let numbers = sine_numbers(rows * cols + 7);
        let mut bytes = vec![0; dtype.matrix_bytes(rows, cols).unwrap()];
        encode(dtype, &numbers[7..], &mut bytes).unwrap();
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let [found, plain] = both(MatrixSource::Blocks(w));
        assert!(found == plain, "{dtype}");
        let mut expected = vec![0.0; n * rows];
        reference::quantised_matmul(w, n, &x, &mut expected).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            let error = (found - expected).abs();
            assert!(
                error <= 1e-4 * expected.abs().max(1.0),
                "{dtype}: {found} for {expected}"
            );
        }
    }
}

#[test]
fn sampling_matches_probabilities_of_a_large_vocabulary() {
    let Some(device) = open_device(|_| ()) else {
        return;
    };
    let numbers = 128_000;
    let logits: Vec<f32> = (0..numbers)
        .map(|i| {
            ((i * 7919 % 30_011) as f32 * 0.000_7 - 9.0).round_ties_even() * 0.75 + (i % 5) as f32
        })
        .collect();
    let x = upload(&device, &logits);
    let mut ranked: Vec<(u32, f64)> = (0..).zip(logits.iter().copied().map(f64::from)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let best = ranked[0].1;
    for (temperature, top_k, top_p) in [
        (1.0, 0, 1.0),
        (0.8, 0, 0.95),
        (1.5, 5000, 1.0),
        (0.7, 5000, 0.5),
        (1.0, 70_000, 0.999),
    ] {
        let mut kept = ranked.clone();
        kept.truncate(if top_k > 0 { top_k } else { numbers });
        let all: f64 = kept.iter().map(|&(_, x)| (x - best).exp()).sum();
        let mut reached = 0.0;
        let enough = kept.iter().position(|&(_, x)| {
            reached += (x - best).exp();
            reached >= f64::from(top_p) * all
        });
        if top_p < 1.0 {
            kept.truncate(enough.unwrap() + 1);
        }
        // If the cut-off falls among ties, counts may differ by one.
        kept.sort_unstable_by_key(|&(token, _)| token);
        let weight = |x: f64| ((x - best) / f64::from(temperature)).exp();
        let sum: f64 = kept.iter().map(|&(_, x)| weight(x)).sum();
        let ends: Vec<f64> = kept
            .iter()
            .scan(0.0, |end, &(_, x)| {
                *end += weight(x) / sum;
                Some(*end)
            })
            .collect();
        for uniform in [0.0, 0.1, 0.37, 0.5, 0.81, 0.999] {
            let draw = ops::SamplingParameters {
                temperature,
                top_k,
                top_p,
                uniform,
            };
            let mut drawing = ops::TokenSampler::default();
            drawing.begin(&device, &x, numbers, &draw).unwrap();
            let token = drawing.take(&device).unwrap().unwrap();
            let at = kept.binary_search_by_key(&token, |&(token, _)| token);
            let at = at.unwrap_or_else(|_| panic!("{token} does not count: {draw:?}"));
            let first = if at > 0 { ends[at - 1] } else { 0.0 };
            let near = first - 1e-5..ends[at] + 1e-5;
            assert!(near.contains(&uniform), "{token} has {near:?}: {draw:?}");
        }
    }
}

#[test]
fn float_products_of_many_vectors_match_the_reference() {
    let [Some(with), Some(without)] = [true, false]
        .map(|tensor_cores| open_device(|options| options.tensor_cores = tensor_cores))
    else {
        return;
    };
    let (rows, cols, n) = (130, 700, 70);
    let whole = |count: usize, below: usize| -> Vec<f32> {
        let of = |i: usize| (i * 7919 % below) as f32 - (below / 2) as f32;
        (0..count).map(of).collect()
    };
    for (exact, w, x) in [
        (
            false,
            sine_numbers(rows * cols),
            sine_numbers(n * cols + 7)[7..].to_vec(),
        ),
        (true, whole(rows * cols, 31), whole(n * cols, 257)),
    ] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let mut bytes = vec![0; dtype.matrix_bytes(rows, cols).unwrap()];
            encode(dtype, &w, &mut bytes).unwrap();
            let matrix = Matrix::new(dtype, rows, cols, &bytes).unwrap();
            let mut row = vec![0.0; cols];
            for device in [&with, &without] {
                let held = DeviceMatrix::new(device, MatrixSource::Blocks(matrix)).unwrap();
                let (x_there, y) = (upload(device, &x), device.allocate(4 * n * rows).unwrap());
                let mut workspace = ops::Workspace::default();
                ops::product(device, 0..n, &held, &x_there, &y, &mut workspace).unwrap();
                let found = download(device, &y, n * rows);
                for i in 0..rows {
                    reference::embed(matrix, i, &mut row).unwrap();
                    for (t, x) in x.chunks_exact(cols).enumerate() {
                        let terms = || {
                            row.iter()
                                .zip(x)
                                .map(|(&w, &x)| f64::from(w) * f64::from(x))
                        };
                        let (sum, magnitude) =
                            (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                        let error = (f64::from(found[t * rows + i]) - sum).abs();
                        let bound = if exact { 0.0 } else { 2e-6 * magnitude };
                        assert!(error <= bound, "{dtype}, row {i}, vector {t}: {error}");
                    }
                }
            }
        }
    }
}

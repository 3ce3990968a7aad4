//! Linear algebra by libraries, each scenario in a separate process.

use std::path::Path;

use htc_kernels::cuda::{CudaLinear, Device, DeviceError, ops};
use htc_kernels::linear::{GramMatrix, LinearAlgebra, ProductShape};

use super::device::matrices::{self, matmul, numbers, transposed};
use super::scenarios::{assert_all_freed, download, open, read_call_log, upload};
use super::steps::counts;

pub fn run(name: &str, log: &Path) {
    match name {
        "no-blas" => missing_libraries(
            log,
            "cuBLAS is not installed, or a library that it needs is not; install",
        ),
        "no-solver" => {
            missing_libraries(
                log,
                "cuSOLVER is not installed, or a library that it needs is not; install",
            );
        }
        "a-solver-that-is-too-old" => missing_libraries(
            log,
            "cuSOLVER has no cusolverDnSetDeterministicMode: a newer one is needed; install",
        ),
        "a-blas-that-is-too-old" => {
            missing_libraries(
                log,
                "cuBLAS has no cublasDscal_v2_64: a newer one is needed; install",
            );
        }
        "a-blas-that-does-not-start" => missing_libraries(
            log,
            "cuBLAS does not start: the library was not initialized (CUBLAS_STATUS_NOT_INITIALIZED); install",
        ),
        "a-solver-that-does-not-start" => missing_libraries(
            log,
            "cuSOLVER does not start: the library was not initialized (CUSOLVER_STATUS_NOT_INITIALIZED); install",
        ),
        "no-room-to-start" => out_of_memory_at_start(log),
        "eigenvalues" => eigenvalues(log),
        "singular-values" => singular_values(log),
        "products" => products(log),
        "sums-of-products" => sums_of_products(log),
        "shapes-that-do-not-fit" => shapes_that_do_not_fit(log),
        "no-convergence" => no_convergence(log),
        "numbers-that-are-not-finite" => numbers_that_are_not_finite(log),
        "an-argument-that-is-not-valid" => an_argument_that_is_not_valid(log),
        "libraries-that-fail" => libraries_that_fail(),
        "linear-algebra-without-room" => out_of_memory(log),
        "linear-algebra-behind-a-step" => calls_end_an_open_step(log),
        "linear-algebra-of-threads" => threads_get_identical_bits(log),
        "a-kernel-of-the-libraries" => a_kernel_of_the_libraries(),
        other => panic!("no scenario {other}"),
    }
}

fn missing_libraries(log: &Path, expected: &str) {
    let device = open();
    for _ in 0..2 {
        let error = device.linear().unwrap_err();
        assert!(matches!(error, DeviceError::NoLibrary { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with(expected), "{text}");
        for part in ["CUDA toolkit", "nvidia-cusolver and nvidia-cublas of PyPI"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let x = upload(&device, &[1.0; 300]);
    ops::add(&device, 300, &x, &x).unwrap();
    assert_eq!(download(&device, &x, 300), [2.0; 300]);
    drop((x, device));
    assert_all_freed(log);
}

fn out_of_memory_at_start(log: &Path) {
    let device = open();
    let error = device.linear().unwrap_err();
    assert!(matches!(error, DeviceError::Driver { .. }), "{error:?}");
    assert!(
        error.to_string().contains("_STATUS_ALLOC_FAILED)"),
        "{error}"
    );
    drop(device);
    assert_all_freed(log);
}

fn close(found: &[f64], expected: &[f64]) {
    matrices::assert_close(found, expected, 1e-10, "matrix");
}

fn orthonormal(a: &[f64], n: usize) {
    matrices::assert_orthonormal(a, n, 1e-10, "vectors");
}

fn reflection(n: usize) -> Vec<f64> {
    let v: Vec<f64> = (0..n).map(|i| 1.0 + (i as f64 * 0.7).sin()).collect();
    let length: f64 = v.iter().map(|x| x * x).sum();
    let at = |k: usize| f64::from(k.is_multiple_of(n + 1)) - 2.0 * v[k / n] * v[k % n] / length;
    (0..n * n).map(at).collect()
}

fn eigen(linear: &CudaLinear, matrix: &[f64], vectors: bool) -> [Vec<f64>; 2] {
    let order = matrix.len().isqrt();
    let mut matrix = matrix.to_vec();
    for (column, numbers) in matrix.chunks_exact_mut(order).enumerate() {
        numbers[..column].fill(f64::NAN);
    }
    let mut values = vec![f64::NAN; order];
    linear
        .symmetric_eigen(&mut matrix, &mut values, vectors)
        .unwrap();
    [values, matrix]
}

fn eigenvalues(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    let expected = "cuSOLVER 11.10.9, cuBLAS 12.11.10 on Emulated 0, sm_90";
    assert_eq!(linear.name(), expected);
    let [values, vectors] = eigen(&linear, &[2.0, 1.0, 1.0, 2.0], true);
    close(&values, &[1.0, 3.0]);
    let half = 0.5_f64.sqrt();
    let sign = vectors[0].signum();
    close(&vectors[..2], &[sign * half, -sign * half]);
    let sign = vectors[2].signum();
    close(&vectors[2..], &[sign * half, sign * half]);
    assert_eq!(eigen(&linear, &[-7.0], true), [[-7.0], [1.0]]);
    assert_eq!(eigen(&linear, &[-7.0], false)[0], [-7.0]);
    linear.symmetric_eigen(&mut [], &mut [], true).unwrap();
    for n in [3, 65] {
        let q = reflection(n);
        let known: Vec<f64> = (0..n).map(|i| ((i * 29) % n) as f64 - 1.5).collect();
        let scaled: Vec<f64> = (0..n * n).map(|k| q[k] * known[k / n]).collect();
        let matrix = matmul(&scaled, &transposed(&q, n), [n, n, n]);
        let [values, vectors] = eigen(&linear, &matrix, true);
        let ascending: Vec<f64> = (0..n).map(|i| i as f64 - 1.5).collect();
        close(&values, &ascending);
        orthonormal(&vectors, n);
        for (j, value) in known.iter().enumerate() {
            let at = values.iter().position(|v| (v - value).abs() < 0.5).unwrap();
            let found = &vectors[n * at..n * (at + 1)];
            let sign = matmul(found, &q[n * j..n * (j + 1)], [1, n, 1])[0].signum();
            let found: Vec<f64> = found.iter().map(|x| sign * x).collect();
            close(&found, &q[n * j..n * (j + 1)]);
        }
        assert_eq!(eigen(&linear, &matrix, false)[0], values);
    }
    drop((linear, device));
    assert_all_freed(log);
}

fn singular(linear: &CudaLinear, tall: &[f64], n: usize) -> [Vec<f64>; 2] {
    let (mut values, mut right) = (vec![f64::NAN; n], vec![f64::NAN; n * n]);
    linear
        .right_singular_vectors(tall, &mut values, &mut right)
        .unwrap();
    [values, right]
}

fn singular_values(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    let [values, right] = singular(&linear, &[3.0, 0.0, 4.0], 1);
    close(&values, &[5.0]);
    close(&[right[0].abs()], &[1.0]);
    let [values, right] = singular(&linear, &[0.0, 1.0, 0.0, 2.0, 0.0, 0.0], 2);
    close(&values, &[2.0, 1.0]);
    close(
        &right.iter().map(|x| x.abs()).collect::<Vec<_>>(),
        &[0.0, 1.0, 1.0, 0.0],
    );
    linear
        .right_singular_vectors(&[], &mut [], &mut [])
        .unwrap();
    for [m, n] in [[20, 20], [24, 20], [25, 20], [70, 20], [33, 1]] {
        let tall = numbers(7 + m as u64, m * n);
        let [values, right] = singular(&linear, &tall, n);
        assert!(values.is_sorted_by(|a, b| a >= b));
        let v = transposed(&right, n);
        orthonormal(&v, n);
        // |A v| = σ, and A v of different v are orthogonal: so AᵀA = V σ² Vᵀ.
        let images = matmul(&tall, &v, [m, n, n]);
        let squares = matmul(&transposed(&images, m), &images, [n, m, n]);
        let diagonal = |k: usize| f64::from(k.is_multiple_of(n + 1)) * values[k / n].powi(2);
        close(&squares, &(0..n * n).map(diagonal).collect::<Vec<_>>());
    }
    let log_of = read_call_log(log);
    let triangles: Vec<&str> = log_of
        .iter()
        .filter_map(|line| line.strip_prefix("triangle of "))
        .collect();
    assert_eq!(
        triangles,
        ["3 x 1", "3 x 2", "25 x 20", "70 x 20", "33 x 1"]
    );
    let sizes: Vec<&str> = log_of
        .iter()
        .filter_map(|line| line.strip_prefix("singular values of "))
        .collect();
    let expected = [
        "1 x 1", "2 x 2", "20 x 20", "24 x 20", "20 x 20", "20 x 20", "1 x 1",
    ];
    assert_eq!(sizes, expected);
    let tall = matmul(&numbers(1, 30), &numbers(2, 8), [15, 2, 4]);
    let [values, right] = singular(&linear, &tall, 4);
    close(&values[2..], &[0.0, 0.0]);
    orthonormal(&right, 4);
    drop((linear, device));
    assert_all_freed(log);
}

fn products(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    for [rows, inner, columns] in [[1, 1, 1], [3, 5, 4], [40, 1, 33], [2, 70, 1]] {
        let left = numbers(3, rows * inner);
        let right = numbers(4, inner * columns);
        let mut out = vec![f64::NAN; rows * columns];
        let shape = ProductShape {
            rows,
            inner,
            columns,
        };
        linear.multiply(shape, &left, &right, &mut out).unwrap();
        close(&out, &matmul(&left, &right, [rows, inner, columns]));
    }
    let shape = ProductShape {
        rows: 2,
        inner: 0,
        columns: 3,
    };
    let mut out = [f64::NAN; 6];
    linear.multiply(shape, &[], &[], &mut out).unwrap();
    assert_eq!(out, [0.0; 6]);
    drop((linear, device));
    assert_all_freed(log);
}

fn sums_of_products(log: &Path) {
    let device = open();
    let linear = Device::linear_algebra(&device).unwrap().unwrap();
    let n = 9;
    let mut gram = linear.new_gram(n).unwrap();
    let mut empty = linear.new_gram(0).unwrap();
    let read = |gram: &dyn GramMatrix, n: usize| {
        let mut out = vec![f64::NAN; n * n];
        gram.read(0, &mut out).unwrap();
        out
    };
    assert_eq!(read(&*gram, n), vec![0.0; n * n]);
    gram.scale(2.0).unwrap();
    gram.add(1.0, &[]).unwrap();
    assert_eq!(read(&*gram, n), vec![0.0; n * n]);
    let parts: Vec<Vec<f64>> = [4, 1, 30, 2]
        .map(|count| numbers(count, n * count as usize))
        .into();
    let mut expected = vec![0.0; n * n];
    for (i, part) in parts.iter().enumerate() {
        let scale = [0.5, -2.0, 1.0, 3.0][i];
        gram.add(scale, part).unwrap();
        let sums = matmul(part, &transposed(part, n), [n, part.len() / n, n]);
        expected
            .iter_mut()
            .zip(sums)
            .for_each(|(e, x)| *e += scale * x);
        if i == 1 {
            gram.scale(0.25).unwrap();
            expected.iter_mut().for_each(|e| *e *= 0.25);
        }
    }
    for (column, numbers) in expected.chunks_exact_mut(n).enumerate() {
        numbers[..column].fill(0.0);
    }
    close(&read(&*gram, n), &expected);
    let mut some = vec![0.0; 2 * n];
    gram.read(1, &mut some).unwrap();
    assert_eq!(some, read(&*gram, n)[n..3 * n]);
    assert_eq!(read(&*gram, n), read(&*gram, n));
    gram.scale(0.0).unwrap();
    assert_eq!(read(&*gram, n), vec![0.0; n * n]);
    empty.add(1.0, &[]).unwrap();
    empty.read(0, &mut []).unwrap();
    drop((linear, device));
    gram.add(1.0, &vec![1.0; n]).unwrap();
    let ones = |k: usize| f64::from(k % n >= k / n);
    assert_eq!(read(&*gram, n), (0..n * n).map(ones).collect::<Vec<_>>());
    drop((gram, empty));
    assert_all_freed(log);
}

fn shapes_that_do_not_fit(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    let told = |result: Result<(), DeviceError>| match result {
        Err(DeviceError::Shape(error)) => error.argument,
        other => panic!("{other:?}"),
    };
    let eigen = |matrix: usize, values: usize| {
        linear.symmetric_eigen(&mut vec![1.0; matrix], &mut vec![0.0; values], true)
    };
    assert_eq!(told(eigen(8, 3)), "matrix (numbers)");
    assert_eq!(told(eigen(1, 0)), "matrix (numbers)");
    let singular = |tall: usize, values: usize, right: usize| {
        let (mut values, mut right) = (vec![0.0; values], vec![0.0; right]);
        linear.right_singular_vectors(&vec![1.0; tall], &mut values, &mut right)
    };
    assert_eq!(told(singular(6, 3, 9)), "tall (numbers, at least)");
    assert_eq!(told(singular(13, 3, 9)), "tall (numbers, whole rows)");
    assert_eq!(told(singular(12, 3, 12)), "right (numbers)");
    let shape = ProductShape {
        rows: 2,
        inner: 3,
        columns: 4,
    };
    let product = |left: usize, right: usize, out: usize| {
        linear.multiply(
            shape,
            &vec![1.0; left],
            &vec![1.0; right],
            &mut vec![0.0; out],
        )
    };
    assert_eq!(told(product(5, 12, 8)), "left (numbers)");
    assert_eq!(told(product(6, 11, 8)), "right (numbers)");
    assert_eq!(told(product(6, 12, 9)), "out (numbers)");
    let mut gram = linear.new_gram(3).unwrap();
    assert_eq!(
        told(gram.add(1.0, &[1.0; 4])),
        "vectors (numbers, whole vectors)"
    );
    let told_of_read = |first, numbers| told(gram.read(first, &mut vec![0.0; numbers]));
    assert_eq!(told_of_read(0, 8), "out (numbers, whole columns)");
    assert_eq!(told_of_read(2, 6), "columns");
    assert_eq!(told_of_read(usize::MAX, 3), "columns");
    assert_eq!(told(linear.new_gram(usize::MAX).map(drop)), "sums (bytes)");
    drop((gram, linear, device));
    assert_all_freed(log);
}

fn no_convergence(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    let error = linear
        .symmetric_eigen(&mut [1.0; 9], &mut [0.0; 3], true)
        .unwrap_err();
    assert_eq!(error, DeviceError::NoConvergence { order: 3 });
    let expected = "the decomposition of a matrix of order 3 did not converge";
    assert_eq!(error.to_string(), expected);
    let error = linear.right_singular_vectors(&[1.0; 5], &mut [0.0], &mut [0.0]);
    assert_eq!(error, Err(DeviceError::NoConvergence { order: 1 }));
    drop((linear, device));
    assert_all_freed(log);
}

fn numbers_that_are_not_finite(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    let error = linear.symmetric_eigen(&mut [f64::NAN; 4], &mut [0.0; 2], true);
    assert_eq!(error, Err(DeviceError::NoConvergence { order: 2 }));
    let error = linear.right_singular_vectors(&[f64::NAN; 4], &mut [0.0; 2], &mut [0.0; 4]);
    assert_eq!(error, Err(DeviceError::NoConvergence { order: 2 }));
    drop((linear, device));
    assert_all_freed(log);
}

fn an_argument_that_is_not_valid(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    let error = linear.symmetric_eigen(&mut [1.0; 9], &mut [0.0; 3], false);
    assert_eq!(
        error.unwrap_err().to_string(),
        "an eigenvalue decomposition by cuSOLVER: argument 4 is not valid"
    );
    drop((linear, device));
    assert_all_freed(log);
}

fn libraries_that_fail() {
    let device = open();
    let linear = device.linear().unwrap();
    let shape = ProductShape {
        rows: 1,
        inner: 1,
        columns: 1,
    };
    let error = linear.multiply(shape, &[1.0], &[1.0], &mut [0.0]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "a product by cuBLAS: the function failed to launch on the GPU (CUBLAS_STATUS_EXECUTION_FAILED)"
    );
    let mut gram = linear.new_gram(2).unwrap();
    let error = gram.add(1.0, &[1.0; 4]).unwrap_err().to_string();
    assert!(error.starts_with("adding products by cuBLAS: "), "{error}");
    let mut out = [f64::NAN; 4];
    gram.read(0, &mut out).unwrap();
    assert_eq!(out, [0.0; 4]);
    let error = linear.right_singular_vectors(&[1.0; 5], &mut [0.0], &mut [0.0]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "a QR decomposition by cuSOLVER: the device failed to execute it (CUSOLVER_STATUS_EXECUTION_FAILED)"
    );
    let error = linear.right_singular_vectors(&[1.0], &mut [0.0], &mut [0.0]);
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("a singular value decomposition by cuSOLVER: "),
        "{error}"
    );
}

fn out_of_memory(log: &Path) {
    let device = open();
    let linear = device.linear().unwrap();
    let full = |result: Result<(), DeviceError>| {
        let error = result.unwrap_err();
        let full = matches!(error, DeviceError::OutOfMemory { .. });
        assert!(full, "{error:?}");
    };
    for order in [200, 150] {
        let mut matrix = vec![1.0; order * order];
        full(linear.symmetric_eigen(&mut matrix, &mut vec![0.0; order], true));
    }
    full(linear.new_gram(200).map(drop));
    let mut gram = linear.new_gram(2).unwrap();
    gram.add(1.0, &[1.0, 2.0]).unwrap();
    full(gram.add(1.0, &vec![1.0; 40_000]));
    gram.add(1.0, &[1.0, 0.0]).unwrap();
    let mut out = [f64::NAN; 4];
    gram.read(0, &mut out).unwrap();
    assert_eq!(out, [2.0, 2.0, 0.0, 4.0]);
    for order in [100, 100] {
        let mut values = vec![0.0; order];
        let mut matrix = vec![1.0; order * order];
        linear
            .symmetric_eigen(&mut matrix, &mut values, true)
            .unwrap();
        close(&values[order - 1..], &[order as f64]);
    }
    drop((gram, linear, device));
    assert_all_freed(log);
}

fn calls_end_an_open_step(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| upload(&device, &[value; 600]));
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    let linear = device.linear().unwrap();
    assert_eq!(counts(&device), [0, 0, 0, 0, 1]);
    let mut gram = linear.new_gram(2).unwrap();
    gram.add(1.0, &[1.0, 2.0]).unwrap();
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    gram.scale(2.0).unwrap();
    assert_eq!(counts(&device), [0, 0, 0, 0, 2]);
    device.end_step().unwrap();
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    device.end_step().unwrap();
    let mut out = [f64::NAN; 4];
    gram.read(0, &mut out).unwrap();
    assert_eq!(out, [2.0, 4.0, 0.0, 8.0]);
    assert_eq!(download(&device, &x, 600), [31.0; 600]);
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    drop((gram, linear));
    device.end_step().unwrap();
    assert_eq!(download(&device, &x, 600), [41.0; 600]);
    drop((x, y, device));
    assert_all_freed(log);
}

fn threads_get_identical_bits(log: &Path) {
    fn of(linear: &dyn LinearAlgebra, seed: u64) -> Vec<u64> {
        let mut all = Vec::new();
        let mut matrix = numbers(seed, 17 * 17);
        let mut values = vec![0.0; 17];
        linear
            .symmetric_eigen(&mut matrix, &mut values, true)
            .unwrap();
        all.extend([matrix, values].concat());
        let (mut values, mut right) = (vec![0.0; 8], vec![0.0; 64]);
        let tall = numbers(seed, 8 * 21);
        linear
            .right_singular_vectors(&tall, &mut values, &mut right)
            .unwrap();
        all.extend([values, right].concat());
        let mut gram = linear.new_gram(8).unwrap();
        gram.add(0.3, &tall).unwrap();
        gram.add(1.0, &tall[..80]).unwrap();
        let mut out = vec![0.0; 64];
        gram.read(0, &mut out).unwrap();
        all.extend(out);
        all.into_iter().map(f64::to_bits).collect()
    }
    let device = open();
    let linear = device.linear().unwrap();
    let expected: Vec<Vec<u64>> = (0..4).map(|seed| of(&linear, seed)).collect();
    std::thread::scope(|scope| {
        for (seed, expected) in (0..4).zip(&expected) {
            let (linear, device) = (&linear, &device);
            scope.spawn(move || {
                for _ in 0..5 {
                    assert_eq!(&of(linear, seed), expected);
                    assert_eq!(&of(&device.linear().unwrap(), seed), expected);
                    let [x, y] = [1.0, 10.0].map(|value| upload(device, &[value; 300]));
                    device.begin_step().unwrap();
                    ops::add(device, 300, &x, &y).unwrap();
                    device.end_step().unwrap();
                    assert_eq!(download(device, &x, 300), [11.0; 300]);
                }
            });
        }
    });
    let mut gram = linear.new_gram(1).unwrap();
    gram.add(1.0, &[2.0]).unwrap();
    let scaled = std::thread::spawn(move || {
        gram.scale(2.0).unwrap();
        let mut out = [0.0];
        gram.read(0, &mut out).unwrap();
        out
    });
    assert_eq!(scaled.join().unwrap(), [8.0]);
    std::thread::spawn(move || drop(linear)).join().unwrap();
    drop(device);
    assert_all_freed(log);
}

fn a_kernel_of_the_libraries() {
    let device = open();
    let linear = device.linear().unwrap();
    let x = upload(&device, &[1.0; 300]);
    ops::add(&device, 300, &x, &x).unwrap();
    let mut gram = linear.new_gram(1).unwrap();
    gram.add(1.0, &[1.0]).unwrap();
    let error = gram.read(0, &mut [0.0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel of cuSOLVER or cuBLAS: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS), noticed when copying from the device"
    );
}

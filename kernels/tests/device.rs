//! Operations on a GPU, where there is one, against the oracle in double precision.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use htc_formats::DType;
use htc_formats::block::encode;
use htc_kernels::Matrix;
use htc_kernels::cuda::driver::{Options, Which};
use htc_kernels::cuda::ops::{DeviceMatrix, Source};
use htc_kernels::cuda::{Cuda, Device, DeviceError, Memory as _, StepCounts, ops};
use htc_kernels::reference;

/// The first device; none, said so by name, where there is none. With HTC_NEED_CUDA that is a failure.
fn device(change: impl Fn(&mut Options<'_>)) -> Option<Cuda> {
    let mut options = Options::default();
    change(&mut options);
    match Cuda::open(Which::Index(0), options) {
        Ok(device) => Some(device),
        Err(DeviceError::Unavailable(why)) if std::env::var_os("HTC_NEED_CUDA").is_none() => {
            eprintln!("skipped: no device: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn put(device: &Cuda, numbers: &[f32]) -> <Cuda as Device>::Memory {
    ops::put(device, numbers).unwrap()
}

fn get(device: &Cuda, memory: &<Cuda as Device>::Memory, numbers: usize) -> Vec<f32> {
    ops::get(device, memory, numbers).unwrap()
}

fn waves(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

#[test]
fn a_norm_is_that_of_the_oracle() {
    let Some(device) = device(|_| ()) else {
        return;
    };
    let (rows, width) = (3, 1000);
    let (x, weight) = (waves(rows * width), waves(width));
    let [on, by] = [&x, &weight].map(|numbers| put(&device, numbers));
    let out = device.allocate(4 * rows * width).unwrap();
    let shape = ops::RowsShape { rows, width };
    ops::rms_norm(&device, shape, &on, &by, 1e-5, &out).unwrap();
    let mut expected = vec![0.0; rows * width];
    reference::rms_norm(&x, &weight, 1e-5, &mut expected).unwrap();
    for (found, expected) in get(&device, &out, rows * width).iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0));
    }
}

#[test]
fn bytes_come_back_as_they_went() {
    let Some(device) = device(|_| ()) else {
        return;
    };
    // More than the buffers of a copy hold, three times.
    let bytes: Vec<u8> = (0..60_000_001_usize)
        .map(|i| ((i * i) >> 7) as u8)
        .collect();
    let [a, b] = [0, 1].map(|_| device.allocate(bytes.len()).unwrap());
    assert_eq!(a.address() % 256, 0);
    device.upload(&bytes, &a, 0).unwrap();
    device.copy((&a, 1), (&b, 0), bytes.len() - 1).unwrap();
    drop(a);
    let mut found = vec![0; bytes.len() - 1];
    device.download(&b, 0, &mut found).unwrap();
    assert!(found == bytes[1..]);
}

#[test]
fn a_step_is_replayed_and_follows_its_arguments() {
    let Some(device) = device(|_| ()) else {
        return;
    };
    let [x, y, z] = [1.0, 10.0, 100.0].map(|value| put(&device, &[value; 600]));
    let step = |by, numbers| {
        device.begin_step().unwrap();
        ops::add(&device, numbers, &x, by).unwrap();
        ops::add(&device, numbers, &x, by).unwrap();
        device.end_step().unwrap();
        get(&device, &x, 600)
    };
    assert_eq!(step(&y, 600), [21.0; 600]);
    assert_eq!(step(&y, 600), [41.0; 600]);
    let found = step(&z, 300);
    assert_eq!(found[..300], [241.0; 300]);
    assert_eq!(found[300..], [41.0; 300]);
    let StepCounts {
        replayed,
        updated,
        made,
        plain,
        interrupted,
    } = device.steps();
    assert_eq!(
        [replayed, updated, made, plain, interrupted],
        [1, 1, 1, 0, 0]
    );
}

#[test]
fn much_shared_memory_is_asked_for() {
    let Some(device) = device(|_| ()) else {
        return;
    };
    let size = 1 << 14;
    let numbers = waves(size);
    let x = put(&device, &numbers);
    ops::hadamard(&device, size, size, &x).unwrap();
    let mut expected: Vec<f64> = numbers.iter().map(|&x| x.into()).collect();
    reference::hadamard(&mut expected, size).unwrap();
    for (found, expected) in get(&device, &x, size).into_iter().zip(expected) {
        assert!(
            (f64::from(found) - expected).abs() < 1e-4,
            "{found} for {expected}"
        );
    }
}

#[test]
fn more_than_there_is_is_refused_with_its_numbers() {
    let Some(device) = device(|_| ()) else {
        return;
    };
    let [free, total] = device.room().unwrap();
    assert!(0 < free && free <= total);
    match device.allocate(2 * total).unwrap_err() {
        DeviceError::OutOfMemory {
            needed, total: all, ..
        } => assert_eq!((needed, all), (2 * total, total)),
        other => panic!("{other}"),
    }
    // And nothing is wrong with it.
    assert_eq!(get(&device, &put(&device, &[1.0, 2.0]), 2), [1.0, 2.0]);
}

/// Tensor cores give the bits that exchanges of a warp give, and both what the oracle has.
#[test]
fn many_vectors_are_multiplied_the_same_with_tensor_cores_and_without() {
    let Some(with) = device(|_| ()) else {
        return;
    };
    let without = device(|options| options.tensor_cores = false).unwrap();
    let (rows, cols, n) = (130, 768, 70);
    let x = waves(n * cols);
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q5K, DType::Q6K] {
        let numbers = waves(rows * cols + 7);
        let mut bytes = vec![0; dtype.matrix_bytes(rows, cols).unwrap()];
        encode(dtype, &numbers[7..], &mut bytes).unwrap();
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let [found, plain] = [&with, &without].map(|device| {
            let held = DeviceMatrix::new(device, Source::Blocks(w)).unwrap();
            let (x, y) = (put(device, &x), device.allocate(4 * n * rows).unwrap());
            let mut workspace = ops::Workspace::default();
            ops::product(device, 0..n, &held, &x, &y, &mut workspace).unwrap();
            get(device, &y, n * rows)
        });
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

//! Tests of matrices on the emulated device against the reference.

#![allow(clippy::unwrap_used, reason = "test code")]

mod bands_tests;
mod blocks_tests;
mod float_tiles_tests;
mod project_tests;
mod tiles_tests;

use htc_formats::DType;

use super::matrix::{Format, STAGING_BYTES, run_pieces};
use super::*;
use crate::Pool;
use crate::cuda::{EmulatedDevice, EmulatedMemory};

const OWN: [DType; 8] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];

const FLOATS: usize = 3;

/// Tolerance of a product, relative to `Σ |w x|`.
const PRODUCT: f64 = 1e-6;

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn number(&mut self) -> f32 {
        self.bits() as f32 / (1_u32 << 30) as f32 - 1.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.bits() >> 8) as u8).collect()
    }
}

fn put(device: &EmulatedDevice, numbers: &[f32]) -> EmulatedMemory {
    crate::cuda::ops::upload_floats(device, numbers).unwrap()
}

fn get(device: &EmulatedDevice, memory: &EmulatedMemory, numbers: usize) -> Vec<f32> {
    crate::cuda::ops::download_floats(device, memory, numbers).unwrap()
}

fn allocate(device: &EmulatedDevice, numbers: usize) -> EmulatedMemory {
    put(device, &vec![-77.0; numbers])
}

fn products(
    device: &EmulatedDevice,
    matrix: &DeviceMatrix<EmulatedDevice>,
    x: &[f32],
    workspace: &mut Workspace<EmulatedDevice>,
) -> Vec<f32> {
    let n = x.len().checked_div(matrix.cols()).unwrap_or(1);
    let y = allocate(device, n * matrix.rows());
    let x = put(device, x);
    product(device, 0..n, matrix, &x, &y, workspace).unwrap();
    get(device, &y, n * matrix.rows())
}

fn rows_are_the_same_in_any_batch(
    device: &EmulatedDevice,
    matrix: &DeviceMatrix<EmulatedDevice>,
    x: &[f32],
    what: &str,
) {
    let mut workspace = Workspace::default();
    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    let alone: Vec<Vec<u32>> = x
        .chunks_exact(matrix.cols())
        .map(|x| bits(&products(device, matrix, x, &mut workspace)))
        .collect();
    for n in [2, 3, 8, alone.len()] {
        let x = &x[..n * matrix.cols()];
        let found = bits(&products(device, matrix, x, &mut workspace));
        for (t, found) in found.chunks_exact(matrix.rows()).enumerate() {
            assert!(found == alone[t], "{what}: row {t} of {n}");
        }
    }
}

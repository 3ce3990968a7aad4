//! Tests of every kernel of every supported instruction set against the reference.

use htc_formats::DType;
use htc_formats::model::RopePairs;

use super::kernels::{Kernels, available};
use super::*;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::reference;

mod attention_tests;
mod bands_tests;
mod batch_invariant_tests;
mod elementwise_tests;
mod kv_tests;
mod matmul_tests;
mod moments_tests;
mod product_tests;

fn on(kernels: &'static Kernels, pool: &Arc<Pool>) -> Cpu {
    let pool = Arc::clone(pool);
    Cpu { kernels, pool }
}

fn pools<const N: usize>(threads: [usize; N]) -> [Arc<Pool>; N] {
    threads.map(|threads| Arc::new(Pool::new(threads).unwrap()))
}

#[test]
fn instruction_set_names_are_unique_and_the_best_is_selected() {
    let pool = Arc::new(Pool::new(1).unwrap());
    let each = Cpu::each(&pool);
    assert_eq!(each.len(), available().len());
    assert_eq!(each[0].instruction_set(), instruction_set());
    assert_eq!(Cpu::new(pool).instruction_set(), instruction_set());
    let mut names: Vec<_> = each.iter().map(Cpu::instruction_set).collect();
    names.dedup();
    assert_eq!(names.len(), each.len());
}

const TYPES: [DType; 8] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];

fn scales(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::I8 => &[],
        DType::F16 | DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::IQ4NL | DType::IQ4XS => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::TQ2_0 => &[64],
        other => panic!("no blocks of {other}"),
    }
}

fn extreme_rows(random: &mut Random, dtype: DType, cols: usize) -> [(u8, Vec<u8>); 4] {
    [0x00, 0x7f, 0x80, 0xff].map(|fill| {
        let mut bytes = random.matrix(dtype, 1, cols);
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            let kept: Vec<_> = scales(dtype)
                .iter()
                .map(|&at| (at, [block[at], block[at + 1]]))
                .collect();
            block.fill(fill);
            for (at, scale) in kept {
                block[at..at + 2].copy_from_slice(&scale);
            }
        }
        (fill, bytes)
    })
}

/// Portable xorshift64* generator.
pub(super) struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in `[-1, 1)`.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.number()).collect()
    }

    /// Blocks of random bits with moderate scales.
    pub fn matrix(&mut self, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
        let len = dtype.matrix_bytes(rows, cols).unwrap();
        let mut bytes: Vec<u8> = (0..len).map(|_| self.bits() as u8).collect();
        match dtype {
            DType::F32 => {
                let numbers = self.numbers(rows * cols);
                return numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
            }
            DType::BF16 => {
                let numbers = self.numbers(rows * cols);
                return numbers
                    .iter()
                    .flat_map(|&v| half::bf16::from_f32(v).to_le_bytes())
                    .collect();
            }
            _ => {}
        }
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for &at in scales(dtype) {
                let scale = half::f16::from_f32(self.number());
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes
    }
}

fn widths(dtype: DType) -> Vec<usize> {
    match dtype.block_len() {
        1 => vec![0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 100, 257, 1000],
        len => vec![0, len, 2 * len, 3 * len, 5 * len, 7 * len],
    }
}

#[test]
fn decoders_agree_bit_for_bit() {
    let mut random = Random(1);
    for dtype in TYPES {
        for cols in widths(dtype) {
            let bytes = random.matrix(dtype, 1, cols);
            let mut expected = vec![0.0; cols];
            plain::decode(dtype, &bytes, &mut expected);
            for k in available() {
                let mut found = vec![f32::NAN; cols];
                (k.decode)(dtype, &bytes, &mut found);
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&expected), "{} {dtype} {cols}", k.name);
            }
        }
    }
}

#[test]
fn decoders_agree_on_every_half_and_on_any_bytes() {
    let mut random = Random(9);
    for dtype in TYPES {
        let (cols, bytes) = match dtype {
            DType::F16 | DType::BF16 => {
                (1 << 16, (0..=u16::MAX).flat_map(u16::to_le_bytes).collect())
            }
            _ => {
                let cols = 64 * dtype.block_len();
                let len = dtype.row_bytes(cols).unwrap();
                (
                    cols,
                    (0..len).map(|_| random.bits() as u8).collect::<Vec<u8>>(),
                )
            }
        };
        let mut expected = vec![0.0; cols];
        plain::decode(dtype, &bytes, &mut expected);
        for k in available() {
            let mut found = vec![0.0; cols];
            (k.decode)(dtype, &bytes, &mut found);
            for (f, e) in found.iter().zip(&expected) {
                let same = f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan();
                assert!(same, "{} {dtype}: {f} for {e}", k.name);
            }
        }
    }
}

/// `Σ |w x|` of every row, the scale of a product's rounding errors.
fn magnitudes(w: Matrix<'_>, x: &[f32]) -> Vec<f64> {
    let mut row = vec![0.0; w.cols()];
    (0..w.rows())
        .map(|i| {
            reference::embed(w, i, &mut row).unwrap();
            let products = row.iter().zip(x);
            products.map(|(&w, &x)| f64::from(w * x).abs()).sum()
        })
        .collect()
}

/// Bound on the error of a product relative to `Σ |w x|`: rounding once per term of a partial sum,
/// with at least eight partial sums.
const PRODUCT_ERROR: f64 = 2e-6;

#[test]
fn matmul_agrees_with_the_reference_on_any_number_of_threads() {
    let mut random = Random(3);
    let pools = pools([1, 2, 3]);
    let mut scratch = Scratch::new();
    for dtype in TYPES {
        for cols in [0, 1, 3, 4, 11].map(|blocks| blocks * dtype.block_len().max(19)) {
            for (rows, n) in [
                (1, 2),
                (5, 3),
                (17, 4),
                (130, 7),
                (9, 32),
                (97, 96),
                (200, 97),
                (3, 0),
            ] {
                let bytes = random.matrix(dtype, rows, cols);
                let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
                let x = random.numbers(n * cols);
                let mut expected = vec![0.0; n * rows];
                reference::matmul(w, n, &x, &mut expected).unwrap();
                for k in available() {
                    if k.int_gemm.is_some() && dot::is_integer(dtype) {
                        continue;
                    }
                    let results = pools.each_ref().map(|pool| {
                        let mut y = vec![f32::NAN; n * rows];
                        on(k, pool).matmul(w, n, &x, &mut y, &mut scratch).unwrap();
                        y
                    });
                    for t in 0..n {
                        let bounds = magnitudes(w, &x[t * cols..][..cols]);
                        for i in 0..rows {
                            let (found, expected) =
                                (results[0][t * rows + i], expected[t * rows + i]);
                            let error = f64::from(found - expected).abs();
                            let name = k.name;
                            assert!(
                                error <= PRODUCT_ERROR * bounds[i],
                                "{name} {dtype} {rows}x{cols} n {n} [{t}, {i}]: {found} for {expected}",
                            );
                        }
                    }
                    assert_eq!(results[0], results[1]);
                    assert_eq!(results[0], results[2]);
                }
            }
        }
    }
}

fn assert_close(
    found: &[f32],
    expected: &[f32],
    scale: impl Fn(usize) -> f32,
    bound: f32,
    what: &str,
) {
    assert_eq!(found.len(), expected.len());
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        let allowed = bound * scale(i) + f32::MIN_POSITIVE;
        assert!((f - e).abs() <= allowed, "{what} [{i}]: {f} for {e}");
    }
}

#[test]
fn mismatched_shapes_are_rejected_before_writing() {
    let cpu = Cpu::with_threads(1).unwrap();
    let mut scratch = Scratch::new();
    let bytes = [0; 4 * 6];
    let w = Matrix::new(DType::F32, 2, 3, &bytes).unwrap();
    let mut y = [7.0; 6];
    let error = |what, expected, found| Err(crate::ShapeError::new(what, expected, found));
    assert_eq!(
        cpu.matvec(w, &[0.0; 4], &mut y[..2], &mut scratch),
        error("x (numbers)", 3, 4)
    );
    assert_eq!(
        cpu.matvec(w, &[0.0; 3], &mut y, &mut scratch),
        error("y (numbers)", 2, 6)
    );
    assert!(
        cpu.matmul(w, 2, &[0.0; 5], &mut y[..4], &mut scratch)
            .is_err()
    );
    assert!(
        cpu.matmul(w, 2, &[0.0; 6], &mut y[..5], &mut scratch)
            .is_err()
    );
    assert!(
        cpu.matmul(w, usize::MAX, &[0.0; 6], &mut y[..4], &mut scratch)
            .is_err()
    );
    assert!(cpu.embed(w, 2, &mut y[..3]).is_err());
    assert!(cpu.embed(w, 0, &mut y).is_err());
    assert!(cpu.rms_norm(&[0.0; 6], &[1.0; 4], 0.0, &mut y).is_err());
    assert!(cpu.rms_norm(&[0.0; 6], &[], 0.0, &mut y).is_err());
    assert!(cpu.rms_norm(&[0.0; 4], &[1.0; 2], 0.0, &mut y).is_err());
    assert!(
        cpu.rope(RopePairs::Adjacent, &mut y, 4, &[1.0], &[0.0])
            .is_err()
    );
    assert!(
        cpu.rope(RopePairs::Adjacent, &mut y, 3, &[1.0; 2], &[0.0; 2])
            .is_err()
    );
    assert!(
        cpu.rope(RopePairs::Adjacent, &mut y, 3, &[1.0], &[])
            .is_err()
    );
    assert!(cpu.silu_mul(&mut y, &[0.0; 5]).is_err());
    assert!(cpu.add_assign(&mut y, &[0.0; 5]).is_err());
    assert_eq!(y, [7.0; 6]);
}

#[test]
fn empty_shapes_are_accepted() {
    let cpu = Cpu::with_threads(2).unwrap();
    let mut scratch = Scratch::new();
    let none = Matrix::new(DType::F16, 3, 0, &[]).unwrap();
    for n in [1, 2, 500] {
        let mut y = vec![7.0; 3 * n];
        cpu.matmul(none, n, &[], &mut y, &mut scratch).unwrap();
        assert_eq!(y, vec![0.0; 3 * n]);
    }
    cpu.matmul(none, 0, &[], &mut [], &mut scratch).unwrap();
    cpu.rms_norm(&[], &[], 0.0, &mut []).unwrap();
    cpu.rope(RopePairs::Adjacent, &mut [], 0, &[], &[]).unwrap();
}

#[test]
fn embed_decodes_one_row() {
    let cpu = Cpu::with_threads(1).unwrap();
    let mut random = Random(8);
    for dtype in TYPES {
        let cols = 2 * dtype.block_len();
        let bytes = random.matrix(dtype, 3, cols);
        let w = Matrix::new(dtype, 3, cols, &bytes).unwrap();
        let (mut found, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
        cpu.embed(w, 2, &mut found).unwrap();
        htc_formats::block::decode(dtype, w.row(2), &mut expected).unwrap();
        assert_eq!(found, expected);
    }
}

//! Every kernel of every instruction set this machine has, against the reference.

use htc_formats::DType;

use super::kernels::available;
use super::*;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::reference;

/// A small generator of its own (xorshift64*), so that every machine sees the same numbers.
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

    /// Blocks whose every bit is random but for the scales, which are moderate.
    pub fn matrix(&mut self, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
        let len = dtype.matrix_bytes(rows, cols).unwrap();
        let mut bytes: Vec<u8> = (0..len).map(|_| self.bits() as u8).collect();
        let halves: &[usize] = match dtype {
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
            DType::F16 | DType::Q8_0 | DType::Q4_0 => &[0],
            DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q6K => &[208],
        };
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for &at in halves {
                let scale = half::f16::from_f32(self.number());
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes
    }
}

/// Columns to try: whole blocks, and for single numbers also what no register divides.
fn widths(dtype: DType) -> Vec<usize> {
    match dtype.block_len() {
        1 => vec![0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 100, 257, 1000],
        len => vec![0, len, 2 * len, 3 * len, 5 * len, 7 * len],
    }
}

#[test]
fn decoders_agree_bit_for_bit() {
    let mut random = Random(1);
    for dtype in DType::ALL {
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

/// `Σ |w x|` of every row: what rounding errors of a product are proportional to.
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

/// Bound on the error of a product relative to `Σ |w x|`: rounding once per term of a partial
/// sum, with at least eight partial sums.
const PRODUCT_ERROR: f64 = 2e-6;

#[test]
fn matvec_agrees_with_the_reference_on_any_number_of_threads() {
    let mut random = Random(2);
    let pools = [1, 2, 3].map(|threads| Pool::new(threads).unwrap());
    for dtype in DType::ALL {
        for cols in widths(dtype) {
            for rows in [0, 1, 2, 3, 4, 5, 17, 130] {
                let bytes = random.matrix(dtype, rows, cols);
                let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
                let x = random.numbers(cols);
                let mut expected = vec![0.0; rows];
                reference::matvec(w, &x, &mut expected).unwrap();
                let bounds = magnitudes(w, &x);
                for k in available() {
                    let results = pools.each_ref().map(|pool| {
                        let mut y = vec![f32::NAN; rows];
                        let product = Product { w, x: &x, y: &mut y };
                        matvec::matvec_many_with(k, pool, &mut [product]).unwrap();
                        y
                    });
                    for i in 0..rows {
                        let error = f64::from(results[0][i] - expected[i]).abs();
                        let name = k.name;
                        assert!(
                            error <= PRODUCT_ERROR * bounds[i],
                            "{name} {dtype} {rows}x{cols} row {i}: {} for {}",
                            results[0][i],
                            expected[i],
                        );
                    }
                    assert_eq!(results[0], results[1]);
                    assert_eq!(results[0], results[2]);
                }
            }
        }
    }
}

#[test]
fn matmul_agrees_with_the_reference_on_any_number_of_threads() {
    let mut random = Random(3);
    let pools = [1, 2, 3].map(|threads| Pool::new(threads).unwrap());
    let mut scratch = Scratch::new();
    for dtype in DType::ALL {
        for cols in [0, 1, 3, 4, 11].map(|blocks| blocks * dtype.block_len().max(19)) {
            for (rows, n) in [(1, 2), (5, 3), (17, 4), (130, 7), (9, 32), (97, 33), (200, 70), (3, 0)] {
                let bytes = random.matrix(dtype, rows, cols);
                let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
                let x = random.numbers(n * cols);
                let mut expected = vec![0.0; n * rows];
                reference::matmul(w, n, &x, &mut expected).unwrap();
                for k in available() {
                    let results = pools.each_ref().map(|pool| {
                        let mut y = vec![f32::NAN; n * rows];
                        matmul::matmul_with(k, pool, w, n, &x, &mut y, &mut scratch).unwrap();
                        y
                    });
                    for t in 0..n {
                        let bounds = magnitudes(w, &x[t * cols..][..cols]);
                        for i in 0..rows {
                            let (found, expected) = (results[0][t * rows + i], expected[t * rows + i]);
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

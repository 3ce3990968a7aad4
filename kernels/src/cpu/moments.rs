//! Products of columns summed over rows, for second moments of activations.

use super::Cpu;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::blocks::prefetch;
use super::heads::ColumnOperands;
use crate::error::{ShapeError, check_numbers, check_size};

/// Maximum number of columns of [`Cpu::add_cross_products`]: their float64 sums and a piece of the
/// numbers fit the first cache levels.
pub const MAX_COLUMNS: usize = 64;

/// Divisor of the number of columns, a multiple of every register's length.
pub const COLUMN_STEP: usize = 16;

const ROWS_PER_PASS: usize = 64;

impl Cpu {
    /// Computes `sums += aᵀ b` for `a [n, rows]`, `b [n, cols]` and `sums [rows, cols]` on the
    /// calling thread. The products are added in float32 in the order of the `n` rows, and the
    /// result is added to `sums` in float64. It is faster if `a` and `b` begin on a cache line.
    ///
    /// # Errors
    /// When a length does not fit, or `rows` or `cols` is no multiple of [`COLUMN_STEP`] or above
    /// [`MAX_COLUMNS`]; nothing is written then.
    pub fn add_cross_products(
        &self,
        n: usize,
        a: &[f32],
        b: &[f32],
        [rows, cols]: [usize; 2],
        sums: &mut [f64],
    ) -> Result<(), ShapeError> {
        for (what, found) in [("rows", rows), ("cols", cols)] {
            let expected = found.next_multiple_of(COLUMN_STEP).min(MAX_COLUMNS);
            check_size(what, expected, found)?;
        }
        check_numbers("a (numbers)", &[n, rows], a.len())?;
        check_numbers("b (numbers)", &[n, cols], b.len())?;
        check_size("sums (numbers)", rows * cols, sums.len())?;
        if sums.is_empty() || n == 0 {
            return Ok(());
        }
        let mut products = CacheAligned([0.0; MAX_COLUMNS * MAX_COLUMNS]);
        let products = &mut products.0[..rows * cols];
        let ones = [1.0; MAX_COLUMNS];
        let pieces = a
            .chunks(ROWS_PER_PASS * rows)
            .zip(b.chunks(ROWS_PER_PASS * cols));
        // Prefetch the sums while the products are formed.
        let mut ahead = sums.chunks(sums.len().div_ceil(n.div_ceil(ROWS_PER_PASS)));
        for (piece, (a, b)) in pieces.enumerate() {
            if let Some(sums) = ahead.next() {
                prefetch_all(sums);
            }
            let operands = ColumnOperands {
                a,
                strides: [1, rows],
                rows,
                b,
                width: cols,
                keep: (piece > 0).then_some(&ones[..cols]),
            };
            (self.kernels.attention.gemm_columns)(operands, products);
        }
        (self.kernels.loops.add_to_doubles)(sums, products);
        Ok(())
    }
}

#[repr(align(64))]
struct CacheAligned([f32; MAX_COLUMNS * MAX_COLUMNS]);

fn prefetch_all(numbers: &[f64]) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    for line in numbers.chunks(8) {
        prefetch(line.as_ptr());
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = numbers;
}

impl Cpu {
    /// Computes `sums += Σ x` over the rows of `x [n, sums.len()]` in float64, in row order, on the
    /// calling thread.
    ///
    /// # Errors
    /// When `x` is no whole number of rows.
    pub fn add_rows(&self, x: &[f32], sums: &mut [f64]) -> Result<(), ShapeError> {
        crate::error::check_rows("x (numbers, a multiple of the sums)", sums.len(), x.len())?;
        for row in x.chunks_exact(sums.len().max(1)) {
            (self.kernels.loops.add_to_doubles)(sums, row);
        }
        Ok(())
    }
}

//! Low-rank keys and values: coordinates in a basis of their head (OjaKV, section 3).

use std::ops::Range;

use super::Cpu;
use super::heads::ColumnOperands;
use super::kernels::Kernels;
use super::kv::{KvNumbers, KvView};
use crate::error::{ShapeError, check_at_most, check_numbers};

const BATCH_ROWS: usize = 64;

/// Positions of one layer whose keys and values are stored as float16 coordinates `k̃ = U_kᵀ k` and
/// `ṽ = U_vᵀ v`, `[kv_heads, capacity, rank]`, in orthonormal bases of each KV head.
#[derive(Clone, Copy, Debug)]
pub struct LowRankView<'a> {
    stored: [&'a [u16]; 2],
    bases: [&'a [f32]; 2],
    pub(crate) shape: LowRankShape,
}

/// Shape of a [`LowRankView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRankShape {
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Numbers of a key, and of a value.
    pub head_size: usize,
    /// Coordinates of a key and of a value.
    pub ranks: [usize; 2],
    /// Capacity in positions.
    pub capacity: usize,
    /// Stored positions.
    pub positions: usize,
    /// Full positions of the sequence before them.
    pub front: usize,
}

impl<'a> LowRankView<'a> {
    /// Views coordinates of keys and values, `[kv_heads, capacity, rank]` each, and the components
    /// of their bases as rows, `[kv_heads, rank, head_size]`.
    ///
    /// # Errors
    /// When one of them has another length, a rank is 0 or above the head size, or `positions`
    /// exceeds the capacity.
    pub fn new(
        stored: [&'a [u16]; 2],
        bases: [&'a [f32]; 2],
        shape: LowRankShape,
    ) -> Result<Self, ShapeError> {
        let LowRankShape {
            kv_heads,
            head_size,
            capacity,
            ..
        } = shape;
        for side in 0..2 {
            let rank = shape.ranks[side];
            if rank == 0 || rank > head_size {
                let what = "rank (coordinates, at least 1 and at most)";
                return Err(ShapeError::new(what, head_size, rank));
            }
            let numbers = [kv_heads, capacity, rank];
            check_numbers("coordinates (numbers)", &numbers, stored[side].len())?;
            let numbers = [kv_heads, rank, head_size];
            check_numbers("basis (numbers)", &numbers, bases[side].len())?;
        }
        let what = "positions in low rank (at most)";
        check_at_most(what, capacity, shape.positions)?;
        Ok(LowRankView {
            stored,
            bases,
            shape,
        })
    }

    /// Components `[rank, head_size]` of the keys (side 0) or values (side 1) of a head.
    pub(crate) fn basis(&self, side: usize, head: usize) -> &'a [f32] {
        let len = self.shape.ranks[side] * self.shape.head_size;
        &self.bases[side][head * len..][..len]
    }

    /// Returns the matrix from keys (side 0) or values (side 1) of a head to coordinates.
    pub(super) fn projection(&self, side: usize, head: usize) -> SmallMatrix<'a> {
        SmallMatrix {
            numbers: self.basis(side, head),
            rows: self.shape.ranks[side],
            cols: self.shape.head_size,
            transposed: false,
        }
    }

    /// Returns the matrix from coordinates to keys (side 0) or values (side 1) of a head.
    pub(super) fn expansion(&self, side: usize, head: usize) -> SmallMatrix<'a> {
        SmallMatrix {
            numbers: self.basis(side, head),
            rows: self.shape.head_size,
            cols: self.shape.ranks[side],
            transposed: true,
        }
    }

    /// Coordinates of some positions, of keys and of values.
    pub(crate) fn rows(&self, head: usize, rows: Range<usize>) -> [KvNumbers<'a>; 2] {
        [0, 1].map(|side| {
            let at = |row: usize| (head * self.shape.capacity + row) * self.shape.ranks[side];
            KvNumbers::F16(&self.stored[side][at(rows.start)..at(rows.end)])
        })
    }
}

/// Matrix `[rows, cols]` for products with many short vectors.
#[derive(Clone, Copy, Debug)]
pub struct SmallMatrix<'a> {
    /// Row-major, or column-major if [`transposed`](SmallMatrix::transposed).
    pub numbers: &'a [f32],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// True if stored column by column.
    pub transposed: bool,
}

impl Cpu {
    /// Computes `out [n, rows] = x [n, cols] Aᵀ` on the calling thread: coordinates in a basis,
    /// from one basis to another, or back to heads.
    ///
    /// # Errors
    /// When a length does not fit.
    pub fn map_rows(
        &self,
        a: SmallMatrix<'_>,
        x: KvNumbers<'_>,
        out: &mut [f32],
    ) -> Result<(), ShapeError> {
        let SmallMatrix { rows, cols, .. } = a;
        let what = "A (numbers)";
        check_numbers(what, &[rows, cols], a.numbers.len())?;
        crate::error::check_rows("x (numbers, a multiple of the columns)", cols, x.len())?;
        let n = x.len().checked_div(cols).unwrap_or(0);
        check_numbers("out (numbers)", &[n, rows], out.len())?;
        if n == 0 || rows == 0 {
            return Ok(());
        }
        let mut buffer = vec![0.0; n.min(BATCH_ROWS) * cols];
        for first in (0..n).step_by(BATCH_ROWS) {
            let count = BATCH_ROWS.min(n - first);
            let x = x.slice(first * cols..(first + count) * cols);
            let x = x.decode_f32(self.kernels, &mut buffer);
            multiply_batch(self.kernels, a, x, &mut out[first * rows..][..count * rows]);
        }
        Ok(())
    }

    /// Reconstructs the keys and values of the first `positions` positions of `kv` as float32
    /// `[kv_heads, positions, head_size]`, low-rank ones as `U_k k̃` and `U_v ṽ`, for attention
    /// without low-rank support (OjaKV, section 3.3).
    ///
    /// # Errors
    /// When `kv` holds fewer positions.
    pub fn reconstruct(
        &self,
        kv: &KvView<'_>,
        positions: usize,
    ) -> Result<[Vec<f32>; 2], ShapeError> {
        kv.check_queries(0, 0, positions, 0)?;
        let (heads, size) = (kv.kv_heads(), kv.head_size());
        let [compressed, front] = kv.compressed();
        let front = front.min(positions);
        let mut all = [0, 1].map(|_| vec![0.0; heads * positions * size]);
        for (side, all) in all.iter_mut().enumerate() {
            self.pool.chunks_mut(all, positions * size, |head, all| {
                let (start, rest) = all.split_at_mut(front * size);
                let (middle, end) = rest.split_at_mut(compressed * size);
                for (rows, out) in [(0..front, start), (front..positions - compressed, end)] {
                    // The lengths are those of the view, here and below.
                    let _ = self.to_f32(kv.rows(head, rows)[side], out);
                }
                if let Some(low) = kv.low_rank() {
                    let a = low.expansion(side, head);
                    let _ = self.map_rows(a, low.rows(head, 0..compressed)[side], middle);
                }
            });
        }
        Ok(all)
    }
}

/// Computes `out [n, rows] = x [n, cols] Aᵀ` for one batch of vectors as columns. The shapes fit.
pub(super) fn multiply_batch(kernels: &Kernels, a: SmallMatrix<'_>, x: &[f32], out: &mut [f32]) {
    let n = x.len() / a.cols;
    let width = n.next_multiple_of(kernels.attention.lanes);
    // Columns without a vector are 0.
    let mut padded = vec![0.0; width * a.cols];
    padded[..x.len()].copy_from_slice(x);
    let mut columns = vec![0.0; width * a.cols];
    transpose(&padded, [width, a.cols], &mut columns);
    let mut product = vec![0.0; a.rows * width];
    let operands = ColumnOperands {
        a: a.numbers,
        strides: if a.transposed {
            [1, a.rows]
        } else {
            [a.cols, 1]
        },
        rows: a.rows,
        b: &columns,
        width,
        keep: None,
    };
    (kernels.attention.gemm_columns)(operands, &mut product);
    padded.clear();
    padded.resize(width * a.rows, 0.0);
    transpose(&product, [a.rows, width], &mut padded);
    out.copy_from_slice(&padded[..out.len()]);
}

/// Transposes `[rows, cols]` in blocks that fit registers.
pub(super) fn transpose(from: &[f32], [rows, cols]: [usize; 2], to: &mut [f32]) {
    const SIDE: usize = 4;
    for row in (0..rows).step_by(SIDE) {
        let height = SIDE.min(rows - row);
        let whole = if height == SIDE {
            cols / SIDE * SIDE
        } else {
            0
        };
        for col in (0..whole).step_by(SIDE) {
            let mut block = [[0.0; SIDE]; SIDE];
            for (r, block) in block.iter_mut().enumerate() {
                block.copy_from_slice(&from[(row + r) * cols + col..][..SIDE]);
            }
            for c in 0..SIDE {
                let to = &mut to[(col + c) * rows + row..][..SIDE];
                to.copy_from_slice(&[block[0][c], block[1][c], block[2][c], block[3][c]]);
            }
        }
        for col in whole..cols {
            for r in row..row + height {
                to[col * rows + r] = from[r * cols + col];
            }
        }
    }
}

//! Single-threaded products of dense `f32` matrices: a checked wrapper of the `gemm` crate.
//!
//! All `unsafe` of the dense products is in this file.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::{Pool, SendPtr};

/// Read-only matrix: element `(i, j)` at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy)]
pub(super) struct MatrixView<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> MatrixView<'a> {
    /// Views rows of a row-major matrix, `stride` apart.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(last_element(rows, cols, stride, 1) < data.len() || rows * cols == 0);
        MatrixView {
            data,
            rows,
            cols,
            row_stride: stride,
            col_stride: 1,
        }
    }

    /// Returns the transpose.
    pub fn transposed(self) -> Self {
        MatrixView {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

fn last_element(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> usize {
    rows.saturating_sub(1)
        .saturating_mul(row_stride)
        .saturating_add(cols.saturating_sub(1).saturating_mul(col_stride))
}

/// Mutable row-major matrix with rows `stride` apart.
pub(super) struct MatrixMut<'a, T = f32> {
    data: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> MatrixMut<'_, T> {
    /// Number of rows.
    #[cfg(target_arch = "x86_64")]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns one row.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        // SAFETY: the constructors ensure that the matrix owns `cols` elements from `row * stride`.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.stride), self.cols) }
    }
}

impl MatrixMut<'_> {
    /// Computes `self = factor * a b`, or `self += factor * a b`.
    pub fn multiply(
        &mut self,
        a: MatrixView<'_>,
        b: MatrixView<'_>,
        factor: f32,
        accumulate: bool,
    ) {
        assert!(a.rows == self.rows && b.cols == self.cols && a.cols == b.rows);
        if self.rows == 0 || self.cols == 0 {
            return;
        }
        // SAFETY: this matrix owns its elements and the views borrow theirs, all checked against the
        // lengths of their slices at construction; the shapes agree by the assertion; this matrix
        // cannot overlap a view, because it holds its slice mutably.
        unsafe {
            ::gemm::gemm(
                self.rows,
                self.cols,
                a.cols,
                self.data,
                1,
                self.stride as isize,
                accumulate,
                a.data.as_ptr(),
                a.col_stride as isize,
                a.row_stride as isize,
                b.data.as_ptr(),
                b.col_stride as isize,
                b.row_stride as isize,
                1.0,
                factor,
                false,
                false,
                false,
                ::gemm::Parallelism::None,
            );
        }
    }
}

/// Cuts `y [rows, cols]` into blocks of `block` rows and columns, the last ones smaller, and calls
/// `f` with the first row and column of each, the block, and the thread's scratch space of
/// `scratch.len() / threads` elements. Lower blocks begin first.
pub(super) fn for_each_block<T: Send, S: Send>(
    pool: &Pool,
    y: &mut [T],
    [rows, cols]: [usize; 2],
    [height, width]: [usize; 2],
    scratch: &mut [S],
    f: impl Fn([usize; 2], MatrixMut<'_, T>, &mut [S]) + Sync,
) {
    assert!(rows.saturating_mul(cols) <= y.len() && height > 0 && width > 0);
    let across = cols.div_ceil(width);
    let blocks = rows.div_ceil(height) * across;
    let data = SendPtr(y.as_mut_ptr());
    let next = AtomicUsize::new(0);
    // Each thread reuses its part of the scratch space for all its blocks.
    let part = scratch.len() / pool.threads();
    let scratch = &mut scratch[..part * pool.threads()];
    pool.chunks_mut(scratch, part, |_, scratch| {
        loop {
            let taken = next.fetch_add(1, Ordering::Relaxed);
            if taken >= blocks {
                break;
            }
            let index = blocks - 1 - taken;
            let (row, col) = (index / across * height, index % across * width);
            let block = MatrixMut {
                // SAFETY: `row < rows` and `col < cols`, so the element lies in `y`; the counter
                // gives every index once, so no two blocks share an element, and `y` is borrowed
                // mutably until all of them are done.
                data: unsafe { data.get().add(row * cols + col) },
                rows: height.min(rows - row),
                cols: width.min(cols - col),
                stride: cols,
                lifetime: PhantomData,
            };
            f([row, col], block, scratch);
        }
    });
}

//! Weights in the order in which they are multiplied.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::formats::{Format, Row, STRIP};
use crate::matrix::Matrix;

/// Rows of `W` that are multiplied together.
pub(super) const ROWS: usize = 32;

/// Strips of columns of a panel.
pub(super) const STRIPS: usize = 2;

/// Blocks of 32 columns in a strip.
pub(super) const BLOCKS: usize = 8;

/// Thirty-two columns of [`ROWS`] rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// Four columns of every row side by side, then the next four.
    pub codes: [[[u8; 4]; ROWS]; 8],
    /// The scales of either half of the columns, or those of all in the first.
    pub scales: [[f32; ROWS]; 2],
    /// The minima, likewise.
    pub minima: [[f32; ROWS]; 2],
}

/// The results of one vector.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Sums(pub [f32; ROWS]);

/// What one task works with.
#[derive(Clone, Debug)]
pub(in super::super) struct Panel {
    /// A range of columns that stays in the first-level cache.
    pub(super) blocks: [Block; STRIPS * BLOCKS],
    /// Where rows are unpacked.
    pub(super) rows: [Row; 16],
    /// What has been added up so far, for every vector and then for every vector with the next rows.
    pub(super) sums: Vec<Sums>,
}

impl Panel {
    pub(in super::super) const EMPTY: Panel = Panel {
        blocks: [Block {
            codes: [[[0; 4]; ROWS]; 8],
            scales: [[0.0; ROWS]; 2],
            minima: [[0.0; ROWS]; 2],
        }; STRIPS * BLOCKS],
        rows: [Row::ZERO; 16],
        sums: Vec::new(),
    };
}

/// Asks for the weights that come next while those at hand are multiplied.
pub(super) struct Ahead<'a> {
    w: Matrix<'a>,
    /// The first of the rows, and where in them.
    row: usize,
    byte: usize,
    /// Cache lines of a row and of all rows, and those that have been asked for.
    lines_of_row: usize,
    lines: usize,
    done: usize,
    /// Lines asked for at a time.
    step: usize,
}

impl<'a> Ahead<'a> {
    /// What follows the panel of the rows from `row` and the columns from `start` on, in so many
    /// steps: the next rows, or the first ones again of the next columns.
    pub fn new<F: Format>(w: Matrix<'a>, row: usize, start: usize, steps: usize) -> Self {
        let (row, start) = if row + ROWS < w.rows() {
            (row + ROWS, start)
        } else {
            (0, w.cols().min(start + STRIPS * STRIP))
        };
        let bytes = |cols: usize| cols / F::LEN * F::BYTES;
        let count = w.cols().min(start + STRIPS * STRIP) - start;
        // One more, for rows do not begin where lines begin.
        let lines_of_row = bytes(count).div_ceil(64) + 1;
        let lines = ROWS.min(w.rows() - row) * lines_of_row * usize::from(count > 0);
        Ahead {
            w,
            row,
            byte: bytes(start),
            lines_of_row,
            lines,
            done: 0,
            step: lines.div_ceil(steps.max(1)),
        }
    }

    /// One step.
    #[inline(always)]
    pub fn fetch(&mut self) {
        let end = self.lines.min(self.done + self.step);
        for line in self.done..end {
            let row = self.w.row(self.row + line / self.lines_of_row);
            let byte = self.byte + line % self.lines_of_row * 64;
            let address = row.as_ptr().wrapping_add(byte).cast();
            // SAFETY: a prefetch reads nothing into the program and cannot fault; it is part of
            // x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(address) };
        }
        self.done = end;
    }
}

//! Weights packed for multiplication.

use crate::cpu::activations::{BLOCKS, STRIP};

/// Rows of `W` that are multiplied together.
pub(super) const ROWS: usize = 32;

/// Super-blocks of columns of a panel.
pub(super) const STRIPS: usize = 2;

/// Super-block of one row without the f16 factors of its blocks.
///
/// The factors of half `h` of the 32 numbers of block `b` are number `8 h + b`; a format with one
/// scale per 32 numbers has no second half.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Row {
    pub codes: [u8; STRIP],
    /// Integer scales of a 256-number block.
    pub scales: [i8; 16],
    /// Integer minima of a 256-number block.
    pub minima: [i8; 16],
}

impl Row {
    pub const ZERO: Row = Row {
        codes: [0; STRIP],
        scales: [0; 16],
        minima: [0; 16],
    };
}

/// Thirty-two columns of [`ROWS`] rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// Four columns of every row, then the next four.
    pub codes: [[[u8; 4]; ROWS]; 8],
    /// Scales of either half of the columns, or of all in the first.
    pub scales: [[f32; ROWS]; 2],
    /// Minima, likewise.
    pub minima: [[f32; ROWS]; 2],
}

/// Results of one vector.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Sums(pub [f32; ROWS]);

/// Scratch space of one task.
#[derive(Clone, Debug)]
pub(in super::super) struct Panel {
    /// A range of columns that stays in the L1 cache.
    pub(super) blocks: [Block; STRIPS * BLOCKS],
    /// Unpacked rows.
    pub(super) rows: [Row; 16],
    /// Partial sums, for every vector and then for every vector with the next rows.
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

//! Weights packed for multiplication.

use crate::cpu::activations::{BLOCKS, SUPER_BLOCK_LEN};

/// Rows of `W` that are multiplied together.
pub(super) const PANEL_ROWS: usize = 32;

/// Super-blocks of columns of a panel.
pub(super) const PANEL_SUPER_BLOCKS: usize = 2;

/// Super-block of one row without the f16 factors of its blocks.
///
/// The factors of half `h` of the 32 numbers of block `b` are number `8 h + b`; a format with one
/// scale per 32 numbers has no second half.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(in crate::cpu) struct UnpackedRow {
    pub codes: [u8; SUPER_BLOCK_LEN],
    /// Integer scales of a 256-number block.
    pub scales: [i8; 16],
    /// Integer minima of a 256-number block.
    pub minima: [i8; 16],
}

impl UnpackedRow {
    pub const ZERO: UnpackedRow = UnpackedRow {
        codes: [0; SUPER_BLOCK_LEN],
        scales: [0; 16],
        minima: [0; 16],
    };
}

/// Thirty-two columns of [`PANEL_ROWS`] rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct PackedBlock {
    /// Four columns of every row, then the next four.
    pub codes: [[[u8; 4]; PANEL_ROWS]; 8],
    /// Scales of either half of the columns, or of all in the first.
    pub scales: [[f32; PANEL_ROWS]; 2],
    /// Minima, likewise.
    pub minima: [[f32; PANEL_ROWS]; 2],
}

/// Results of one vector.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct RowSums(pub [f32; PANEL_ROWS]);

/// Scratch space of one task.
#[derive(Clone, Debug)]
pub(in super::super) struct Panel {
    /// A range of columns that stays in the L1 cache.
    pub(super) blocks: [PackedBlock; PANEL_SUPER_BLOCKS * BLOCKS],
    /// Unpacked rows.
    pub(super) rows: [UnpackedRow; 16],
    /// Partial sums, for every vector and then for every vector with the next rows.
    pub(super) sums: Vec<RowSums>,
}

impl Panel {
    pub(in super::super) const EMPTY: Panel = Panel {
        blocks: [PackedBlock {
            codes: [[[0; 4]; PANEL_ROWS]; 8],
            scales: [[0.0; PANEL_ROWS]; 2],
            minima: [[0.0; PANEL_ROWS]; 2],
        }; PANEL_SUPER_BLOCKS * BLOCKS],
        rows: [UnpackedRow::ZERO; 16],
        sums: Vec::new(),
    };
}

//! Weights in the order in which they are multiplied.

use super::ROWS;
use super::formats::Row;

/// Rows in a register.
pub(super) const LANES: usize = 16;

/// Registers of rows.
pub(super) const VECTORS: usize = ROWS / LANES;

/// Strips of a panel.
pub(super) const STRIPS: usize = 2;

/// Blocks of 32 columns in a strip.
pub(super) const BLOCKS: usize = 8;

/// Thirty-two columns of [`ROWS`] rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// Four columns of a row side by side, those of all rows, then the next four.
    pub codes: [[[u8; 4 * LANES]; VECTORS]; 8],
    /// The scales of either half of the columns, or those of all in the first.
    pub scales: [[[f32; LANES]; VECTORS]; 2],
    /// The minima, likewise.
    pub minima: [[[f32; LANES]; VECTORS]; 2],
}

impl Block {
    const ZERO: Block = Block {
        codes: [[[0; 4 * LANES]; VECTORS]; 8],
        scales: [[[0.0; LANES]; VECTORS]; 2],
        minima: [[[0.0; LANES]; VECTORS]; 2],
    };
}

/// The weights that one task works on: a range of columns that stays in the first-level cache.
#[derive(Clone, Debug)]
pub(in super::super) struct Panel {
    pub(super) blocks: [Block; STRIPS * BLOCKS],
    /// Where rows are unpacked.
    pub(super) rows: [Row; LANES],
    /// What has been added up so far, for every vector.
    pub(super) sums: Vec<Sums>,
}

/// The results of one vector.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Sums(pub [[f32; LANES]; VECTORS]);

impl Sums {
    pub const ZERO: Sums = Sums([[0.0; LANES]; VECTORS]);
}

impl Panel {
    pub(in super::super) const EMPTY: Panel = Panel {
        blocks: [Block::ZERO; STRIPS * BLOCKS],
        rows: [Row::ZERO; LANES],
        sums: Vec::new(),
    };
}

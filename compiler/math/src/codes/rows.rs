//! Error feedback from rows to the rows below.
//!
//! With the second moment `H` of the output gradients and `C` of the inputs, the errors `E` cost `½
//! tr(H E C Eᵀ)` (Martens and Grosse 2015). For `H = M G Mᵀ` with `M` unit upper triangular in
//! blocks of rows and `G` block-diagonal, the optimum for block `b`, given those above, is to
//! quantise `W_b + Σ_{a<b} M_abᵀ E_a` with feedback along columns, weighted by the diagonal of
//! `G_b` (Tseng et al. 2025, "YAQA").

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::FactoriseError;
use crate::feedback::{check_damping, reversed_cholesky};

/// Quantised before their errors are carried.
const ROWS_PER_STEP: usize = 32;

/// Diagonal block of the second moment of the outputs.
#[derive(Clone, Copy, Debug)]
pub struct OutputBlock<'a> {
    /// First row and column.
    pub first: usize,
    /// Number of rows.
    pub order: usize,
    /// Lower triangle, row by row: `order (order + 1) / 2` numbers.
    pub lower: &'a [f32],
}

/// Row weights and error feedback between the rows of one matrix.
#[derive(Clone, Debug)]
pub struct RowFeedback {
    weights: Vec<f32>,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug)]
struct Block {
    first: usize,
    order: usize,
    /// `M [order, order]`, row-major; read right of its diagonal blocks.
    factor: Vec<f32>,
    /// `H [order, order]`, row-major, in the units of the weights.
    moment: Vec<f32>,
}

impl RowFeedback {
    /// Creates independent rows with these weights.
    pub fn from_weights(mut weights: Vec<f32>) -> RowFeedback {
        normalise(&mut weights);
        RowFeedback {
            weights,
            blocks: Vec::new(),
        }
    }

    /// Factorises consecutive blocks of a second moment plus `damping` times the mean of its
    /// diagonal.
    pub fn new(blocks: &[OutputBlock<'_>], damping: f64) -> Result<RowFeedback, FactoriseError> {
        let added = check_damping(damping)?;
        let diagonal = |of: &OutputBlock<'_>| -> f64 {
            let of_row = (0..of.order).map(|i| f64::from(of.lower[i * (i + 3) / 2]));
            of_row.sum()
        };
        let rows: usize = blocks.iter().map(|of| of.order).sum();
        let mean = blocks.iter().map(diagonal).sum::<f64>() / rows.max(1) as f64;
        let unit = if mean > 0.0 { mean } else { 1.0 };
        let mut found = RowFeedback {
            weights: Vec::with_capacity(rows),
            blocks: Vec::with_capacity(blocks.len()),
        };
        for of in blocks {
            let block = Block::new(of, unit, added, &mut found.weights)?;
            found.blocks.push(block);
        }
        normalise(&mut found.weights);
        Ok(found)
    }

    /// Returns the row weights after compensation by the rows below.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Returns the first row, the order and the second moment of a row's block.
    pub(super) fn block_of_row(&self, row: usize) -> Option<(usize, usize, &[f32])> {
        let found = &self.blocks[self.block_index(row)?];
        Some((found.first, found.order, &found.moment))
    }

    fn block_index(&self, row: usize) -> Option<usize> {
        let mut blocks = self.blocks.iter();
        blocks.position(|of| (of.first..of.first + of.order).contains(&row))
    }
}

fn normalise(weights: &mut [f32]) {
    let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let mean = (sum / weights.len().max(1) as f64) as f32;
    if mean > 0.0 {
        weights.iter_mut().for_each(|w| *w /= mean)
    } else {
        weights.fill(1.0)
    }
}

impl Block {
    fn new(
        of: &OutputBlock<'_>,
        unit: f64,
        added: f64,
        weights: &mut Vec<f32>,
    ) -> Result<Block, FactoriseError> {
        let n = of.order;
        let entry = |row: usize, col: usize| {
            let own = if row == col { added } else { 0.0 };
            let (row, col) = (row.max(col), row.min(col));
            f64::from(of.lower[row * (row + 1) / 2 + col]) / unit + own
        };
        let reversed = reversed_cholesky(n, entry)?;
        // `H = U Uᵀ` with `U` upper triangular.
        let upper = |i: usize, j: usize| reversed[(n - 1 - i, n - 1 - j)];
        let mut factor = vec![0.0; n * n];
        let mut solved = vec![0.0; ROWS_PER_STEP];
        for start in (0..n).step_by(ROWS_PER_STEP) {
            let end = (start + ROWS_PER_STEP).min(n);
            for i in start..end {
                let own = (i..end).map(|j| upper(i, j).powi(2));
                weights.push(own.sum::<f64>() as f32);
            }
            for row in 0..start {
                for j in start..end {
                    let before = (start..j).map(|k| solved[k - start] * upper(k, j));
                    solved[j - start] = (upper(row, j) - before.sum::<f64>()) / upper(j, j);
                    factor[row * n + j] = solved[j - start] as f32;
                }
            }
        }
        let whole = (0..n * n).map(|at| entry(at / n, at % n) as f32);
        Ok(Block {
            first: of.first,
            order: n,
            factor,
            moment: whole.collect(),
        })
    }
}

/// Errors carried from the rows above. For each [`rows_per_step`](Self::rows_per_step) add
/// [`error_of_row`](Self::error_of_row), quantise, then [`record_errors`](Self::record_errors)
/// relative to the original rows.
#[derive(Clone, Debug)]
pub struct CarriedErrors<'a> {
    rows: Option<&'a RowFeedback>,
    cols: usize,
    block: usize,
    /// Carried errors of the present block, `Mᵀ E [order, cols]`.
    carried: Vec<f32>,
}

impl<'a> CarriedErrors<'a> {
    /// Creates an empty state.
    pub fn new(rows: Option<&'a RowFeedback>, cols: usize) -> CarriedErrors<'a> {
        CarriedErrors {
            rows,
            cols,
            block: usize::MAX,
            carried: Vec::new(),
        }
    }

    /// Returns the rows per step; `None` without feedback between rows.
    pub fn rows_per_step(&self) -> Option<usize> {
        self.rows
            .filter(|rows| !rows.blocks.is_empty())
            .map(|_| ROWS_PER_STEP)
    }

    /// Returns the error carried to a row, if any.
    pub fn error_of_row(&self, row: usize) -> Option<&[f32]> {
        let block = self.rows?.blocks.get(self.block)?;
        let at = row.checked_sub(block.first)?;
        (at < block.order).then(|| &self.carried[at * self.cols..][..self.cols])
    }

    /// Records the errors `[_, cols]` of the rows just quantised.
    pub fn record_errors(&mut self, first: usize, errors: &[f32]) {
        let Some(rows) = self.rows else { return };
        let Some(index) = rows.block_index(first) else {
            return;
        };
        let (block, n) = (&rows.blocks[index], self.cols);
        if self.block != index {
            self.block = index;
            self.carried.clear();
            self.carried.resize(block.order * n, 0.0);
        }
        let count = errors.len() / n.max(1);
        let (at, order) = (first - block.first, block.order);
        let below = at + count;
        if below >= order {
            return;
        }
        let factor = MatRef::from_row_major_slice(&block.factor, order, order);
        let moved = MatMut::from_row_major_slice_mut(&mut self.carried, order, n);
        matmul(
            moved.subrows_mut(below, order - below),
            Accum::Add,
            factor
                .submatrix(at, below, count, order - below)
                .transpose(),
            MatRef::from_row_major_slice(errors, count, n),
            1.0,
            Par::Seq,
        );
    }
}

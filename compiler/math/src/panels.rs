//! A weight seen as a tall matrix and read in panels.

use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::{Accum, Mat, MatRef, Par};

use super::Weight;

/// Rows of a panel: enough for the matrix products to run at full speed, few enough that
/// the float64 copy of a panel is small beside the factors.
const PANEL: usize = 512;

/// `T [long, short]`: the weight itself or its transpose, possibly under a gauge. It is never
/// copied to float64 as a whole unless [`dense`](Panels::dense) asks for it.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    weight: Weight<'a>,
    transposed: bool,
    /// What every row of the weight is multiplied by.
    rows: Option<&'a [f64]>,
    /// What every column of the weight is multiplied by.
    cols: Option<&'a [f64]>,
    /// What `T` is multiplied by on its right.
    right: Option<MatRef<'a, f64>>,
}

impl<'a> Panels<'a> {
    /// `T = W`.
    pub fn of(weight: Weight<'a>) -> Self {
        Panels {
            weight,
            transposed: false,
            rows: None,
            cols: None,
            right: None,
        }
    }

    /// `T = Wᵀ`.
    pub fn transpose_of(weight: Weight<'a>) -> Self {
        Panels {
            transposed: true,
            ..Panels::of(weight)
        }
    }

    /// `T = W` when it has at least as many rows as columns, `T = Wᵀ` otherwise.
    pub fn tall(weight: Weight<'a>) -> Self {
        if weight.rows < weight.cols {
            Panels::transpose_of(weight)
        } else {
            Panels::of(weight)
        }
    }

    /// The same of `diag(rows) W diag(cols)`.
    pub fn scaled(self, rows: Option<&'a [f64]>, cols: Option<&'a [f64]>) -> Self {
        Panels { rows, cols, ..self }
    }

    /// `T right` for a square matrix.
    pub fn times_right(self, right: MatRef<'a, f64>) -> Self {
        Panels {
            right: Some(right),
            ..self
        }
    }

    /// Whether `T = Wᵀ`.
    pub fn transposed(&self) -> bool {
        self.transposed
    }

    /// Rows of `T`.
    pub fn long(&self) -> usize {
        if self.transposed {
            self.weight.cols
        } else {
            self.weight.rows
        }
    }

    /// Columns of `T`.
    pub fn short(&self) -> usize {
        if self.transposed {
            self.weight.rows
        } else {
            self.weight.cols
        }
    }

    /// Adds `scale · TᵀT` to the lower triangle of `gram [short, short]`.
    pub fn add_gram(&self, scale: f64, gram: &mut Mat<f64>) {
        self.for_each(|_, panel| {
            triangular::matmul(
                gram.as_mut(),
                BlockStructure::TriangularLower,
                Accum::Add,
                panel.transpose(),
                BlockStructure::Rectangular,
                panel,
                BlockStructure::Rectangular,
                scale,
                Par::Seq,
            );
        });
    }

    /// `T X [long, r]` for `X [short, r]`, one panel of rows at a time:
    /// `visit(first row, rows)`.
    pub fn times(&self, x: MatRef<'_, f64>, mut visit: impl FnMut(usize, MatRef<'_, f64>)) {
        let mut product = Mat::<f64>::zeros(PANEL.min(self.long()), x.ncols());
        self.for_each(|start, panel| {
            let mut rows = product.as_mut().subrows_mut(0, panel.nrows());
            matmul(rows.as_mut(), Accum::Replace, panel, x, 1.0, Par::Seq);
            visit(start, rows.as_ref());
        });
    }

    /// `T` in float64, column-major.
    pub fn dense(&self) -> Mat<f64> {
        let mut dense = Mat::zeros(self.long(), self.short());
        self.for_each(|start, panel| {
            dense
                .as_mut()
                .subrows_mut(start, panel.nrows())
                .copy_from(panel);
        });
        dense
    }

    /// Every panel `[≤ PANEL, short]` of `T` in float64 with its first row, in order.
    pub fn for_each(&self, mut visit: impl FnMut(usize, MatRef<'_, f64>)) {
        match self.right {
            None => self.for_each_of_weight(visit),
            Some(right) => {
                let mut product = Mat::<f64>::zeros(PANEL.min(self.long()), self.short());
                self.for_each_of_weight(|start, panel| {
                    let mut rows = product.as_mut().subrows_mut(0, panel.nrows());
                    matmul(rows.as_mut(), Accum::Replace, panel, right, 1.0, Par::Seq);
                    visit(start, rows.as_ref());
                });
            }
        }
    }

    /// [`for_each`](Panels::for_each) without the product.
    fn for_each_of_weight(&self, mut visit: impl FnMut(usize, MatRef<'_, f64>)) {
        let (long, short) = (self.long(), self.short());
        if self.transposed {
            // Rows of T are columns of W: row-major in T means adjacent in a column of
            // the buffer's transpose, hence a column-major buffer.
            let mut buffer = Mat::<f64>::zeros(PANEL.min(long), short);
            for start in (0..long).step_by(PANEL) {
                let p = PANEL.min(long - start);
                for (j, row) in self.weight.values.chunks_exact(long).enumerate() {
                    let column = buffer.as_mut().col_mut(j).subrows_mut(0, p);
                    self.copy(j, start, &row[start..start + p], column.iter_mut());
                }
                visit(start, buffer.as_ref().subrows(0, p));
            }
        } else {
            let mut buffer = Mat::<f64>::zeros(short, PANEL.min(long));
            for start in (0..long).step_by(PANEL) {
                let p = PANEL.min(long - start);
                let rows = &self.weight.values[start * short..(start + p) * short];
                for (j, row) in rows.chunks_exact(short).enumerate() {
                    let column = buffer.as_mut().col_mut(j);
                    self.copy(start + j, 0, row, column.iter_mut());
                }
                visit(start, buffer.as_ref().subcols(0, p).transpose());
            }
        }
    }

    /// Part of row `row` of the weight, from column `col` on, with the factors of both.
    fn copy<'t>(
        &self,
        row: usize,
        col: usize,
        values: &[f32],
        to: impl Iterator<Item = &'t mut f64>,
    ) {
        let values = values.iter().map(|&v| f64::from(v));
        if self.rows.is_none() && self.cols.is_none() {
            to.zip(values).for_each(|(to, value)| *to = value);
            return;
        }
        let by_row = self.rows.map_or(1.0, |rows| rows[row]);
        match self.cols {
            None => to.zip(values).for_each(|(to, value)| *to = by_row * value),
            Some(cols) => to
                .zip(values.zip(&cols[col..]))
                .for_each(|(to, (value, by_col))| *to = by_row * value * by_col),
        }
    }
}

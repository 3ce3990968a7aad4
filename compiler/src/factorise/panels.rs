//! A weight seen as a tall matrix and read in panels.

use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::{Accum, Mat, MatRef, Par};

use super::Weight;

/// Rows of a panel: enough for the matrix products to run at full speed, few enough that
/// the float64 copy of a panel is small beside the factors.
const PANEL: usize = 512;

/// `T [long, short]`: the weight itself or its transpose. It is never copied to
/// float64 as a whole unless [`dense`](Panels::dense) asks for it.
pub(super) struct Panels<'a> {
    weight: Weight<'a>,
    transposed: bool,
}

impl<'a> Panels<'a> {
    /// `T = W`.
    pub fn of(weight: Weight<'a>) -> Self {
        Panels {
            weight,
            transposed: false,
        }
    }

    /// `T = W` when it has at least as many rows as columns, `T = Wᵀ` otherwise.
    pub fn tall(weight: Weight<'a>) -> Self {
        Panels {
            weight,
            transposed: weight.rows < weight.cols,
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
    fn for_each(&self, mut visit: impl FnMut(usize, MatRef<'_, f64>)) {
        let (long, short) = (self.long(), self.short());
        if self.transposed {
            // Rows of T are columns of W: row-major in T means adjacent in a column of
            // the buffer's transpose, hence a column-major buffer.
            let mut buffer = Mat::<f64>::zeros(PANEL.min(long), short);
            for start in (0..long).step_by(PANEL) {
                let p = PANEL.min(long - start);
                for (j, row) in self.weight.values.chunks_exact(long).enumerate() {
                    let column = buffer.as_mut().col_mut(j).subrows_mut(0, p);
                    for (to, &from) in column.iter_mut().zip(&row[start..start + p]) {
                        *to = f64::from(from);
                    }
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
                    for (to, &from) in column.iter_mut().zip(row) {
                        *to = f64::from(from);
                    }
                }
                visit(start, buffer.as_ref().subcols(0, p).transpose());
            }
        }
    }
}

//! Weights as tall matrices that are read in panels of rows.

use faer::{Accum, Mat, MatRef};

use super::{Algebra, FactoriseError, GramAccumulator, Weight};

/// `T [long, short]`: the weight or its transpose, possibly under a gauge.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    weight: Weight<'a>,
    algebra: &'a dyn Algebra,
    transposed: bool,
    rows: Option<&'a [f64]>,
    cols: Option<&'a [f64]>,
    right: Option<MatRef<'a, f64>>,
}

impl<'a> Panels<'a> {
    /// Creates the panels of `T = W`.
    pub fn new(weight: Weight<'a>, algebra: &'a dyn Algebra) -> Self {
        Panels {
            weight,
            algebra,
            transposed: false,
            rows: None,
            cols: None,
            right: None,
        }
    }

    /// Creates the panels of `T = Wᵀ`.
    pub fn transposed_weight(weight: Weight<'a>, algebra: &'a dyn Algebra) -> Self {
        Panels {
            transposed: true,
            ..Panels::new(weight, algebra)
        }
    }

    /// `T = W` when it has at least as many rows as columns, `T = Wᵀ` otherwise.
    pub fn tall(weight: Weight<'a>, algebra: &'a dyn Algebra) -> Self {
        if weight.rows < weight.cols {
            Panels::transposed_weight(weight, algebra)
        } else {
            Panels::new(weight, algebra)
        }
    }

    /// Replaces the weight by `diag(rows) W diag(cols)`.
    pub fn scaled(self, rows: Option<&'a [f64]>, cols: Option<&'a [f64]>) -> Self {
        Panels { rows, cols, ..self }
    }

    pub fn times_right(self, right: MatRef<'a, f64>) -> Self {
        Panels {
            right: Some(right),
            ..self
        }
    }

    pub fn transposed(&self) -> bool {
        self.transposed
    }

    pub fn rows(&self) -> usize {
        if self.transposed {
            self.weight.cols
        } else {
            self.weight.rows
        }
    }

    pub fn cols(&self) -> usize {
        if self.transposed {
            self.weight.rows
        } else {
            self.weight.cols
        }
    }

    fn panel(&self) -> usize {
        self.algebra.panel_rows(self.cols()).min(self.rows())
    }

    /// Adds `scale · TᵀT [short, short]`.
    pub fn add_gram(
        &self,
        scale: f64,
        gram: &mut dyn GramAccumulator,
    ) -> Result<(), FactoriseError> {
        self.for_each(|_, panel| gram.add_rows(scale, panel))
    }

    /// Returns the lower triangle of `TᵀT [short, short]`.
    pub fn gram(&self) -> Result<Mat<f64>, FactoriseError> {
        let mut gram = self.algebra.new_gram(self.cols())?;
        self.add_gram(1.0, &mut *gram)?;
        gram.finish()
    }

    /// Computes `T X [long, r]` by panels of rows: `visit(first row, rows)`.
    pub fn times(
        &self,
        x: MatRef<'_, f64>,
        mut visit: impl FnMut(usize, MatRef<'_, f64>),
    ) -> Result<(), FactoriseError> {
        let mut product = Mat::<f64>::zeros(self.panel(), x.ncols());
        self.for_each(|start, panel| {
            let mut rows = product.as_mut().subrows_mut(0, panel.nrows());
            let replace = Accum::Replace;
            (self.algebra).multiply(rows.as_mut(), replace, panel, x, 1.0)?;
            visit(start, rows.as_ref());
            Ok(())
        })
    }

    /// Returns `T` in float64, column-major.
    pub fn dense(&self) -> Result<Mat<f64>, FactoriseError> {
        let mut dense = Mat::zeros(self.rows(), self.cols());
        self.for_each(|start, panel| {
            dense
                .as_mut()
                .subrows_mut(start, panel.nrows())
                .copy_from(panel);
            Ok(())
        })?;
        Ok(dense)
    }

    /// Visits panels `[≤ panel, short]` of `T` in float64 with their first row, in order.
    pub fn for_each(
        &self,
        mut visit: impl FnMut(usize, MatRef<'_, f64>) -> Result<(), FactoriseError>,
    ) -> Result<(), FactoriseError> {
        match self.right {
            None => self.for_each_of_weight(visit),
            Some(right) => {
                let mut product = Mat::<f64>::zeros(self.panel(), self.cols());
                self.for_each_of_weight(|start, panel| {
                    let mut rows = product.as_mut().subrows_mut(0, panel.nrows());
                    let replace = Accum::Replace;
                    (self.algebra).multiply(rows.as_mut(), replace, panel, right, 1.0)?;
                    visit(start, rows.as_ref())
                })
            }
        }
    }

    fn for_each_of_weight(
        &self,
        mut visit: impl FnMut(usize, MatRef<'_, f64>) -> Result<(), FactoriseError>,
    ) -> Result<(), FactoriseError> {
        let (long, short, panel) = (self.rows(), self.cols(), self.panel());
        if self.transposed {
            // A column-major buffer keeps rows of T contiguous.
            let mut buffer = Mat::<f64>::zeros(panel, short);
            for start in (0..long).step_by(panel.max(1)) {
                let p = panel.min(long - start);
                for (j, row) in self.weight.values.chunks_exact(long).enumerate() {
                    let column = buffer.as_mut().col_mut(j).subrows_mut(0, p);
                    self.copy_scaled(j, start, &row[start..start + p], column.iter_mut());
                }
                visit(start, buffer.as_ref().subrows(0, p))?;
            }
        } else {
            let mut buffer = Mat::<f64>::zeros(short, panel);
            for start in (0..long).step_by(panel.max(1)) {
                let p = panel.min(long - start);
                let rows = &self.weight.values[start * short..(start + p) * short];
                for (j, row) in rows.chunks_exact(short).enumerate() {
                    let column = buffer.as_mut().col_mut(j);
                    self.copy_scaled(start + j, 0, row, column.iter_mut());
                }
                visit(start, buffer.as_ref().subcols(0, p).transpose())?;
            }
        }
        Ok(())
    }

    fn copy_scaled<'t>(
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

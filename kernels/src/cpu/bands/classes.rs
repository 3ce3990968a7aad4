//! Products of matrices with row classes: each class is multiplied as a separate matrix, and the
//! results are scattered to the rows.

use htc_formats::bands::{ColumnGroupMatrix, MAP_BLOCK_ROWS, MAX_CLASSES, RowClassMatrix};

use crate::cpu::Cpu;
use crate::cpu::gemm::for_each_block;
use crate::cpu::scratch::Scratch;
use crate::error::{ShapeError, check_size, checked_product};

impl Cpu {
    /// Computes `y = x Wᵀ` for a matrix in column groups, with or without row classes; `x [n,
    /// cols]` and `y [n, rows]`.
    ///
    /// # Errors
    /// When `x` or `y` has another length.
    ///
    /// # Panics
    /// If a class map was not [checked](ColumnGroupMatrix::check) and is inconsistent.
    pub fn banded(
        &self,
        w: ColumnGroupMatrix<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        match w {
            ColumnGroupMatrix::Uniform(w) => self.bands(w, n, x, y, scratch),
            ColumnGroupMatrix::Classes(w) => {
                check_size(
                    "y (numbers)",
                    checked_product("y (numbers)", &[n, w.rows()])?,
                    y.len(),
                )?;
                let mut products = std::mem::take(&mut scratch.classes);
                let outcome = self.classes(w, n, x, y, (&mut products, scratch));
                scratch.classes = products;
                outcome
            }
        }
    }

    fn classes(
        &self,
        w: RowClassMatrix<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        (products, scratch): (&mut Vec<f32>, &mut Scratch),
    ) -> Result<(), ShapeError> {
        if products.len() < y.len() {
            products.resize(y.len(), 0.0);
        }
        // Per class: start of its products, and their number per vector.
        let mut places = Vec::with_capacity(MAX_CLASSES);
        let mut rest = &mut products[..y.len()];
        let mut start = 0;
        for class in w.classes() {
            let (own, others) = rest.split_at_mut(n * class.rows());
            self.bands(class, n, x, own, scratch)?;
            places.push((start, class.rows()));
            start += own.len();
            rest = others;
        }
        let (products, rows) = (&products[..start], w.rows());
        let (shape, block) = ([n, rows], [n.max(1), MAP_BLOCK_ROWS]);
        let mut none = vec![(); self.pool.threads()];
        for_each_block(
            &self.pool,
            y,
            shape,
            block,
            &mut none,
            |[_, row], mut y, _| {
                let block = w.block(row / MAP_BLOCK_ROWS);
                let mut before = block.before;
                let mut from = [(0, 0); MAP_BLOCK_ROWS];
                let from = &mut from[..MAP_BLOCK_ROWS.min(rows - row)];
                for (r, from) in from.iter_mut().enumerate() {
                    let class = block.class(r);
                    let (start, stride) = places[class];
                    *from = (start + before[class], stride);
                    before[class] += 1;
                }
                for t in 0..n {
                    for (y, (start, stride)) in y.row_mut(t).iter_mut().zip(&*from) {
                        *y = products[start + t * stride];
                    }
                }
            },
        );
        Ok(())
    }
}

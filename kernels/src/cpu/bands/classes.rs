//! Products of matrices with row classes: each class is multiplied as a separate matrix, and the
//! results are scattered to the rows.

use htc_formats::bands::{ColumnGroupMatrix, MAP_BLOCK_ROWS, MAX_CLASSES, RowClassMatrix};

use crate::cpu::Cpu;
use crate::cpu::gemm::for_each_block;
use crate::cpu::scratch::{Scratch, grown};
use crate::error::{ShapeError, check_numbers};

/// Location of the products of a row class.
struct ClassProducts {
    start: usize,
    /// Products per vector.
    stride: usize,
}

impl Cpu {
    /// Computes `y = x Wᵀ` for a matrix in column groups, with or without row classes; `x [n,
    /// cols]` and `y [n, rows]`.
    ///
    /// # Errors
    /// When `x` or `y` has another length.
    ///
    /// # Panics
    /// If a class map was not [checked](ColumnGroupMatrix::check) and is inconsistent.
    pub fn matmul_column_groups(
        &self,
        w: ColumnGroupMatrix<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        match w {
            ColumnGroupMatrix::Uniform(w) => self.matmul_uniform_groups(w, n, x, y, scratch),
            ColumnGroupMatrix::Classes(w) => {
                check_numbers("y (numbers)", &[n, w.rows()], y.len())?;
                let mut products = std::mem::take(&mut scratch.class_products);
                let outcome = self.multiply_classes(w, n, x, &mut products, scratch);
                if let Ok(places) = &outcome {
                    self.scatter_rows(w, n, &products, places, y);
                }
                scratch.class_products = products;
                outcome.map(|_| ())
            }
        }
    }

    /// Multiplies each class as a separate matrix; `products` grows to `n * rows` numbers.
    fn multiply_classes(
        &self,
        w: RowClassMatrix<'_>,
        n: usize,
        x: &[f32],
        products: &mut Vec<f32>,
        scratch: &mut Scratch,
    ) -> Result<Vec<ClassProducts>, ShapeError> {
        let mut places = Vec::with_capacity(MAX_CLASSES);
        let mut rest = grown(products, n * w.rows(), 0.0);
        let mut start = 0;
        for class in w.classes() {
            let (class_products, remaining) = rest.split_at_mut(n * class.rows());
            self.matmul_uniform_groups(class, n, x, class_products, scratch)?;
            places.push(ClassProducts {
                start,
                stride: class.rows(),
            });
            start += class_products.len();
            rest = remaining;
        }
        Ok(places)
    }

    /// Copies the products of the classes to the rows of `y [n, rows]`.
    fn scatter_rows(
        &self,
        w: RowClassMatrix<'_>,
        n: usize,
        products: &[f32],
        places: &[ClassProducts],
        y: &mut [f32],
    ) {
        let rows = w.rows();
        let (shape, block) = ([n, rows], [n.max(1), MAP_BLOCK_ROWS]);
        let mut states = vec![(); self.pool.threads()];
        for_each_block(
            &self.pool,
            y,
            shape,
            block,
            &mut states,
            |[_, row], mut y, _| {
                let block = w.block(row / MAP_BLOCK_ROWS);
                let mut before = block.before;
                let mut from = [(0, 0); MAP_BLOCK_ROWS];
                let from = &mut from[..MAP_BLOCK_ROWS.min(rows - row)];
                for (r, from) in from.iter_mut().enumerate() {
                    let class = block.class(r);
                    let ClassProducts { start, stride } = places[class];
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
    }
}

//! Linear algebra in float64 that shares no code with the library.

/// A row-major matrix.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The values, row by row.
    pub values: Vec<f64>,
}

impl Matrix {
    /// Creates a matrix from its values.
    pub fn new(rows: usize, cols: usize, values: &[f32]) -> Matrix {
        assert_eq!(values.len(), rows * cols);
        let values = values.iter().map(|&v| f64::from(v)).collect();
        Matrix { rows, cols, values }
    }

    fn zero(rows: usize, cols: usize) -> Matrix {
        let values = vec![0.0; rows * cols];
        Matrix { rows, cols, values }
    }

    /// Returns an entry.
    pub fn at(&self, row: usize, col: usize) -> f64 {
        self.values[row * self.cols + col]
    }

    /// Returns the product with another matrix.
    #[must_use]
    pub fn times(&self, other: &Matrix) -> Matrix {
        assert_eq!(self.cols, other.rows);
        let mut product = Matrix::zero(self.rows, other.cols);
        for (row, out) in product.values.chunks_exact_mut(other.cols).enumerate() {
            for inner in 0..self.cols {
                let factor = self.at(row, inner);
                let others = &other.values[inner * other.cols..][..other.cols];
                for (out, &other) in out.iter_mut().zip(others) {
                    *out += factor * other;
                }
            }
        }
        product
    }

    /// Returns the transpose.
    #[must_use]
    pub fn transposed(&self) -> Matrix {
        let mut transpose = Matrix::zero(self.cols, self.rows);
        for row in 0..self.rows {
            for col in 0..self.cols {
                transpose.values[col * self.rows + row] = self.at(row, col);
            }
        }
        transpose
    }

    /// Adds `factor` times another matrix.
    pub fn add(&mut self, factor: f64, other: &Matrix) {
        for (value, other) in self.values.iter_mut().zip(&other.values) {
            *value += factor * other;
        }
    }

    /// Returns the first `count` rows.
    #[must_use]
    pub fn leading_rows(&self, count: usize) -> Matrix {
        Matrix {
            rows: count,
            cols: self.cols,
            values: self.values[..count * self.cols].to_vec(),
        }
    }

    /// Returns the Frobenius norm.
    pub fn norm(&self) -> f64 {
        self.values.iter().map(|v| v * v).sum::<f64>().sqrt()
    }

    /// Returns `‖self − other‖ / ‖self‖` in the Frobenius norm.
    pub fn relative_distance(&self, other: &Matrix) -> f64 {
        let mut difference = self.clone();
        difference.add(-1.0, other);
        difference.norm() / self.norm()
    }

    /// Returns the eigenvalues in decreasing order and the eigenvectors (as rows) of a symmetric
    /// matrix, by Jacobi rotations.
    pub fn eigen(&self) -> (Vec<f64>, Matrix) {
        let n = self.rows;
        let mut a = self.clone();
        let mut vectors = Matrix::zero(n, n);
        for i in 0..n {
            vectors.values[i * n + i] = 1.0;
        }
        let scale = self.norm();
        for _sweep in 0..60 {
            let off: f64 = (0..n)
                .flat_map(|p| (0..p).map(move |q| (p, q)))
                .map(|(p, q)| a.at(p, q).powi(2))
                .sum();
            if off.sqrt() <= 1e-15 * scale {
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|&i, &j| a.at(j, j).total_cmp(&a.at(i, i)));
                let values = order.iter().map(|&i| a.at(i, i)).collect();
                let rows = order.iter().flat_map(|&i| &vectors.values[i * n..][..n]);
                let vectors = Matrix {
                    rows: n,
                    cols: n,
                    values: rows.copied().collect(),
                };
                return (values, vectors);
            }
            for p in 0..n {
                for q in p + 1..n {
                    rotate(&mut a, &mut vectors, p, q);
                }
            }
        }
        panic!("Jacobi's method did not converge");
    }
}

fn rotate(a: &mut Matrix, vectors: &mut Matrix, p: usize, q: usize) {
    let n = a.rows;
    let apq = a.at(p, q);
    if apq == 0.0 {
        return;
    }
    let theta = (a.at(q, q) - a.at(p, p)) / (2.0 * apq);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let t = if theta == 0.0 { 1.0 } else { t };
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    for k in 0..n {
        let (x, y) = (a.at(k, p), a.at(k, q));
        a.values[k * n + p] = c * x - s * y;
        a.values[k * n + q] = s * x + c * y;
    }
    for matrix in [a, vectors] {
        for k in 0..n {
            let (x, y) = (matrix.at(p, k), matrix.at(q, k));
            matrix.values[p * n + k] = c * x - s * y;
            matrix.values[q * n + k] = s * x + c * y;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eigenvectors_diagonalise() {
        let mut random = crate::model::Random::new(3);
        let values: Vec<f32> = (0..12 * 7).map(|_| random.normal()).collect();
        let x = Matrix::new(12, 7, &values);
        let gram = x.transposed().times(&x);
        let (eigenvalues, vectors) = gram.eigen();
        let mut scaled = vectors.clone();
        for (row, value) in scaled.values.chunks_exact_mut(7).zip(&eigenvalues) {
            row.iter_mut().for_each(|v| *v *= value);
        }
        let again = vectors.transposed().times(&scaled);
        assert!(gram.relative_distance(&again) < 1e-13);
        assert!(eigenvalues.is_sorted_by(|a, b| a >= b));
    }
}

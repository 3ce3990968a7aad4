//! Mean and second moment of a stream of vectors.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par};
use htc_kernels::Pool;

/// Side of the tiles of a second moment: large enough for products at full speed, small enough to
/// be shared out evenly. A tile is summed by one thread and in the order of the vectors, so that
/// the sums do not depend on the number of threads.
const TILE: usize = 128;

/// Vectors whose products are summed in float32 before they go into the float64 sums.
const ROWS: usize = 512;

/// `Σ 1`, `Σ x` and the lower triangle of `Σ x xᵀ` of vectors of one length, in float64.
#[derive(Clone, Debug)]
pub struct Moments {
    order: usize,
    count: u64,
    sum: Vec<f64>,
    tiles: Vec<Tile>,
}

/// A square of the lower triangle, or what the edge leaves of it.
#[derive(Clone, Debug)]
struct Tile {
    row: usize,
    col: usize,
    rows: usize,
    cols: usize,
    /// `[cols, rows]`: one column of the tile after the other.
    values: Vec<f64>,
}

impl Moments {
    /// The sums of no vectors of `order` numbers.
    pub fn new(order: usize) -> Self {
        let tiles = (0..order)
            .step_by(TILE)
            .flat_map(|row| (0..=row).step_by(TILE).map(move |col| (row, col)))
            .map(|(row, col)| {
                let (rows, cols) = (TILE.min(order - row), TILE.min(order - col));
                Tile {
                    row,
                    col,
                    rows,
                    cols,
                    values: vec![0.0; rows * cols],
                }
            })
            .collect();
        Moments {
            order,
            count: 0,
            sum: vec![0.0; order],
            tiles,
        }
    }

    /// Adds the rows of `x [n, order]`.
    pub fn add(&mut self, pool: &Pool, x: &[f32]) {
        self.add_with(x, |tiles, x| {
            pool.chunks_mut(tiles, 1, |_, tile| tile[0].add(x));
        });
    }

    /// The same on the calling thread.
    pub fn add_here(&mut self, x: &[f32]) {
        self.add_with(x, |tiles, x| tiles.iter_mut().for_each(|tile| tile.add(x)));
    }

    fn add_with(&mut self, x: &[f32], add: impl Fn(&mut [Tile], MatRef<'_, f32>)) {
        let order = self.order.max(1);
        for rows in x.chunks(ROWS * order) {
            let n = rows.len() / order;
            self.count += n as u64;
            for row in rows.chunks_exact(order) {
                for (sum, &x) in self.sum.iter_mut().zip(row) {
                    *sum += f64::from(x);
                }
            }
            let x = MatRef::from_row_major_slice(&rows[..n * order], n, order);
            add(&mut self.tiles, x);
        }
    }

    /// Whether every number of the second moment is finite in float32.
    pub fn fits_float32(&self) -> bool {
        let limit = f64::from(f32::MAX) * self.divisor();
        let values = self.tiles.iter().flat_map(|tile| &tile.values);
        // False for what is not a number, too.
        values.chain(&self.sum).all(|value| value.abs() <= limit)
    }

    /// Vectors added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// `E[x]`, zero where there was no vector.
    pub fn mean(&self) -> Vec<f64> {
        self.sum.iter().map(|sum| sum / self.divisor()).collect()
    }

    /// The lower triangle of `E[x xᵀ]`, row by row: `order (order + 1) / 2` numbers.
    pub fn second_moment(&self) -> Vec<f64> {
        let mut packed = vec![0.0; self.order * (self.order + 1) / 2];
        for tile in &self.tiles {
            for i in 0..tile.rows {
                let row = tile.row + i;
                let start = row * (row + 1) / 2;
                for j in 0..tile.cols.min((row + 1).saturating_sub(tile.col)) {
                    packed[start + tile.col + j] = tile.values[j * tile.rows + i] / self.divisor();
                }
            }
        }
        packed
    }

    fn divisor(&self) -> f64 {
        self.count.max(1) as f64
    }
}

impl Tile {
    fn add(&mut self, x: MatRef<'_, f32>) {
        let mut product = Mat::<f32>::zeros(self.rows, self.cols);
        matmul(
            product.as_mut(),
            Accum::Replace,
            x.subcols(self.row, self.rows).transpose(),
            x.subcols(self.col, self.cols),
            1.0,
            Par::Seq,
        );
        for (sums, column) in self
            .values
            .chunks_exact_mut(self.rows)
            .zip(product.col_iter())
        {
            for (sum, &x) in sums.iter_mut().zip(column.iter()) {
                *sum += f64::from(x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    fn numbers(count: usize) -> Vec<f32> {
        let mut random = Rng(1);
        (0..count).map(|_| random.unit() as f32 - 0.4).collect()
    }

    #[test]
    fn moments_are_those_of_float64_on_any_number_of_threads() {
        for (order, n) in [(1, 1), (3, 700), (256, 20), (300, 1100)] {
            let x = numbers(order * n);
            let mut expected_mean = vec![0.0; order];
            let mut expected = vec![0.0; order * (order + 1) / 2];
            for row in x.chunks_exact(order) {
                let mut at = 0;
                for i in 0..order {
                    expected_mean[i] += f64::from(row[i]) / n as f64;
                    for j in 0..=i {
                        expected[at] += f64::from(row[i]) * f64::from(row[j]) / n as f64;
                        at += 1;
                    }
                }
            }
            let mut first = None;
            for threads in [1, 3] {
                let pool = Pool::new(threads).unwrap();
                let mut moments = Moments::new(order);
                // In two parts, neither a whole number of batches.
                let (a, b) = x.split_at(n / 3 * order);
                moments.add(&pool, a);
                moments.add(&pool, b);
                assert_eq!(moments.count(), n as u64);
                let (mean, second) = (moments.mean(), moments.second_moment());
                for (found, expected) in mean.iter().zip(&expected_mean) {
                    assert!((found - expected).abs() < 1e-12);
                }
                for (found, expected) in second.iter().zip(&expected) {
                    assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
                }
                let bits: Vec<u64> = mean.iter().chain(&second).map(|v| v.to_bits()).collect();
                assert_eq!(*first.get_or_insert(bits.clone()), bits);
            }
        }
    }

    #[test]
    fn nothing_has_moments_of_zero() {
        let moments = Moments::new(2);
        assert_eq!((moments.count(), moments.mean()), (0, vec![0.0; 2]));
        assert_eq!(moments.second_moment(), vec![0.0; 3]);
    }
}

//! Rotation of a column group's columns, which spreads an outlier over all 32.
//!
//! The Hadamard matrix of Sylvester's construction, `H [32, 32]` divided by √32, is orthonormal and
//! its own inverse: `W x = (W H)(H x)` for each column group.

//! QuIP# (Tseng et al. 2024) applies one such matrix to the whole row, with random signs.

use std::ops::{Add, Mul, Sub};

use super::GROUP_COLS;

/// `1 / √32`, which makes the matrix orthonormal.
pub const ROTATION_UNIT: f32 = 0.176_776_7;

/// Rotates the full column groups of a row. The order of additions is fixed: pairs 16 apart, then
/// 8, 4, 2 and 1, and [`ROTATION_UNIT`] last.
pub fn rotate<T>(row: &mut [T])
where
    T: Copy + From<f32> + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
{
    for band in row.as_chunks_mut::<GROUP_COLS>().0 {
        let mut apart = GROUP_COLS / 2;
        while apart > 0 {
            for pairs in band.chunks_exact_mut(2 * apart) {
                let (first, second) = pairs.split_at_mut(apart);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            apart /= 2;
        }
        band.iter_mut().for_each(|x| *x = *x * ROTATION_UNIT.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sign of entry `i, j`: the parity of their common bits.
    fn entry(i: usize, j: usize) -> f64 {
        let sign = if (i & j).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        };
        sign / (GROUP_COLS as f64).sqrt()
    }

    #[test]
    fn rotation_equals_matrix_product_and_is_self_inverse() {
        let numbers: Vec<f32> = (0..75)
            .map(|i| ((i * i * 37) % 101) as f32 - 50.0)
            .collect();
        let mut rotated = numbers.clone();
        rotate(&mut rotated);
        for (band, (x, y)) in numbers
            .chunks(GROUP_COLS)
            .zip(rotated.chunks(GROUP_COLS))
            .enumerate()
        {
            for (i, &y) in y.iter().enumerate() {
                let expected = match x.len() {
                    GROUP_COLS => (0..GROUP_COLS).map(|j| entry(i, j) * f64::from(x[j])).sum(),
                    _ => f64::from(x[i]),
                };
                assert!((f64::from(y) - expected).abs() < 1e-4, "band {band}, {i}");
            }
        }
        rotate(&mut rotated);
        for (back, number) in rotated.iter().zip(&numbers) {
            assert!((back - number).abs() < 1e-4);
        }
        let mut one = [0.0_f32; GROUP_COLS];
        one[7] = 32.0;
        rotate(&mut one);
        assert!(
            one.iter()
                .all(|x| (x.abs() - 32.0 * ROTATION_UNIT).abs() < 1e-6)
        );
    }
}

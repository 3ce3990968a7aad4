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
mod tests;

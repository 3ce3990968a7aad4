//! Fast rounding of keys and values to quantised blocks.
//!
//! The least-squares search of [`block::encode`] is too slow for a cache: a prompt of a small model
//! took half as long again as with float16. Here the scale is that of llama.cpp or the best of
//! four.

use htc_formats::block;
use htc_formats::dtype::DType;

const BLOCK_LEN: usize = 32;

/// Candidate levels of the largest magnitude in `q4_0`. On normal numbers the best of these has
/// 1.04 times the squared error of the optimal scale; the usual -8 alone 1.12 times.
const EXTREME_LEVELS: [f32; 4] = [-8.5, -7.9, -7.3, -6.8];

/// Adding this puts the nearest integer of a small number in its last bits.
const ROUND_TO_INTEGER: f32 = 12_582_912.0;

/// Encodes whole blocks of `q8_0` or `q4_0` into `out`. `Err` is a number that cannot be encoded:
/// not finite, or beyond the range of scales.
///
/// Scales are the largest magnitude over 127 (`q8_0`), or the best of four by squared error
/// (`q4_0`). Float32 arithmetic in a fixed order gives the same bytes on every machine.
pub(crate) fn encode(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), f32> {
    let blocks = out.chunks_exact_mut(dtype.block_bytes());
    for (values, out) in values.as_chunks().0.iter().zip(blocks) {
        match dtype {
            DType::Q4_0 => q4_0(values, out)?,
            _ => q8_0(values, out)?,
        }
    }
    Ok(())
}

/// Returns the number of the largest magnitude; NaN takes precedence.
fn largest_magnitude(values: &[f32; BLOCK_LEN]) -> f32 {
    // Magnitudes order like their bits.
    let magnitude = |value: f32| value.abs().to_bits();
    let larger = |most: f32, &value: &f32| {
        if magnitude(value) > magnitude(most) {
            value
        } else {
            most
        }
    };
    values.iter().fold(0.0, larger)
}

/// Returns scales rounded to float16, infinite if out of range, with their bytes.
fn round_scales_to_f16<const N: usize, const BYTES: usize>(
    scales: [f32; N],
) -> ([f32; N], [u8; BYTES]) {
    let (mut bytes, mut near) = ([0; BYTES], [f32::INFINITY; N]);
    let coded = block::encode(DType::F16, &scales, &mut bytes);
    match coded.and_then(|()| block::decode(DType::F16, &bytes, &mut near)) {
        Ok(()) => (near, bytes),
        Err(_) => ([f32::INFINITY; N], bytes),
    }
}

#[inline(always)]
fn nearest_levels(
    values: &[f32; BLOCK_LEN],
    scale: f32,
    [low, high]: [f32; 2],
) -> [i32; BLOCK_LEN] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    values.map(|value| {
        let whole = (value * inverse).max(low).min(high) + ROUND_TO_INTEGER;
        whole.to_bits() as i32 - ROUND_TO_INTEGER.to_bits() as i32
    })
}

fn q8_0(values: &[f32; BLOCK_LEN], out: &mut [u8]) -> Result<(), f32> {
    let extreme = largest_magnitude(values);
    let ([scale], bytes) = round_scales_to_f16::<1, 2>([extreme.abs() / 127.0]);
    if !scale.is_finite() {
        return Err(extreme);
    }
    out[..2].copy_from_slice(&bytes);
    let levels = nearest_levels(values, scale, [-127.0, 127.0]);
    for (byte, level) in out[2..].iter_mut().zip(levels) {
        *byte = level as u8;
    }
    Ok(())
}

fn q4_0(values: &[f32; BLOCK_LEN], out: &mut [u8]) -> Result<(), f32> {
    const LANES: usize = 8;
    let extreme = largest_magnitude(values);
    let (scales, bytes) = round_scales_to_f16::<4, 8>(EXTREME_LEVELS.map(|level| extreme / level));
    if !scales[0].is_finite() {
        return Err(extreme);
    }
    let mut best = (f32::INFINITY, [0; BLOCK_LEN], 0);
    for (index, scale) in scales.into_iter().enumerate() {
        let levels = nearest_levels(values, scale, [-8.0, 7.0]);
        let mut squares = [0.0; LANES];
        for (values, levels) in values.chunks(LANES).zip(levels.chunks(LANES)) {
            for ((sum, value), &level) in squares.iter_mut().zip(values).zip(levels) {
                let off = value - scale * level as f32;
                *sum += off * off;
            }
        }
        let squares: f32 = squares.iter().sum();
        // If squares overflow, all scales are equally good.
        if squares < best.0 || index == 0 {
            best = (squares, levels, index);
        }
    }
    let (_, levels, index) = best;
    out[..2].copy_from_slice(&bytes[2 * index..][..2]);
    let (low, high) = levels.split_at(BLOCK_LEN / 2);
    for ((byte, low), high) in out[2..].iter_mut().zip(low).zip(high) {
        *byte = (low + 8) as u8 | ((high + 8) as u8) << 4;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(count: usize) -> Vec<f32> {
        let mut state = 1_u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state) / 4_294_967_296.0
        };
        let mut number = || (0..12).map(|_| uniform()).sum::<f64>() as f32 - 6.0;
        (0..count).map(|_| number()).collect()
    }

    fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * BLOCK_LEN];
        block::decode(dtype, bytes, &mut out).unwrap();
        out
    }

    fn rounded(dtype: DType, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; values.len() / BLOCK_LEN * dtype.block_bytes()];
        encode(dtype, values, &mut bytes).unwrap();
        decoded(dtype, &bytes)
    }

    fn squares(a: &[f32], b: &[f32]) -> f64 {
        let off = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
        off.sum()
    }

    #[test]
    fn numbers_round_to_the_nearest_code() {
        let values = normal(64 * BLOCK_LEN);
        let found = rounded(DType::Q8_0, &values);
        for (values, found) in values.chunks(BLOCK_LEN).zip(found.chunks(BLOCK_LEN)) {
            let most = values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            // Half a step, and the rounding of the scale.
            for (x, y) in values.iter().zip(found) {
                assert!((x - y).abs() <= most / 127.0 * (0.5 + 127.0 / 2048.0));
            }
        }
        let whole: Vec<f32> = (0..BLOCK_LEN)
            .map(|i| 0.25 * (i as f32 * 8.0 - 127.0))
            .collect();
        assert_eq!(rounded(DType::Q8_0, &whole), whole);
        assert_eq!(rounded(DType::Q4_0, &[0.0; BLOCK_LEN]), [0.0; BLOCK_LEN]);
    }

    #[test]
    fn four_bit_error_is_within_6_percent_of_a_search() {
        let values = normal(2048 * BLOCK_LEN);
        let error = squares(&values, &rounded(DType::Q4_0, &values));
        let mut bytes = vec![0; 2048 * DType::Q4_0.block_bytes()];
        block::encode(DType::Q4_0, &values, &mut bytes).unwrap();
        let searched = squares(&values, &decoded(DType::Q4_0, &bytes));
        assert!(
            searched < error && error < 1.06 * searched,
            "{error} {searched}"
        );
        let usual: f64 = values
            .as_chunks()
            .0
            .iter()
            .map(|block| {
                let scale = largest_magnitude(block) / -8.0;
                let levels = nearest_levels(block, scale, [-8.0, 7.0]);
                squares(block, &levels.map(|level| scale * level as f32))
            })
            .sum();
        assert!(error < 0.95 * usual, "{error} {usual}");
    }

    #[test]
    fn unencodable_numbers_are_refused() {
        for dtype in [DType::Q8_0, DType::Q4_0] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9, -f32::MAX] {
                let mut values = [1.0; 2 * BLOCK_LEN];
                values[40] = bad;
                let mut bytes = vec![0; 2 * dtype.block_bytes()];
                let found = encode(dtype, &values, &mut bytes).unwrap_err();
                assert_eq!(found.to_bits(), bad.to_bits());
            }
            let tiny = rounded(dtype, &[1e-12; BLOCK_LEN]);
            assert!(tiny.iter().all(|x| *x == 0.0), "{tiny:?}");
            let large = rounded(dtype, &[5e5; BLOCK_LEN]);
            assert!(
                large.iter().all(|x| (x / 5e5 - 1.0).abs() < 0.06),
                "{large:?}"
            );
            let subnormal = rounded(dtype, &[3e-7; BLOCK_LEN]);
            assert!(subnormal.iter().all(|x| x.abs() < 1e-5), "{subnormal:?}");
        }
    }
}

//! Importances as weights of sums.

use super::MAX_LEN;
use super::format::Format;
use crate::CodecError;

/// Least weight relative to the largest. f32 sums do not resolve 2^-24 and less, and a number of
/// zero weight would get an arbitrary code.
const MIN_WEIGHT: f32 = 1.0 / (1 << 30) as f32;

/// Returns the importances of a block divided by a power of two, so that the largest is from 1 to
/// below 2. All ones if importances are absent or all zero.
pub(super) fn normalise_importances<'a>(
    format: &Format,
    importance: Option<&[f32]>,
    buffer: &'a mut [f32; MAX_LEN],
) -> Result<&'a [f32], CodecError> {
    let len = format.dtype.block_len();
    let buffer = &mut buffer[..len];
    let Some(importance) = importance else {
        return Ok(buffer);
    };
    format.check_len("importances", importance.len())?;
    let refused = |value: &f32| !(0.0..f32::INFINITY).contains(value);
    if let Some(place) = importance.iter().position(refused) {
        return Err(CodecError::Importance {
            dtype: format.dtype,
            index: place,
            value: importance[place],
        });
    }
    let largest = importance.iter().copied().fold(0.0, f32::max);
    if largest == 0.0 {
        return Ok(buffer);
    }
    // Applied twice, because the reciprocal of the least powers of two overflows.
    let exponent = (largest.to_bits() >> 23).clamp(1, 253);
    let factor = f32::from_bits((254 - exponent) << 23);
    for (weight, importance) in buffer.iter_mut().zip(importance) {
        *weight = f32::max(importance * factor, MIN_WEIGHT);
    }
    Ok(buffer)
}

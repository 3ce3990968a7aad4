//! Scaling of encoded rows by a factor, with unchanged codes.

use half::f16;

use super::float::f16_to_f32;
use super::{decode, encode, writable_types};
use crate::CodecError;
use crate::dtype::DType;

/// Returns the offsets of a block's f16 factors; `None` for formats without them and read-only
/// ones.
const fn scale_offsets(dtype: DType) -> Option<&'static [usize]> {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4NL | DType::IQ4XS => Some(&[0]),
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => Some(&[0, 2]),
        DType::Q2K => Some(&[80, 82]),
        DType::Q3K => Some(&[108]),
        DType::Q6K => Some(&[208]),
        _ => None,
    }
}

/// Encodes like [`encode`](super::encode) and rejects numbers whose stored form is not finite.
///
/// # Errors
/// As [`encode`](super::encode); [`CodecError::NoCode`]. After an error the content of `bytes` is
/// unspecified.
pub fn encode_finite(dtype: DType, values: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    encode(dtype, values, bytes)?;
    let mut stored = vec![0.0; values.len()];
    decode(dtype, bytes, &mut stored)?;
    match stored.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(CodecError::NoCode {
            dtype,
            index,
            value: values[index],
        }),
    }
}

/// Multiplies whole blocks by a factor. Formats with codes change only their f16 scales, rounded to
/// nearest; f32, f16 and bf16 change each number.
///
/// # Errors
/// [`CodecError::Length`]; [`CodecError::ReadOnlyType`] for formats that are not writable;
/// [`CodecError::NoCode`] if a product is not finite. After an error the content of `bytes` is
/// unspecified.
pub fn scale_blocks(dtype: DType, bytes: &mut [u8], factor: f32) -> Result<(), CodecError> {
    if !writable_types().contains(&dtype) {
        return Err(CodecError::ReadOnlyType { dtype });
    }
    let blocks = bytes.len() / dtype.block_bytes().max(1);
    let numbers = blocks * dtype.block_len();
    super::check_lengths(dtype, bytes.len(), numbers)?;
    let no_code = |index: usize, value: f32| {
        if value.is_finite() {
            Ok(())
        } else {
            Err(CodecError::NoCode {
                dtype,
                index,
                value,
            })
        }
    };
    let Some(places) = scale_offsets(dtype) else {
        let mut values = vec![0.0; numbers];
        decode(dtype, bytes, &mut values)?;
        values.iter_mut().for_each(|value| *value *= factor);
        return encode_finite(dtype, &values, bytes);
    };
    for (index, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
        for &at in places {
            let scale = &mut block[at..at + 2];
            let product = f16_to_f32([scale[0], scale[1]]) * factor;
            let rounded = f16::from_f32(product);
            no_code(index * dtype.block_len(), rounded.to_f32())?;
            scale.copy_from_slice(&rounded.to_le_bytes());
        }
    }
    Ok(())
}

//! Fallback layout for formats without dedicated kernels: 8-bit codes with a scale per 16 elements,
//! and a minimum if the format has one.
//!
//! Without a minimum, scale and code have so few bits that values are exact, and the scale is found
//! from the values alone. With one they are rounded, and scales are read from the block.

use half::f16;
use htc_formats::DType;
use htc_formats::block::decode;

use super::format::decode_error;
use crate::cuda::device::DeviceError;

const GROUP: usize = 16;

struct Group {
    codes: [i8; GROUP],
    scale: f32,
    minimum: f32,
}

pub(super) fn pack_row(
    dtype: DType,
    bytes: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
    minima: &mut [u8],
) -> Result<(), DeviceError> {
    let length = dtype.block_len();
    let mut values = vec![0.0; length];
    let mut order: [u8; 128] = std::array::from_fn(|i| i as u8 + 1);
    let mut at = 0;
    for block in bytes.chunks_exact(dtype.block_bytes().max(1)) {
        decode(dtype, block, &mut values).map_err(decode_error)?;
        for (index, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
            let group = match dtype {
                DType::Q4_1 | DType::Q5_1 | DType::Q2K => group_with_minimum(dtype, block, index),
                DType::Q8K => group_of_q8_k(block, index),
                _ => exact_multiples(values, &mut order).ok_or_else(|| {
                    decode_error(format!("numbers of {dtype} are no multiples of a scale"))
                })?,
            };
            let to = &mut codes[at * GROUP..][..GROUP];
            to.copy_from_slice(&group.codes.map(i8::cast_unsigned));
            scales[4 * at..][..4].copy_from_slice(&group.scale.to_le_bytes());
            if !minima.is_empty() {
                minima[4 * at..][..4].copy_from_slice(&group.minimum.to_le_bytes());
            }
            at += 1;
        }
    }
    Ok(())
}

/// Finds a scale of which all values are exact multiples with 8-bit codes. Successful candidates
/// move to the front of `order`, because a format has few. Non-finite values give the scale NaN.
fn exact_multiples(values: &[f32; GROUP], order: &mut [u8]) -> Option<Group> {
    let mut group = Group {
        codes: [0; GROUP],
        scale: 0.0,
        minimum: 0.0,
    };
    if !values.iter().all(|v| v.is_finite()) {
        group.scale = f32::NAN;
        return Some(group);
    }
    let larger = |m: f32, v: &f32| if v.abs() > m.abs() { *v } else { m };
    let largest = values.iter().fold(0.0, larger);
    if largest == 0.0 {
        return Some(group);
    }
    for tried in 0..order.len() {
        let most = order[tried];
        // -128 exists, +128 does not.
        let scale = -largest / f32::from(most);
        let exact = values.iter().zip(&mut group.codes).all(|(&value, code)| {
            let nearest = (value / scale).round();
            *code = nearest as i8;
            f32::from(*code) * scale == value
        });
        if exact {
            group.scale = scale;
            order[..=tried].rotate_right(1);
            return Some(group);
        }
    }
    None
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn group_with_minimum(dtype: DType, block: &[u8], index: usize) -> Group {
    let first = index * GROUP;
    let group = |scale: f32, minimum: f32, code: &dyn Fn(usize) -> u8| Group {
        codes: std::array::from_fn(|i| code(first + i).cast_signed()),
        scale,
        minimum,
    };
    // The first sixteen of 32 codes are in low nibbles.
    let nibble = |at: usize, i: usize| block[at + i % 16] >> (i / 16 * 4) & 15;
    match dtype {
        DType::Q2K => group(
            half(block, 80) * f32::from(block[index] & 15),
            -(half(block, 82) * f32::from(block[index] >> 4)),
            &|i| block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3,
        ),
        DType::Q5_1 => group(half(block, 0), half(block, 2), &|i| {
            nibble(8, i) | (block[4 + i / 8] >> (i % 8) & 1) << 4
        }),
        _ => group(half(block, 0), half(block, 2), &|i| nibble(4, i)),
    }
}

fn group_of_q8_k(block: &[u8], index: usize) -> Group {
    Group {
        codes: std::array::from_fn(|i| block[4 + index * GROUP + i].cast_signed()),
        scale: f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        minimum: 0.0,
    }
}

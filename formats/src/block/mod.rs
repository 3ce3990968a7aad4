//! Block formats: decoders for every [`DType`], encoders for those that this project writes.
//!
//! A block is a run of numbers of one row with its scales. All layouts are those of ggml
//! (`ggml-common.h`). The decoders perform the same f32 operations in the same order as the numpy
//! decoders of the `gguf` Python package and are bit-identical to them.
//!
//! [`encode`] writes rows.
//!
//! ```
//! use htc_formats::block::BlockFit;
//! use htc_formats::{CodecError, DType};
//!
//! fn with_feedback(values: &mut [f32; 256], importance: &[f32; 256]) -> Result<[u8; 144], CodecError> {
//!     let mut fit = BlockFit::search(DType::Q4K, values, Some(importance))?;
//!     let mut codes = [0; 256];
//!     for place in 0..256 {
//!         let (code, decoded) = fit.nearest(place, values[place]);
//!         codes[place] = code;
//!         let error = values[place] - decoded;
//!         if let Some(next) = values.get_mut(place + 1) {
//!             *next += 0.5 * error;
//!         }
//!     }
//!     // The same codes with better scales.
//!     fit = fit.refit(values, Some(importance), &codes)?;
//!     let mut bytes = [0; 144];
//!     fit.pack(&codes, &mut bytes)?;
//!     assert_eq!(fit.value(7, codes[7]), {
//!         let mut decoded = [0.0; 256];
//!         htc_formats::block::decode(DType::Q4K, &bytes, &mut decoded)?;
//!         decoded[7]
//!     });
//!     Ok(bytes)
//! }
//! # with_feedback(&mut std::array::from_fn(|i| (i as f32).sin()), &[1.0; 256]).unwrap();
//! ```

mod fit;
mod float;
mod grids;
mod grouped;
mod k_quants;
mod legacy;
mod levels;
mod scaled;
mod ternary;

pub use self::fit::{BlockFit, NearbyKind};
pub use self::scaled::{encode_finite, scale_blocks};
use crate::CodecError;
use crate::dtype::DType;

/// Decodes whole blocks. `bytes` must have exactly the size of `out.len()` numbers.
///
/// # Errors
///
/// [`CodecError::Length`].
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    check_lengths(dtype, bytes.len(), out.len())?;
    match dtype {
        DType::F32 => float::decode_f32(bytes, out),
        DType::F16 => float::decode_f16(bytes, out),
        DType::BF16 => float::decode_bf16(bytes, out),
        DType::F64 => decode_numbers(bytes, out, |n| f64::from_le_bytes(n) as f32),
        DType::I8 => decode_numbers(bytes, out, |n| i8::from_le_bytes(n).into()),
        DType::I16 => decode_numbers(bytes, out, |n| i16::from_le_bytes(n).into()),
        DType::I32 => decode_numbers(bytes, out, |n| i32::from_le_bytes(n) as f32),
        DType::I64 => decode_numbers(bytes, out, |n| i64::from_le_bytes(n) as f32),
        DType::Q4_0 => decode_blocks(bytes, out, legacy::decode_q4_0),
        DType::Q4_1 => decode_blocks(bytes, out, legacy::decode_q4_1),
        DType::Q5_0 => decode_blocks(bytes, out, legacy::decode_q5_0),
        DType::Q5_1 => decode_blocks(bytes, out, legacy::decode_q5_1),
        DType::Q8_0 => decode_blocks(bytes, out, legacy::decode_q8_0),
        DType::Q8_1 => decode_blocks(bytes, out, legacy::decode_q8_1),
        DType::Q2K => decode_blocks(bytes, out, k_quants::decode_q2_k),
        DType::Q3K => decode_blocks(bytes, out, k_quants::decode_q3_k),
        DType::Q4K => decode_blocks(bytes, out, k_quants::decode_q4_k),
        DType::Q5K => decode_blocks(bytes, out, k_quants::decode_q5_k),
        DType::Q6K => decode_blocks(bytes, out, k_quants::decode_q6_k),
        DType::Q8K => decode_blocks(bytes, out, k_quants::decode_q8_k),
        DType::IQ4NL => decode_blocks(bytes, out, levels::decode_iq4_nl),
        DType::IQ4XS => decode_blocks(bytes, out, levels::decode_iq4_xs),
        DType::MXFP4 => decode_blocks(bytes, out, levels::decode_mxfp4),
        DType::IQ1S => decode_blocks(bytes, out, grouped::decode_iq1_s),
        DType::IQ1M => decode_blocks(bytes, out, grouped::decode_iq1_m),
        DType::IQ2XXS => decode_blocks(bytes, out, grouped::decode_iq2_xxs),
        DType::IQ2XS => decode_blocks(bytes, out, grouped::decode_iq2_xs),
        DType::IQ2S => decode_blocks(bytes, out, grouped::decode_iq2_s),
        DType::IQ3XXS => decode_blocks(bytes, out, grouped::decode_iq3_xxs),
        DType::IQ3S => decode_blocks(bytes, out, grouped::decode_iq3_s),
        DType::TQ1_0 => decode_blocks(bytes, out, ternary::decode_tq1_0),
        DType::TQ2_0 => decode_blocks(bytes, out, ternary::decode_tq2_0),
        DType::Bands => {}
    }
    Ok(())
}

/// Formats that [`encode`] writes: floats, then those of a [`BlockFit`].
const WRITABLE: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q6K,
    DType::Q5K,
    DType::Q5_1,
    DType::Q5_0,
    DType::Q4K,
    DType::Q4_1,
    DType::Q4_0,
    DType::IQ4NL,
    DType::IQ4XS,
    DType::Q3K,
    DType::Q2K,
];

/// Floats among the writable formats.
const FLOATS: usize = 3;

/// Returns the formats that [`encode`] writes.
pub fn writable_types() -> &'static [DType] {
    WRITABLE
}

/// Encodes whole blocks. `out` must have exactly the size of `values.len()` numbers.
///
/// Float formats round to nearest, ties to even; all others use a [`BlockFit`] with the nearest
/// codes. The bytes are identical on every machine.
///
/// # Errors
///
/// [`CodecError::Length`]; [`CodecError::ReadOnlyType`] for formats that are not
/// [`writable_types`]; [`CodecError::NoCode`] if a block format meets a number that is not finite
/// or whose scale would overflow f16. After an error the content of `out` is unspecified.
pub fn encode(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), CodecError> {
    check_lengths(dtype, out.len(), values.len())?;
    match dtype {
        DType::F32 => float::encode_f32(values, out),
        DType::F16 => float::encode_f16(values, out),
        DType::BF16 => float::encode_bf16(values, out),
        dtype => match fit::Format::for_dtype(dtype) {
            Some(format) => fit::encode(format, values, out)?,
            None => return Err(CodecError::ReadOnlyType { dtype }),
        },
    }
    Ok(())
}

/// Returns the magnitude limit of a format; infinite without f16 numbers or scales.
pub(crate) fn magnitude_limit(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => float::F16_LIMIT,
        dtype => {
            fit::Format::for_dtype(dtype).map_or(f32::INFINITY, |format| format.magnitude_limit())
        }
    }
}

pub(crate) fn join_names(dtypes: &[DType]) -> String {
    let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

fn check_lengths(dtype: DType, bytes: usize, numbers: usize) -> Result<(), CodecError> {
    if dtype.row_bytes(numbers) == Some(bytes) {
        return Ok(());
    }
    Err(CodecError::Length {
        dtype,
        bytes,
        numbers,
    })
}

/// Array types expose all lengths to the compiler.
#[inline(always)]
fn decode_blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (numbers, _) = out.as_chunks_mut::<LEN>();
    for (block, numbers) in blocks.iter().zip(numbers) {
        decode(block, numbers);
    }
}

#[inline(always)]
fn decode_numbers<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn([u8; BYTES]) -> f32,
) {
    decode_blocks(bytes, out, |bytes, [value]| *value = decode(*bytes));
}

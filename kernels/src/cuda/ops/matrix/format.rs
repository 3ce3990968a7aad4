//! Device formats of block-quantised matrices and their row layout.

use htc_formats::DType;
use htc_formats::block::decode;

use super::{align_allocation, wide};
use crate::Matrix;
use crate::cuda::device::{DeviceError, DeviceSpan, kernel_arguments};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Format {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4K,
    Q5K,
    Q6K,
    /// 8-bit codes with a scale per 16 elements.
    Wide,
    /// The same with a minimum.
    WideMinimum,
}

kernel_arguments! {
    /// Arrays of a matrix, `Planes` of `blocks.cuh`.
    #[derive(Debug)]
    pub(in super::super) struct BlockArrays {
        pub spans: [DeviceSpan; Format::ARRAYS],
        pub stride: u32,
        pub unused: u32,
    }
}

/// Names of the kernels of a format.
#[derive(PartialEq)]
pub(in super::super) struct KernelNames {
    /// The format.
    #[cfg(all(test, feature = "emulated"))]
    pub format: &'static str,
    /// Products with one vector, two, four and eight.
    pub products: [&'static str; 4],
    /// Dequantisation of rows.
    pub embed: &'static str,
    /// Pairs of products with one vector and with four.
    pub pairs: [&'static str; 2],
    /// Products with many vectors.
    pub tiles: &'static str,
}

macro_rules! names {
    ($name:literal) => {
        &KernelNames {
            #[cfg(all(test, feature = "emulated"))]
            format: $name,
            products: [
                concat!($name, "_1"),
                concat!($name, "_2"),
                concat!($name, "_4"),
                concat!($name, "_8"),
            ],
            embed: concat!($name, "_embed"),
            pairs: [concat!($name, "_pair_1"), concat!($name, "_pair_4")],
            tiles: concat!($name, "_tiles"),
        }
    };
}

impl Format {
    /// Number of arrays: codes, upper bits of codes, scales, and super-scales or minima.
    pub const ARRAYS: usize = 4;

    pub fn for_dtype(dtype: DType) -> Format {
        match dtype {
            DType::F16 => Format::F16,
            DType::BF16 => Format::BF16,
            DType::Q8_0 => Format::Q8_0,
            DType::Q4_0 => Format::Q4_0,
            DType::Q4K => Format::Q4K,
            DType::Q5K => Format::Q5K,
            DType::Q6K => Format::Q6K,
            DType::Q4_1 | DType::Q5_1 | DType::Q2K => Format::WideMinimum,
            dtype if dtype.block_len() == 1 => Format::F32,
            _ => Format::Wide,
        }
    }

    pub fn kernel_names(self) -> &'static KernelNames {
        match self {
            Format::F32 => names!("f32"),
            Format::F16 => names!("f16"),
            Format::BF16 => names!("bf16"),
            Format::Q8_0 => names!("q8_0"),
            Format::Q4_0 => names!("q4_0"),
            Format::Q4K => names!("q4_k"),
            Format::Q5K => names!("q5_k"),
            Format::Q6K => names!("q6_k"),
            Format::Wide | Format::WideMinimum => names!("wide"),
        }
    }

    /// Returns the rows of a tile, as in `tiles.cuh` and `float_tiles.cu`.
    pub fn tile_rows(self) -> u32 {
        match self {
            Format::F16 | Format::BF16 => 128,
            _ => 64,
        }
    }

    /// Returns true if products read float vectors instead of quantised ones.
    pub fn reads_floats(self) -> bool {
        matches!(self, Format::F32 | Format::F16 | Format::BF16)
    }

    /// Returns the elements that a lane reads of a row at a time, 16 bytes of codes.
    pub fn lane_elements(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 8,
            Format::Q8_0 | Format::Wide | Format::WideMinimum => 16,
            Format::Q4_0 | Format::Q4K | Format::Q5K | Format::Q6K => 32,
        }
    }

    /// Returns the rows that a warp multiplies at a time with a single vector, as in
    /// `products.cuh`.
    pub fn rows_per_warp(self) -> u32 {
        match self.lane_elements() {
            32 => 1,
            _ => 2,
        }
    }

    /// Returns the block length, a divisor of column prefixes.
    pub fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q4K | Format::Q5K | Format::Q6K => 256,
            _ => 32,
        }
    }

    pub fn stride(self, cols: usize) -> usize {
        cols.next_multiple_of(self.lane_elements())
    }

    /// Returns the bytes per row of `stride` elements in each array.
    pub fn row_bytes(self, stride: usize) -> [usize; Format::ARRAYS] {
        match self {
            Format::F32 => [4 * stride, 0, 0, 0],
            Format::F16 | Format::BF16 => [2 * stride, 0, 0, 0],
            Format::Q8_0 => [stride, 0, stride / 16, 0],
            Format::Q4_0 => [stride / 2, 0, stride / 16, 0],
            Format::Q4K => [stride / 2, 0, stride / 16, 0],
            Format::Q5K => [stride / 2, stride / 8, stride / 16, 0],
            Format::Q6K => [stride / 2, stride / 4, stride / 16, stride / 128],
            Format::Wide => [stride, 0, stride / 4, 0],
            Format::WideMinimum => [stride, 0, stride / 4, stride / 4],
        }
    }

    pub fn array_ranges(
        self,
        rows: usize,
        cols: usize,
    ) -> ([(usize, usize); Format::ARRAYS], usize) {
        let mut end = 0;
        let places = self.row_bytes(self.stride(cols)).map(|bytes| {
            let start = end;
            end += align_allocation(rows * bytes);
            (start, rows * bytes)
        });
        (places, end)
    }

    /// Packs a row of a matrix into its parts of the zero-initialised arrays.
    pub fn pack_row(
        self,
        matrix: &Matrix<'_>,
        row: usize,
        planes: [&mut [u8]; Format::ARRAYS],
    ) -> Result<(), DeviceError> {
        let bytes = matrix.row(row);
        let [codes, high, scales, supers] = planes;
        match self {
            Format::F32 => copy_floats(matrix.dtype(), bytes, codes),
            Format::F16 | Format::BF16 => {
                codes[..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Format::Q8_0 | Format::Q4_0 => {
                let length = matrix.dtype().block_bytes();
                let codes = codes.chunks_exact_mut(length - 2);
                let scales = scales.as_chunks_mut::<2>().0;
                for ((block, codes), scale) in bytes.chunks_exact(length).zip(codes).zip(scales) {
                    scale.copy_from_slice(&block[..2]);
                    codes.copy_from_slice(&block[2..]);
                }
                Ok(())
            }
            Format::Q4K => {
                unpack_superblocks(bytes, codes, scales, |block: &[u8; 144], codes, header| {
                    header.copy_from_slice(&block[..16]);
                    pack_nibbles(&block[16..], 32, codes);
                });
                Ok(())
            }
            Format::Q5K => {
                unpack_superblocks(bytes, codes, scales, |block: &[u8; 176], codes, header| {
                    header.copy_from_slice(&block[..16]);
                    pack_nibbles(&block[48..], 32, codes);
                });
                let blocks = bytes.as_chunks::<176>().0.iter();
                for (block, high) in blocks.zip(high.as_chunks_mut::<32>().0) {
                    repack_fifth_bits(&block[16..48], high);
                }
                Ok(())
            }
            Format::Q6K => {
                unpack_superblocks(bytes, codes, scales, |block: &[u8; 210], codes, scales| {
                    scales.copy_from_slice(&block[192..208]);
                    pack_nibbles(&block[..128], 64, codes);
                });
                let blocks = bytes.as_chunks::<210>().0.iter();
                let (high, supers) = (high.as_chunks_mut::<64>().0, supers.as_chunks_mut::<2>().0);
                for ((block, high), super_) in blocks.zip(high).zip(supers) {
                    super_.copy_from_slice(&block[208..]);
                    repack_upper_bits(&block[128..192], high);
                }
                Ok(())
            }
            Format::Wide | Format::WideMinimum => {
                wide::pack_row(matrix.dtype(), bytes, codes, scales, supers)
            }
        }
    }
}

fn unpack_superblocks<const BYTES: usize>(
    bytes: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
    lay_out: impl Fn(&[u8; BYTES], &mut [u8; 128], &mut [u8; 16]),
) {
    let blocks = bytes.as_chunks::<BYTES>().0.iter();
    let codes = codes.as_chunks_mut::<128>().0;
    let scales = scales.as_chunks_mut::<16>().0;
    for ((block, codes), scales) in blocks.zip(codes).zip(scales) {
        lay_out(block, codes, scales);
    }
}

/// Repacks the low four bits of 256 codes: in every 32, the first sixteen go to low nibbles. In the
/// source, each `at_a_time` bytes hold as many codes in their low nibbles, then as many in their
/// high ones.
fn pack_nibbles(from: &[u8], at_a_time: usize, codes: &mut [u8; 128]) {
    let parts = from.chunks_exact(at_a_time);
    for (bytes, codes) in parts.zip(codes.chunks_exact_mut(at_a_time)) {
        let (low, high) = codes.split_at_mut(at_a_time / 2);
        let bytes = bytes.as_chunks::<32>().0.iter();
        let halves = low.as_chunks_mut::<16>().0.iter_mut();
        for (bytes, (low, high)) in bytes.zip(halves.zip(high.as_chunks_mut::<16>().0)) {
            let (first, second) = bytes.split_at(16);
            for i in 0..16 {
                low[i] = first[i] & 15 | second[i] << 4;
                high[i] = first[i] >> 4 | second[i] & 0xf0;
            }
        }
    }
}

/// Repacks the fifth bits of 256 codes. A source byte has the bits of every 32nd code; in the
/// result, bit 8 j + k of the word of 32 codes belongs to code 4 k + j.
fn repack_fifth_bits(from: &[u8], high: &mut [u8; 32]) {
    let words = from.as_chunks::<4>().0;
    for (group, to) in high.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let each = words.iter().enumerate();
        let bit =
            |(k, word): (usize, &[u8; 4])| (u32::from_le_bytes(*word) >> group & 0x0101_0101) << k;
        *to = each.map(bit).fold(0, |all, bits| all | bits).to_le_bytes();
    }
}

/// Repacks the upper two bits of 256 codes. In each half, a source byte has the bits of every 32nd
/// code; in the result, bits 8 j + 2 k of the word of 16 codes belong to code 4 k + j.
fn repack_upper_bits(from: &[u8], high: &mut [u8; 64]) {
    for (half, high) in from
        .as_chunks::<32>()
        .0
        .iter()
        .zip(high.as_chunks_mut::<32>().0)
    {
        let sixteens = half.as_chunks::<16>().0;
        for (group, to) in high.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let each = sixteens[group % 2].as_chunks::<4>().0.iter().enumerate();
            let shift = group / 2 * 2;
            let bits = |(k, word): (usize, &[u8; 4])| {
                (u32::from_le_bytes(*word) >> shift & 0x0303_0303) << (2 * k)
            };
            *to = each.map(bits).fold(0, |all, bits| all | bits).to_le_bytes();
        }
    }
}

fn copy_floats(dtype: DType, bytes: &[u8], out: &mut [u8]) -> Result<(), DeviceError> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes().max(1)];
    decode(dtype, bytes, &mut values).map_err(decode_error)?;
    for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *out = value.to_le_bytes();
    }
    Ok(())
}

pub(super) fn decode_error(error: impl std::fmt::Display) -> DeviceError {
    DeviceError::Driver {
        operation: "laying out a matrix for the device",
        message: error.to_string(),
    }
}

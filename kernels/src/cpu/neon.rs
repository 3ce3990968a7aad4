//! Version for aarch64 with NEON.
//!
//! Conversions from and to f16 are in assembly: their intrinsics are newer than the minimum
//! supported Rust version.

use std::arch::aarch64::*;
use std::arch::aarch64::{vaddq_f32 as add, vdupq_n_f32 as broadcast, vmulq_f32 as mul};
use std::arch::asm;

use super::activations;
use super::bands;
use super::blocks::{compiled_for, kernel_table, prefetch, six_bit_scales, subarray};
use super::dot;

/// Returns the table with integer dot products, if supported, and the one without.
pub(super) fn kernels() -> [Option<&'static Kernels>; 2] {
    static WITH: Kernels = Kernels {
        name: "aarch64-dotprod",
        dot: dot::neon_dotprod,
        column_groups: bands::neon::dotprod::KERNELS,
        ..KERNELS
    };
    static WITHOUT: Kernels = KERNELS;
    let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
    [dotprod.then_some(&WITH), Some(&WITHOUT)]
}

kernel_table! {
    "neon", float32x4_t, {
        name: "aarch64-neon",
        dot: dot::neon,
        int_gemm: None,
        quantise: activations::quantise,
        column_groups: bands::neon::plain::KERNELS,
    },
    Q8_0 q8_0 34 32 unpack_q8_0,
    Q4_0 q4_0 18 32 unpack_q4_0,
    Q4K q4_k 144 256 unpack_q4_k,
    Q5K q5_k 176 256 unpack_q5_k,
    Q6K q6_k 210 256 unpack_q6_k,
}

const LANES: usize = 4;
const ACCUMULATORS: usize = 4;
const TILE_ROWS: usize = 8;
const TILE_VECTORS: usize = 3;
const REGISTERS: usize = 4;
const COLUMN_ROWS: usize = 6;
const VALUE_PARTS: usize = 4;

compiled_for! {
    "neon";

    fn zero() -> float32x4_t {
        vdupq_n_f32(0.0)
    }

    fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    fn horizontal_sums([a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        store(&mut sums, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
        sums
    }

    fn load_first(x: &[f32]) -> float32x4_t {
        let mut first = [0.0; LANES];
        for (first, x) in first.iter_mut().zip(x) {
            *first = *x;
        }
        load(&first)
    }

    fn load(x: &[f32; LANES]) -> float32x4_t {
        // SAFETY: in bounds.
        unsafe { vld1q_f32(x.as_ptr()) }
    }

    fn store(x: &mut [f32; LANES], value: float32x4_t) {
        // SAFETY: in bounds.
        unsafe { vst1q_f32(x.as_mut_ptr(), value) }
    }

    fn load_halves(halves: &[u16; LANES]) -> float32x4_t {
        // SAFETY: in bounds.
        f16_to_f32(unsafe { vld1_u16(halves.as_ptr()) })
    }

    fn store_halves(halves: &mut [u16; LANES], numbers: float32x4_t) {
        let rounded: uint16x4_t;
        // SAFETY: one instruction of NEON on registers.
        unsafe {
            asm!(
                "fcvtn {rounded:v}.4h, {numbers:v}.4s",
                rounded = out(vreg) rounded,
                numbers = in(vreg) numbers,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        // SAFETY: in bounds.
        unsafe { vst1_u16(halves.as_mut_ptr(), rounded) };
    }

    pub(super) fn f16_to_f32(halves: uint16x4_t) -> float32x4_t {
        let numbers: float32x4_t;
        // SAFETY: one instruction of NEON on registers.
        unsafe {
            asm!(
                "fcvtl {numbers:v}.4s, {halves:v}.4h",
                numbers = out(vreg) numbers,
                halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        numbers
    }

    fn load_128(bytes: &[u8; 16]) -> uint8x16_t {
        // SAFETY: in bounds.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    fn broadcast_f16(bytes: &[u8; 2]) -> float32x4_t {
        f16_to_f32(vdup_n_u16(u16::from_le_bytes(*bytes)))
    }

    fn scale_and_subtract(q: float32x4_t, d: f32, m: f32) -> float32x4_t {
        vsubq_f32(vmulq_n_f32(q, d), vdupq_n_f32(m))
    }

    fn i8_to_f32(bytes: int8x16_t) -> [float32x4_t; 4] {
        let low = vmovl_s8(vget_low_s8(bytes));
        let high = vmovl_high_s8(bytes);
        [
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
            vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
            vcvtq_f32_s32(vmovl_high_s16(high)),
        ]
    }

    /// Converts sixteen bytes of at most 127.
    fn u7_to_f32(bytes: uint8x16_t) -> [float32x4_t; 4] {
        i8_to_f32(vreinterpretq_s8_u8(bytes))
    }

    fn scales_and_minima(supers: &[u8; 4], packed: &[u8; 12]) -> [f32; 16] {
        let six_bits = u7_to_f32(load_128(&six_bit_scales(packed).to_le_bytes()));
        let (d, d_min) = (broadcast_f16(subarray(supers, 0)), broadcast_f16(subarray(supers, 2)));
        let mut numbers = [0.0; 16];
        for (i, numbers) in numbers.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            store(numbers, vmulq_f32(if i < 2 { d } else { d_min }, six_bits[i]));
        }
        numbers
    }

    fn unpack_f32<F: FnMut(usize, float32x4_t)>(b: &[u8; 128], mut each: F) {
        for i in 0..8 {
            each(i, vreinterpretq_f32_u8(load_128(subarray(b, i * 16))));
        }
    }

    fn unpack_f16<F: FnMut(usize, float32x4_t)>(b: &[u8; 64], mut each: F) {
        for i in 0..8 {
            // SAFETY: in bounds.
            let halves = unsafe { vld1_u8(subarray::<8>(b, i * 8).as_ptr()) };
            each(i, f16_to_f32(vreinterpret_u16_u8(halves)));
        }
    }

    fn unpack_bf16<F: FnMut(usize, float32x4_t)>(b: &[u8; 64], mut each: F) {
        for i in 0..4 {
            let halves = vreinterpretq_u16_u8(load_128(subarray(b, i * 16)));
            let low = vshll_n_u16::<16>(vget_low_u16(halves));
            each(i * 2, vreinterpretq_f32_u32(low));
            each(i * 2 + 1, vreinterpretq_f32_u32(vshll_high_n_u16::<16>(halves)));
        }
    }

    fn unpack_q8_0<F: FnMut(usize, float32x4_t)>(b: &[u8; 34], mut each: F) {
        let d = broadcast_f16(subarray(b, 0));
        for i in 0..2 {
            let numbers = i8_to_f32(vreinterpretq_s8_u8(load_128(subarray(b, 2 + i * 16))));
            for (k, q) in numbers.into_iter().enumerate() {
                each(i * 4 + k, vmulq_f32(q, d));
            }
        }
    }

    fn unpack_q4_0<F: FnMut(usize, float32x4_t)>(b: &[u8; 18], mut each: F) {
        let d = broadcast_f16(subarray(b, 0));
        for (i, q) in nibbles(load_128(subarray(b, 2))).into_iter().enumerate() {
            let centred = vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(8));
            for (k, q) in i8_to_f32(centred).into_iter().enumerate() {
                each(i * 4 + k, vmulq_f32(q, d));
            }
        }
    }

    fn nibbles(bytes: uint8x16_t) -> [uint8x16_t; 2] {
        [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
    }

    fn unpack_q4_k<F: FnMut(usize, float32x4_t)>(b: &[u8; 144], mut each: F) {
        let scales = scales_and_minima(subarray(b, 0), subarray(b, 4));
        for pair in 0..4 {
            for i in 0..2 {
                let q = nibbles(load_128(subarray(b, 16 + pair * 32 + i * 16)));
                for (high, q) in q.into_iter().enumerate() {
                    let j = pair * 2 + high;
                    for (k, q) in u7_to_f32(q).into_iter().enumerate() {
                        each(j * 8 + i * 4 + k, scale_and_subtract(q, scales[j], scales[j + 8]));
                    }
                }
            }
        }
    }

    fn unpack_q5_k<F: FnMut(usize, float32x4_t)>(b: &[u8; 176], mut each: F) {
        let scales = scales_and_minima(subarray(b, 0), subarray(b, 4));
        let fifth = [load_128(subarray(b, 16)), load_128(subarray(b, 32))];
        for pair in 0..4 {
            for (i, fifth) in fifth.into_iter().enumerate() {
                let q = nibbles(load_128(subarray(b, 48 + pair * 32 + i * 16)));
                for (high, q) in q.into_iter().enumerate() {
                    let j = pair * 2 + high;
                    let set = vtstq_u8(fifth, vdupq_n_u8(1 << j));
                    let q = vorrq_u8(q, vandq_u8(set, vdupq_n_u8(16)));
                    for (k, q) in u7_to_f32(q).into_iter().enumerate() {
                        each(j * 8 + i * 4 + k, scale_and_subtract(q, scales[j], scales[j + 8]));
                    }
                }
            }
        }
    }

    fn unpack_q6_k<F: FnMut(usize, float32x4_t)>(b: &[u8; 210], mut each: F) {
        let d = broadcast_f16(subarray(b, 208));
        let mut scales = [0.0; 16];
        let numbers = i8_to_f32(vreinterpretq_s8_u8(load_128(subarray(b, 192))));
        for (scales, q) in scales.as_chunks_mut::<LANES>().0.iter_mut().zip(numbers) {
            store(scales, vmulq_f32(d, q));
        }
        for half in 0..2 {
            for i in 0..2 {
                let high = load_128(subarray(b, 128 + half * 32 + i * 16));
                let [a, c] = nibbles(load_128(subarray(b, half * 64 + i * 16)));
                let [b, d] = nibbles(load_128(subarray(b, half * 64 + 32 + i * 16)));
                for (quarter, low) in [a, b, c, d].into_iter().enumerate() {
                    // Two more bits for each quarter.
                    let high = vshlq_u8(high, vdupq_n_s8(-2 * quarter as i8));
                    let high = vshlq_n_u8::<4>(vandq_u8(high, vdupq_n_u8(3)));
                    let q = vreinterpretq_s8_u8(vorrq_u8(low, high));
                    let q = i8_to_f32(vsubq_s8(q, vdupq_n_s8(32)));
                    let index = half * 8 + quarter * 2 + i;
                    for (k, q) in q.into_iter().enumerate() {
                        each(index * 4 + k, vmulq_n_f32(q, scales[index]));
                    }
                }
            }
        }
    }
}

//! Vectors of eight f32 with sums in a fixed order, so that results are bit-identical on every
//! processor.
//!
//! SSE intrinsics replace unreliable auto-vectorisation, without which the search is ten times
//! slower.

use std::ops::{Add, Mul, Sub};

pub(super) const WIDTH: usize = 8;

#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::{
        __m128, _mm_add_ps, _mm_loadu_ps, _mm_max_ps, _mm_min_ps, _mm_mul_ps, _mm_set1_ps,
        _mm_storeu_ps, _mm_sub_ps,
    };

    use super::WIDTH;

    #[derive(Clone, Copy)]
    pub(in super::super) struct Lanes(__m128, __m128);

    macro_rules! operations {
        ($($name:ident $operation:ident $doc:literal;)*) => {$(
            #[doc = $doc]
            #[inline(always)]
            pub(in super::super) fn $name(self, other: Lanes) -> Lanes {
                // SAFETY: SSE is part of x86-64.
                unsafe { Lanes($operation(self.0, other.0), $operation(self.1, other.1)) }
            }
        )*};
    }

    impl Lanes {
        operations! {
            sum _mm_add_ps "The sums.";
            difference _mm_sub_ps "The differences.";
            product _mm_mul_ps "The products.";
            max _mm_max_ps "The larger ones; the other's for a NaN.";
            min _mm_min_ps "The smaller ones; the other's for a NaN.";
        }

        #[inline(always)]
        pub(in super::super) fn splat(x: f32) -> Lanes {
            // SAFETY: SSE is part of x86-64.
            let half = unsafe { _mm_set1_ps(x) };
            Lanes(half, half)
        }

        #[inline(always)]
        pub(in super::super) fn load(x: &[f32; WIDTH]) -> Lanes {
            let ([low, high], _) = x.as_chunks::<4>() else {
                return Lanes::splat(0.0);
            };
            // SAFETY: SSE is part of x86-64, and both pointers address four numbers.
            unsafe { Lanes(_mm_loadu_ps(low.as_ptr()), _mm_loadu_ps(high.as_ptr())) }
        }

        #[inline(always)]
        pub(in super::super) fn to_array(self) -> [f32; WIDTH] {
            let mut array = [0.0; WIDTH];
            if let ([low, high], _) = array.as_chunks_mut::<4>() {
                // SAFETY: SSE is part of x86-64, and both pointers address space for four numbers.
                unsafe {
                    _mm_storeu_ps(low.as_mut_ptr(), self.0);
                    _mm_storeu_ps(high.as_mut_ptr(), self.1);
                }
            }
            array
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod vector {
    use super::WIDTH;

    #[derive(Clone, Copy)]
    pub(in super::super) struct Lanes([f32; WIDTH]);

    macro_rules! operations {
        ($($name:ident $x:ident $y:ident $operation:expr, $doc:literal;)*) => {$(
            #[doc = $doc]
            #[inline(always)]
            pub(in super::super) fn $name(mut self, other: Lanes) -> Lanes {
                for i in 0..WIDTH {
                    let ($x, $y) = (self.0[i], other.0[i]);
                    self.0[i] = $operation;
                }
                self
            }
        )*};
    }

    impl Lanes {
        operations! {
            sum x y x + y, "The sums.";
            difference x y x - y, "The differences.";
            product x y x * y, "The products.";
            max x y if x > y { x } else { y }, "The larger ones; the other's for a NaN.";
            min x y if x < y { x } else { y }, "The smaller ones; the other's for a NaN.";
        }

        #[inline(always)]
        pub(in super::super) fn splat(x: f32) -> Lanes {
            Lanes([x; WIDTH])
        }

        #[inline(always)]
        pub(in super::super) fn load(x: &[f32; WIDTH]) -> Lanes {
            Lanes(*x)
        }

        #[inline(always)]
        pub(in super::super) fn to_array(self) -> [f32; WIDTH] {
            self.0
        }
    }
}

pub(super) use vector::Lanes;

impl Lanes {
    pub(super) const fn chunks<const N: usize>(run: &[f32; N]) -> &[[f32; WIDTH]] {
        run.as_chunks().0
    }

    #[inline(always)]
    pub(super) fn clamp(self, low: f32, high: f32) -> Lanes {
        self.max(Lanes::splat(low)).min(Lanes::splat(high))
    }

    /// Ties to even; NaN gives `low`. The magnitudes of `low` and `high` must be small.
    #[inline(always)]
    pub(super) fn round(self, low: f32, high: f32) -> Lanes {
        let round = Lanes::splat(ROUNDING_MAGIC);
        self.clamp(low, high) + round - round
    }

    #[inline(always)]
    pub(super) fn horizontal_sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.to_array();
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}

impl Add for Lanes {
    type Output = Lanes;

    #[inline(always)]
    fn add(self, other: Lanes) -> Lanes {
        self.sum(other)
    }
}

impl Sub for Lanes {
    type Output = Lanes;

    #[inline(always)]
    fn sub(self, other: Lanes) -> Lanes {
        self.difference(other)
    }
}

impl Mul for Lanes {
    type Output = Lanes;

    #[inline(always)]
    fn mul(self, other: Lanes) -> Lanes {
        self.product(other)
    }
}

#[inline(always)]
pub(super) fn min_max<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut least, mut largest) = (Lanes::splat(x[0]), Lanes::splat(x[0]));
    for x in Lanes::chunks(x) {
        (least, largest) = (least.min(Lanes::load(x)), largest.max(Lanes::load(x)));
    }
    let least = least.to_array().into_iter().fold(x[0], f32::min);
    (least, largest.to_array().into_iter().fold(x[0], f32::max))
}

/// 1.5 · 2^23: sums with it have no fraction bits.
const ROUNDING_MAGIC: f32 = 12_582_912.0;

/// Numbers below this decode to zero with any step, at least 2^-24.
pub(super) const NEGLIGIBLE: f32 = 1.0 / (1_u64 << 40) as f32;

#[inline(always)]
pub(super) fn reciprocal_or_zero(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

#[inline(always)]
pub(super) fn rounded(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    (value + ROUNDING_MAGIC) - ROUNDING_MAGIC
}

#[inline(always)]
pub(super) fn to_byte(whole: f32) -> u8 {
    (whole + 8_388_608.0).to_bits() as u8
}

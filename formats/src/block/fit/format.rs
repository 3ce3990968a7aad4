//! Parameters of the block types.

use super::lanes::{self, Lanes};
use crate::CodecError;
use crate::block::float::F16_LIMIT;
use crate::block::levels::IQ4;
use crate::dtype::DType;

#[derive(Debug, PartialEq)]
pub(in crate::block) struct Format {
    pub(super) dtype: DType,
    /// Log2 of the run length.
    pub(super) run_shift: u32,
    pub(super) levels: LevelSet,
    /// First and last integer scale and minimum of a run. Without integer scales both equal 1 if
    /// the scale is `d` or the minimum is `d_min`, 0 without a minimum.
    pub(super) scales: IntegerRange,
    pub(super) minima: IntegerRange,
    pub(super) starts: &'static [f32],
    /// Magnitude from which the scale would be infinite, as a multiple of [`F16_LIMIT`].
    pub(super) limit: f32,
}

/// Integers from the first to the last, as floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct IntegerRange {
    pub(super) first: f32,
    pub(super) last: f32,
}

impl IntegerRange {
    const ZERO: IntegerRange = IntegerRange::new(0.0, 0.0);
    pub(super) const ONE: IntegerRange = IntegerRange::new(1.0, 1.0);
    const SIX_BITS: IntegerRange = IntegerRange::new(0.0, 63.0);
    const SIX_BITS_SIGNED: IntegerRange = IntegerRange::new(-32.0, 31.0);

    const fn new(first: f32, last: f32) -> IntegerRange {
        IntegerRange { first, last }
    }

    #[inline]
    pub(super) fn contains(self, integer: f32) -> bool {
        (self.first..=self.last).contains(&integer)
    }

    /// Returns the integer nearest to `value`; the first for NaN.
    #[inline]
    pub(super) fn nearest(self, value: f32) -> f32 {
        lanes::rounded(value, self.first, self.last)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LevelSet {
    Integers(f32, f32),
    Iq4,
}

use LevelSet::Integers;

const fn one_scale(dtype: DType, levels: LevelSet, starts: &'static [f32]) -> Format {
    let limit = match levels {
        Integers(low, _) => -low,
        LevelSet::Iq4 => -IQ4[0],
    };
    Format {
        dtype,
        run_shift: 5,
        levels,
        scales: IntegerRange::ONE,
        minima: IntegerRange::ZERO,
        starts,
        limit,
    }
}

const fn one_minimum(dtype: DType, last: f32) -> Format {
    Format {
        dtype,
        run_shift: 5,
        levels: Integers(0.0, last),
        scales: IntegerRange::ONE,
        minima: IntegerRange::ONE,
        starts: &[],
        limit: 1.0,
    }
}

const fn signed_scales(
    dtype: DType,
    run_shift: u32,
    levels: LevelSet,
    scales: IntegerRange,
    starts: &'static [f32],
) -> Format {
    let of_one = one_scale(dtype, levels, starts);
    Format {
        run_shift,
        scales,
        limit: -scales.first * of_one.limit,
        ..of_one
    }
}

const fn scales_and_minima(
    dtype: DType,
    run_shift: u32,
    last: f32,
    integers: IntegerRange,
) -> Format {
    Format {
        run_shift,
        scales: integers,
        minima: integers,
        limit: integers.last,
        ..one_minimum(dtype, last)
    }
}

/// Starts of the searches. Many codes rarely need clipping, and each start is another chance to
/// align numbers with codes.
const FEW_STARTS: &[f32] = &[-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0];
const MANY_STARTS: &[f32] = &[-3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0];

/// The formats, in the order of [`BlockFit::TYPES`](super::BlockFit::TYPES).
static FORMATS: [Format; 12] = [
    one_scale(DType::Q8_0, Integers(-127.0, 127.0), MANY_STARTS),
    signed_scales(
        DType::Q6K,
        4,
        Integers(-32.0, 31.0),
        IntegerRange::new(-128.0, 127.0),
        MANY_STARTS,
    ),
    scales_and_minima(DType::Q5K, 5, 31.0, IntegerRange::SIX_BITS),
    one_minimum(DType::Q5_1, 31.0),
    one_scale(DType::Q5_0, Integers(-16.0, 15.0), MANY_STARTS),
    scales_and_minima(DType::Q4K, 5, 15.0, IntegerRange::SIX_BITS),
    one_minimum(DType::Q4_1, 15.0),
    one_scale(DType::Q4_0, Integers(-8.0, 7.0), FEW_STARTS),
    one_scale(DType::IQ4NL, LevelSet::Iq4, FEW_STARTS),
    signed_scales(
        DType::IQ4XS,
        5,
        LevelSet::Iq4,
        IntegerRange::SIX_BITS_SIGNED,
        FEW_STARTS,
    ),
    signed_scales(
        DType::Q3K,
        4,
        Integers(-4.0, 3.0),
        IntegerRange::SIX_BITS_SIGNED,
        FEW_STARTS,
    ),
    scales_and_minima(DType::Q2K, 4, 3.0, IntegerRange::new(0.0, 15.0)),
];

impl Format {
    pub(in crate::block) fn for_dtype(dtype: DType) -> Option<&'static Format> {
        FORMATS.iter().find(|format| format.dtype == dtype)
    }

    #[inline]
    pub(super) fn run_len(&self) -> usize {
        1 << self.run_shift
    }

    #[inline]
    pub(super) fn runs(&self) -> usize {
        self.dtype.block_len() >> self.run_shift
    }

    #[inline]
    pub(super) fn last_code(&self) -> u8 {
        match self.levels {
            Integers(low, high) => (high - low) as u8,
            LevelSet::Iq4 => IQ4.len() as u8 - 1,
        }
    }

    #[inline]
    pub(super) fn level(&self, code: u8) -> f32 {
        match self.levels {
            Integers(low, high) => f32::min(low + f32::from(code), high),
            LevelSet::Iq4 => IQ4[usize::from(code).min(IQ4.len() - 1)],
        }
    }

    #[inline(always)]
    pub(super) fn nearest(&self, scaled: f32) -> (u8, f32) {
        match self.levels {
            Integers(low, high) => {
                let level = lanes::rounded(scaled, low, high);
                (lanes::to_byte(level - low), level)
            }
            LevelSet::Iq4 => {
                let code = iq4_code(scaled);
                (code, IQ4[usize::from(code) % IQ4.len()])
            }
        }
    }

    pub(super) fn check_len(&self, what: &'static str, found: usize) -> Result<(), CodecError> {
        if found == self.dtype.block_len() {
            return Ok(());
        }
        Err(CodecError::Block {
            dtype: self.dtype,
            array_name: what,
            expected: self.dtype.block_len(),
            found,
        })
    }

    pub(super) fn check_bytes(&self, found: usize) -> Result<(), CodecError> {
        if found == self.dtype.block_bytes() {
            return Ok(());
        }
        Err(CodecError::Block {
            dtype: self.dtype,
            array_name: "bytes",
            expected: self.dtype.block_bytes(),
            found,
        })
    }

    pub(super) fn check_values(&self, values: &[f32], before: usize) -> Result<(), CodecError> {
        // Magnitudes sort like their bits, with infinity and NaN last.
        let magnitude = |value: &f32| value.abs().to_bits();
        let limit = self.magnitude_limit().to_bits();
        if values.iter().map(magnitude).fold(0, u32::max) < limit {
            return Ok(());
        }
        let refused = |value| magnitude(value) >= limit;
        let at = values.iter().position(refused).unwrap_or_default();
        Err(CodecError::NoCode {
            dtype: self.dtype,
            index: before + at,
            value: values[at],
        })
    }

    /// Returns the magnitude from which numbers have no code.
    pub(in crate::block) fn magnitude_limit(&self) -> f32 {
        self.limit * F16_LIMIT
    }
}

/// Twice the lowest level, and the span of the doubled levels.
const TWICE_LOW: f32 = 2.0 * IQ4[0];
const SPAN: usize = (2.0 * (IQ4[15] - IQ4[0])) as usize;

/// Codes by the integer part of a doubled number, counted from the doubled lowest level. Bounds
/// between levels are sums of neighbours, hence integers. Padded so that nine bits are an index.
static CODES: [u8; 512] = {
    let mut codes = [15; 512];
    let mut i = 0;
    while i < SPAN {
        let mut code = 0;
        while code < 15 && IQ4[code] + IQ4[code + 1] - TWICE_LOW <= i as f32 {
            code += 1;
        }
        codes[i] = code as u8;
        i += 1;
    }
    codes
};

static LEVELS: [f32; 512] = {
    let mut levels = [0.0; 512];
    let mut i = 0;
    while i < levels.len() {
        levels[i] = IQ4[CODES[i] as usize];
        i += 1;
    }
    levels
};

#[inline(always)]
fn iq4_code(scaled: f32) -> u8 {
    // Not negative, so that truncation rounds down.
    let above = 2.0 * scaled - TWICE_LOW;
    let above = if above > 0.0 { above } else { 0.0 };
    CODES[(above as usize).min(SPAN)]
}

/// Vectorised, without table look-ups.
pub(super) trait NearestLevel: Copy {
    fn bounds(self) -> (f32, f32);
    fn nearest(self, scaled: Lanes) -> Lanes;
    /// Returns the gap between levels, the unit of the search's starts.
    fn gap(self) -> f32;
}

#[derive(Clone, Copy)]
pub(super) struct IntegerLevels(pub(super) f32, pub(super) f32);

impl NearestLevel for IntegerLevels {
    #[inline(always)]
    fn bounds(self) -> (f32, f32) {
        (self.0, self.1)
    }

    #[inline(always)]
    fn nearest(self, scaled: Lanes) -> Lanes {
        scaled.round(self.0, self.1)
    }

    #[inline(always)]
    fn gap(self) -> f32 {
        1.0
    }
}

#[derive(Clone, Copy)]
pub(super) struct Iq4Levels;

impl NearestLevel for Iq4Levels {
    #[inline(always)]
    fn bounds(self) -> (f32, f32) {
        (IQ4[0], IQ4[15])
    }

    #[inline(always)]
    fn nearest(self, scaled: Lanes) -> Lanes {
        // Rounding to nearest, shifted by half a unit, rounds down except at bounds, which are
        // equally near to the level below.
        let above = scaled + scaled - Lanes::splat(TWICE_LOW + 0.5);
        let whole = above.clamp(0.0, SPAN as f32) + Lanes::splat(8_388_608.0);
        let levels = whole
            .to_array()
            .map(|whole| LEVELS[(whole.to_bits() & 511) as usize]);
        Lanes::load(&levels)
    }

    #[inline(always)]
    fn gap(self) -> f32 {
        24.0
    }
}

//! A block's scales first, its codes afterwards.
//!
//! A block holds runs of 16 or 32 numbers. In every one of the types here a number is
//! `step · level - offset`, where the level belongs to the number's code and step and offset to its
//! run. They are `d · scale` and `d_min · minimum` with `d` and `d_min` of the block in f16 and
//! integers of the run; types with one run have `d` and `d_min` alone. So one search serves them
//! all, and what tells them apart is data ([`Format`]).
//!
//! The arithmetic is float32 in a fixed order: the same bits on every machine.

mod format;
mod lanes;
mod near;
mod nested;
mod offset;
mod pack;
mod refit;
mod step;
mod weights;

use std::ops::RangeInclusive;

use half::f16;

use self::format::Format;
pub use self::near::Near;
use super::BlockError;
use crate::dtype::DType;

/// Numbers in the longest block.
const MAX_LEN: usize = 256;

/// Runs in the block that has most of them.
const MAX_RUNS: usize = 16;

/// How a block of a row is represented once its scales are fixed.
///
/// Codes are indices into the block's levels in ascending order, from 0 on, so that neighbours in value
/// are neighbours in code. For most types they are the stored bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockFit {
    format: &'static Format,
    /// Scale of the scales, and of the minima: what is stored.
    d: f16,
    d_min: f16,
    scales: [i8; MAX_RUNS],
    minima: [u8; MAX_RUNS],
    /// The same as factors of each run.
    runs: [Run; MAX_RUNS],
}

/// A number of a run is `step · level + shift`, in float32: the decoders' operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Run {
    step: f32,
    /// The offset with its sign changed; -0.0 where the type has none, because a sum with it is the
    /// other number, also where that is a zero of either sign.
    shift: f32,
    /// `1 / step`, or 0 where that is 0.
    inverse: f32,
}

impl Run {
    /// That of integers, and of what they are scaled by.
    #[inline]
    fn of((d, d_min): (f32, f32), (scale, minimum): (f32, f32)) -> Run {
        let step = d * scale;
        Run {
            step,
            shift: -(d_min * minimum),
            inverse: lanes::inverse(step),
        }
    }
}

impl BlockFit {
    /// The types whose blocks can be fitted.
    pub const TYPES: &'static [DType] = &[
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

    /// The scales that leave the least `Σ importance (value - decoded)²` over the numbers of a block,
    /// as far as the search finds them: least-squares fits and rounding in turn, from several starts,
    /// then the integers of the runs with their neighbours.
    ///
    /// Only ratios of importances count. One below 2^-30 of the block's largest counts as that, so that
    /// numbers of no importance still have codes near them.
    ///
    /// # Errors
    ///
    /// [`BlockError::NotWritten`] for types that are none of [`BlockFit::TYPES`]; [`BlockError::Block`]
    /// for other numbers of values or importances than a block has; [`BlockError::NoCode`] where
    /// [`encode`](super::encode) gives it; [`BlockError::Importance`] for one that is negative or not finite.
    pub fn search(
        dtype: DType,
        values: &[f32],
        importance: Option<&[f32]>,
    ) -> Result<BlockFit, BlockError> {
        let format = Format::of(dtype).ok_or(BlockError::NotWritten { dtype })?;
        format.check("values", values.len())?;
        format.check_values(values, 0)?;
        let mut room = [1.0; MAX_LEN];
        let weights = weights::of(format, importance, &mut room)?;
        Ok(nested::search(format, values, weights))
    }

    /// The fit with these scales, in the integers that are stored.
    fn with(
        format: &'static Format,
        (d, d_min): (f16, f16),
        scales: [i8; MAX_RUNS],
        minima: [u8; MAX_RUNS],
    ) -> BlockFit {
        let mut runs = [Run::default(); MAX_RUNS];
        let (of_scale, of_minimum) = (d.to_f32(), d_min.to_f32());
        for ((run, scale), minimum) in runs.iter_mut().zip(scales).zip(minima) {
            *run = Run::of((of_scale, of_minimum), (scale.into(), minimum.into()));
        }
        BlockFit {
            format,
            d,
            d_min,
            scales,
            minima,
            runs,
        }
    }

    /// The type.
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Numbers of a run, which share a step and an offset.
    pub fn run_len(dtype: DType) -> Option<usize> {
        Format::of(dtype).map(Format::run_len)
    }

    /// The codes; they are the same at every place of the block.
    pub fn codes(&self) -> RangeInclusive<u8> {
        0..=self.format.last_code()
    }

    #[inline]
    fn run(&self, place: usize) -> Run {
        self.runs[(place >> self.format.run_shift) % MAX_RUNS]
    }

    /// The step and the offset of a run, with its sign changed: what a code decodes to is the sum of the latter and the former times
    /// the code's [level](BlockFit::level).
    pub fn step_and_shift(&self, run: usize) -> (f32, f32) {
        let run = self.runs[run % MAX_RUNS];
        (run.step, run.shift)
    }

    /// The level of a code, or the last one.
    pub fn level(&self, code: u8) -> f32 {
        self.format.level(code)
    }

    /// The code nearest to `value` at a place of the block, and what it decodes to; code 0 for a NaN. A
    /// value half way between two may get either of them.
    #[inline]
    pub fn nearest(&self, place: usize, value: f32) -> (u8, f32) {
        let run = self.run(place);
        let (code, level) = self.format.nearest((value - run.shift) * run.inverse);
        (code, run.step * level + run.shift)
    }

    /// What a code at a place of the block decodes to, bit for bit. A code that the type does not have
    /// counts as its last one.
    #[inline]
    pub fn value(&self, place: usize, code: u8) -> f32 {
        let run = self.run(place);
        run.step * self.format.level(code) + run.shift
    }

    /// The code nearest to each of a block's numbers, as [`nearest`](BlockFit::nearest) gives them.
    ///
    /// # Errors
    ///
    /// [`BlockError::Block`] for other numbers of values or codes than a block has.
    pub fn round(&self, values: &[f32], codes: &mut [u8]) -> Result<(), BlockError> {
        self.format.check("values", values.len())?;
        self.format.check("codes", codes.len())?;
        self.round_block(values, codes);
        Ok(())
    }

    /// `round` for lengths that are known to be those of a block.
    fn round_block(&self, values: &[f32], codes: &mut [u8]) {
        let len = self.format.run_len();
        let runs = values.chunks(len).zip(codes.chunks_mut(len));
        for (run, (values, codes)) in self.runs.iter().zip(runs) {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = self.format.nearest((value - run.shift) * run.inverse).0;
            }
        }
    }

    /// The scales fitted by weighted least squares to codes that stay as they are. Never worse than
    /// these under the importances: where nothing better is found, it is these.
    ///
    /// # Errors
    ///
    /// [`BlockError::Block`], [`BlockError::Importance`] as from [`search`](BlockFit::search), and
    /// [`BlockError::Code`] for a code that the type does not have.
    pub fn refit(
        &self,
        values: &[f32],
        importance: Option<&[f32]>,
        codes: &[u8],
    ) -> Result<BlockFit, BlockError> {
        self.format.check("values", values.len())?;
        self.check_codes(codes)?;
        let mut room = [1.0; MAX_LEN];
        let weights = weights::of(self.format, importance, &mut room)?;
        Ok(refit::refit(self, values, weights, codes))
    }

    /// Writes the block.
    ///
    /// # Errors
    ///
    /// [`BlockError::Block`] for other numbers of codes or bytes than a block has, [`BlockError::Code`] for a
    /// code that the type does not have.
    pub fn pack(&self, codes: &[u8], out: &mut [u8]) -> Result<(), BlockError> {
        self.check_codes(codes)?;
        self.format.check_bytes(out.len())?;
        pack::pack(self, codes, out);
        Ok(())
    }

    fn check_codes(&self, codes: &[u8]) -> Result<(), BlockError> {
        self.format.check("codes", codes.len())?;
        let last = self.format.last_code();
        match codes.iter().position(|&code| code > last) {
            Some(place) => Err(BlockError::Code {
                dtype: self.format.dtype,
                place,
                code: codes[place],
                last,
            }),
            None => Ok(()),
        }
    }
}

/// Encodes whole blocks of a type that can be fitted, every number as important as the others; the
/// lengths belong together.
pub(super) fn encode(
    format: &'static Format,
    values: &[f32],
    out: &mut [u8],
) -> Result<(), BlockError> {
    let len = format.dtype.block_len();
    let blocks = out.chunks_exact_mut(format.dtype.block_bytes());
    let (weights, mut codes) = ([1.0; MAX_LEN], [0; MAX_LEN]);
    let (weights, codes) = (&weights[..len], &mut codes[..len]);
    for (number, (values, block)) in values.chunks_exact(len).zip(blocks).enumerate() {
        format.check_values(values, number * len)?;
        let fit = nested::search(format, values, weights);
        fit.round_block(values, codes);
        pack::pack(&fit, codes, block);
    }
    Ok(())
}

/// What tells the fit's types apart, or `None` for a type that has none.
pub(super) fn format(dtype: DType) -> Option<&'static Format> {
    Format::of(dtype)
}

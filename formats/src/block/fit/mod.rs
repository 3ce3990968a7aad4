//! Block fitting: scales first, codes afterwards.
//!
//! A block consists of runs of 16 or 32 numbers, each `step · level - offset`, with the level of
//! its code and step and offset of its run. These are `d · scale` and `d_min · minimum`, with f16
//! `d` and `d_min` of the block and integers of the run. Types with one run have only `d` and
//! `d_min`.
//!
//! The arithmetic is f32 in a fixed order: bit-identical on every machine.

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

pub(super) use self::format::Format;
pub use self::near::NearbyKind;
use super::{FLOATS, WRITABLE};
use crate::CodecError;
use crate::dtype::DType;

const MAX_LEN: usize = 256;

const MAX_RUNS: usize = 16;

/// Fixed scales of a block, by which its numbers are encoded.
///
/// Codes are indices into the ascending levels of the block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockFit {
    format: &'static Format,
    /// Scales of the super-block, as stored.
    super_scales: SuperScales<f16>,
    scales: [i8; MAX_RUNS],
    minima: [u8; MAX_RUNS],
    runs: [Run; MAX_RUNS],
}

/// A number of a run is `step · level + shift` in f32, as in the decoders.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Run {
    step: f32,
    /// Negated offset; -0.0 for types without one, because adding it preserves every number.
    shift: f32,
    /// `1 / step`, or 0 if `step` is 0.
    inverse: f32,
}

/// Scale of the scales and of the minima of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SuperScales<T> {
    d: T,
    d_min: T,
}

impl SuperScales<f16> {
    fn to_f32(self) -> SuperScales<f32> {
        SuperScales {
            d: self.d.to_f32(),
            d_min: self.d_min.to_f32(),
        }
    }
}

/// Integer scale and minimum of a run, as floats.
#[derive(Clone, Copy)]
struct RunIntegers {
    scale: f32,
    minimum: f32,
}

impl Run {
    #[inline]
    fn new(block: SuperScales<f32>, run: RunIntegers) -> Run {
        let step = block.d * run.scale;
        Run {
            step,
            shift: -(block.d_min * run.minimum),
            inverse: lanes::reciprocal_or_zero(step),
        }
    }
}

impl BlockFit {
    /// Types whose blocks can be fitted.
    pub const TYPES: &'static [DType] = WRITABLE.split_at(FLOATS).1;

    /// Searches the scales with the least `Σ importance (value - decoded)²` over a block:
    /// alternating least-squares fits and rounding from several starts, then the integers of the
    /// runs and their neighbours.
    ///
    /// Only ratios of importances matter; each is raised to at least 2^-30 of the largest.
    ///
    /// # Errors
    /// [`CodecError::ReadOnlyType`] for types outside of [`BlockFit::TYPES`];
    /// [`CodecError::Block`], [`CodecError::NoCode`], [`CodecError::Importance`].
    pub fn search(
        dtype: DType,
        values: &[f32],
        importance: Option<&[f32]>,
    ) -> Result<BlockFit, CodecError> {
        let format = Format::for_dtype(dtype).ok_or(CodecError::ReadOnlyType { dtype })?;
        format.check_len("values", values.len())?;
        format.check_values(values, 0)?;
        let mut buffer = [1.0; MAX_LEN];
        let weights = weights::normalise_importances(format, importance, &mut buffer)?;
        Ok(nested::search(format, values, weights))
    }

    fn from_integers(
        format: &'static Format,
        super_scales: SuperScales<f16>,
        scales: [i8; MAX_RUNS],
        minima: [u8; MAX_RUNS],
    ) -> BlockFit {
        let mut runs = [Run::default(); MAX_RUNS];
        let block = super_scales.to_f32();
        for ((run, scale), minimum) in runs.iter_mut().zip(scales).zip(minima) {
            let (scale, minimum) = (scale.into(), minimum.into());
            *run = Run::new(block, RunIntegers { scale, minimum });
        }
        BlockFit {
            format,
            super_scales,
            scales,
            minima,
            runs,
        }
    }

    /// Type of the block.
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Returns the numbers per run, which share step and offset.
    pub fn run_len(dtype: DType) -> Option<usize> {
        Format::for_dtype(dtype).map(Format::run_len)
    }

    /// Returns the range of codes, the same for all numbers of the block.
    pub fn codes(&self) -> RangeInclusive<u8> {
        0..=self.format.last_code()
    }

    #[inline]
    fn run(&self, place: usize) -> Run {
        self.runs[(place >> self.format.run_shift) % MAX_RUNS]
    }

    /// Returns the step and the shift (negated offset) of a run. A code decodes to shift plus step
    /// times its [level](BlockFit::level).
    pub fn step_and_shift(&self, run: usize) -> (f32, f32) {
        let run = self.runs[run % MAX_RUNS];
        (run.step, run.shift)
    }

    /// Returns the level of a code, clamped to the last one.
    pub fn level(&self, code: u8) -> f32 {
        self.format.level(code)
    }

    /// Returns the code nearest to `value` at an index of the block, and its decoded value; code 0
    /// for NaN. Ties go either way.
    #[inline]
    pub fn nearest(&self, place: usize, value: f32) -> (u8, f32) {
        let run = self.run(place);
        let (code, level) = self.format.nearest((value - run.shift) * run.inverse);
        (code, run.step * level + run.shift)
    }

    /// Returns the decoded value of a code at an index of the block, bit for bit. Codes are clamped
    /// to the last one of the type.
    #[inline]
    pub fn value(&self, place: usize, code: u8) -> f32 {
        let run = self.run(place);
        run.step * self.format.level(code) + run.shift
    }

    /// Rounds each number of a block to a code, as [`nearest`](BlockFit::nearest) does.
    ///
    /// # Errors
    ///
    /// [`CodecError::Block`] for a wrong number of values or codes.
    pub fn quantise(&self, values: &[f32], codes: &mut [u8]) -> Result<(), CodecError> {
        self.format.check_len("values", values.len())?;
        self.format.check_len("codes", codes.len())?;
        self.quantise_block(values, codes);
        Ok(())
    }

    fn quantise_block(&self, values: &[f32], codes: &mut [u8]) {
        let len = self.format.run_len();
        let runs = values.chunks(len).zip(codes.chunks_mut(len));
        for (run, (values, codes)) in self.runs.iter().zip(runs) {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = self.format.nearest((value - run.shift) * run.inverse).0;
            }
        }
    }

    /// Fits the scales to fixed codes by weighted least squares; unchanged if none better is found.
    ///
    /// # Errors
    /// As [`search`](BlockFit::search), and [`CodecError::Code`].
    pub fn refit(
        &self,
        values: &[f32],
        importance: Option<&[f32]>,
        codes: &[u8],
    ) -> Result<BlockFit, CodecError> {
        self.format.check_len("values", values.len())?;
        self.check_codes(codes)?;
        let mut buffer = [1.0; MAX_LEN];
        let weights = weights::normalise_importances(self.format, importance, &mut buffer)?;
        Ok(refit::refit(self, values, weights, codes))
    }

    /// Writes the block.
    ///
    /// # Errors
    ///
    /// [`CodecError::Block`], [`CodecError::Code`].
    pub fn pack(&self, codes: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        self.check_codes(codes)?;
        self.format.check_bytes(out.len())?;
        pack::pack(self, codes, out);
        Ok(())
    }

    fn check_codes(&self, codes: &[u8]) -> Result<(), CodecError> {
        self.format.check_len("codes", codes.len())?;
        let last = self.format.last_code();
        match codes.iter().position(|&code| code > last) {
            Some(place) => Err(CodecError::Code {
                dtype: self.format.dtype,
                place,
                code: codes[place],
                last,
            }),
            None => Ok(()),
        }
    }
}

pub(super) fn encode(
    format: &'static Format,
    values: &[f32],
    out: &mut [u8],
) -> Result<(), CodecError> {
    let len = format.dtype.block_len();
    let blocks = out.chunks_exact_mut(format.dtype.block_bytes());
    let (weights, mut codes) = ([1.0; MAX_LEN], [0; MAX_LEN]);
    let (weights, codes) = (&weights[..len], &mut codes[..len]);
    for (number, (values, block)) in values.chunks_exact(len).zip(blocks).enumerate() {
        format.check_values(values, number * len)?;
        let fit = nested::search(format, values, weights);
        fit.quantise_block(values, codes);
        pack::pack(&fit, codes, block);
    }
    Ok(())
}

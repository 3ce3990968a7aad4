//! Codebook encoder.

use htc_formats::CodecError;
use htc_formats::bands::{CODEBOOKS, Code, CodeKind, MAX_CODEBOOK_SCALE};

/// Code with its integer value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NearestLevel {
    /// Stored code.
    pub code: u8,
    /// Decoded value, in units of the scales.
    pub value: i8,
}

const COARSE_SCALES: usize = 14;

/// Codebook encoder for one bit width.
#[derive(Clone, Debug)]
pub struct CodebookEncoder {
    bits: u8,
    /// Index and value of the nearest magnitude for numbers in `[i / 2, (i + 1) / 2)`.
    nearest: Vec<(u8, i8)>,
}

impl CodebookEncoder {
    /// Creates an encoder for 2 to 8 bits.
    ///
    /// # Errors
    /// [`CodecError::Bits`].
    pub fn new(bits: u8) -> Result<CodebookEncoder, CodecError> {
        Code::new(CodeKind::Codebook, bits)?;
        let eight: Vec<i8> = (0..=127).collect();
        let table = CODEBOOKS.get(usize::from(bits) - 2).copied();
        let magnitudes = table.unwrap_or(&eight);
        let nearest = |half: i32| {
            let crossed = |pair: &&[i8]| half >= i32::from(pair[0]) + i32::from(pair[1]);
            let index = magnitudes.windows(2).take_while(crossed).count();
            (index as u8, magnitudes[index])
        };
        let nearest = (0..=254).map(nearest).collect();
        Ok(CodebookEncoder { bits, nearest })
    }

    /// Returns the bits of a code.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns the level nearest to a number in integer units.
    pub fn nearest(&self, x: f32) -> NearestLevel {
        // A cast saturates, and NaN becomes 0.
        let half = ((2.0 * x.abs()) as usize).min(self.nearest.len() - 1);
        let (index, magnitude) = self.nearest[half];
        let negative = x < 0.0;
        let value = if negative { -magnitude } else { magnitude };
        let code = match self.bits {
            8 => value.cast_unsigned(),
            bits => index | u8::from(negative) << (bits - 1),
        };
        NearestLevel { code, value }
    }

    /// Returns the scale, 0 to 63, of about the least weighted squared error of `x`, in integer
    /// units at scale 1.
    pub fn best_scale(&self, x: &[f32], importance: Option<&[f32]>) -> u8 {
        assert!(importance.is_none_or(|weights| weights.len() == x.len()));
        let largest = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        if largest == 0.0 {
            return 0;
        }
        // Clipping below a third never pays.
        let whole = |share: f32| {
            ((largest / 127.0 * share) as usize).clamp(1, usize::from(MAX_CODEBOOK_SCALE))
        };
        let (first, last) = (whole(0.3), (whole(1.25) + 1).min(MAX_CODEBOOK_SCALE.into()));
        let step = (last - first) / COARSE_SCALES + 1;
        let mut best = (f32::INFINITY, first);
        let look = |scale: usize, best: &mut (f32, usize)| {
            let error = self.error(x, importance, scale as f32);
            if error < best.0 || error == best.0 && scale < best.1 {
                *best = (error, scale);
            }
        };
        for scale in (first..=last).step_by(step) {
            look(scale, &mut best);
        }
        let around = best.1;
        for scale in (around + 1).saturating_sub(step).max(first)..(around + step).min(last + 1) {
            look(scale, &mut best);
        }
        best.1 as u8
    }

    /// Returns the weighted squared error at `scale`, in integer units at scale 1.
    pub fn error(&self, x: &[f32], importance: Option<&[f32]>, scale: f32) -> f32 {
        let inverse = 1.0 / scale;
        let of = |x: f32| {
            let d = x - scale * f32::from(self.nearest(x * inverse).value);
            d * d
        };
        match importance {
            None => x.iter().map(|&x| of(x)).sum(),
            Some(weights) => x.iter().zip(weights).map(|(&x, w)| of(x) * w).sum(),
        }
    }
}

#[cfg(test)]
mod tests;

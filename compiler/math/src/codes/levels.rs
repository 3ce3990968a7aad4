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
mod tests {
    use super::*;
    use htc_formats::bands::codebook_value;

    #[test]
    fn nearest_returns_the_closest_level_and_its_code() {
        for bits in 2..=8 {
            let levels = CodebookEncoder::new(bits).unwrap();
            let all: Vec<i8> = (0..=(1_u16 << bits) as u8 as u16 + if bits == 8 { 255 } else { 0 })
                .take(1 << bits)
                .map(|code| codebook_value(bits, code as u8))
                .collect();
            for x in (-5200..=5200).map(|i| i as f32 / 40.0) {
                let found = levels.nearest(x);
                assert_eq!(codebook_value(bits, found.code), found.value, "{bits} {x}");
                let distance = |v: i8| (x - f32::from(v)).abs();
                let least = all.iter().map(|&v| distance(v)).fold(f32::MAX, f32::min);
                assert_eq!(distance(found.value), least, "{bits} {x}");
            }
        }
        assert!(CodebookEncoder::new(9).is_err() && CodebookEncoder::new(1).is_err());
    }

    #[test]
    fn scale_error_is_within_3_percent_of_the_best() {
        let mut rng = crate::random::Rng(7);
        for bits in 2..=8 {
            let levels = CodebookEncoder::new(bits).unwrap();
            for size in [3.0, 300.0, 2500.0, 9000.0] {
                let x: Vec<f32> = (0..32).map(|_| (rng.normal() * size) as f32).collect();
                let weights: Vec<f32> = (0..32).map(|_| rng.unit() as f32).collect();
                for weights in [None, Some(&weights[..])] {
                    let found = levels.best_scale(&x, weights);
                    let error = |s: u8| levels.error(&x, weights, s.into());
                    let least = (1..=63).map(error).fold(f32::MAX, f32::min);
                    assert!(error(found) <= 1.03 * least, "{bits} {size}: {found}");
                }
            }
            assert_eq!(levels.best_scale(&[0.0; 32], None), 0);
        }
    }
}

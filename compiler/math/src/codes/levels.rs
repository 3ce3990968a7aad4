//! The nearest level, and the scale of least error.

use htc_formats::bands::{Code, CodesError, Kind, LEVEL_TABLES, MAX_SCALE};

/// A code of levels and the integer that it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nearest {
    /// What is stored.
    pub code: u8,
    /// What it decodes to, in units of the scales.
    pub value: i8,
}

/// Scales that are looked at before those between them, about.
const LOOKS: usize = 14;

/// Encodes levels of one number of bits.
#[derive(Clone, Debug)]
pub struct Levels {
    bits: u8,
    /// The nearest magnitude to numbers from `i / 2` on, below `(i + 1) / 2`: its index and itself. All
    /// borders between integers are among these.
    nearest: Vec<(u8, i8)>,
}

impl Levels {
    /// Levels of 2 to 8 bits.
    ///
    /// # Errors
    /// [`CodesError::Bits`].
    pub fn new(bits: u8) -> Result<Levels, CodesError> {
        Code::new(Kind::Levels, bits)?;
        let eight: Vec<i8> = (0..=127).collect();
        let table = LEVEL_TABLES.get(usize::from(bits) - 2).copied();
        let magnitudes = table.unwrap_or(&eight);
        let nearest = |half: i32| {
            // The border itself belongs to the level above.
            let crossed = |pair: &&[i8]| half >= i32::from(pair[0]) + i32::from(pair[1]);
            let index = magnitudes.windows(2).take_while(crossed).count();
            (index as u8, magnitudes[index])
        };
        let nearest = (0..=254).map(nearest).collect();
        Ok(Levels { bits, nearest })
    }

    /// Bits of a code.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The nearest level to a number in units of the integers.
    pub fn nearest(&self, x: f32) -> Nearest {
        // A cast saturates, and NaN becomes 0.
        let half = ((2.0 * x.abs()) as usize).min(self.nearest.len() - 1);
        let (index, magnitude) = self.nearest[half];
        let negative = x < 0.0;
        let value = if negative { -magnitude } else { magnitude };
        let code = match self.bits {
            8 => value.cast_unsigned(),
            bits => index | u8::from(negative) << (bits - 1),
        };
        Nearest { code, value }
    }

    /// The scale, 0 to 63, that leaves about the least weighted squared error of a group's numbers, which are
    /// in units of the integers at a scale of one; the lowest of equals.
    ///
    /// # Panics
    /// Where `importance` has another length than `x`.
    pub fn scale(&self, x: &[f32], importance: Option<&[f32]>) -> u8 {
        assert!(importance.is_none_or(|weights| weights.len() == x.len()));
        let largest = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        if largest == 0.0 {
            return 0;
        }
        // The largest number is cut off at most to a third: with two bits that is the best.
        let whole =
            |share: f32| ((largest / 127.0 * share) as usize).clamp(1, usize::from(MAX_SCALE));
        let (first, last) = (whole(0.3), (whole(1.25) + 1).min(MAX_SCALE.into()));
        // A look at some, then at those around the best of them.
        let step = (last - first) / LOOKS + 1;
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

    /// The weighted squared error of a group with a scale, in units of the integers at a scale of one.
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
    use htc_formats::bands::level;

    #[test]
    fn no_level_is_nearer_and_codes_stand_for_their_values() {
        for bits in 2..=8 {
            let levels = Levels::new(bits).unwrap();
            let all: Vec<i8> = (0..=(1_u16 << bits) as u8 as u16 + if bits == 8 { 255 } else { 0 })
                .take(1 << bits)
                .map(|code| level(bits, code as u8))
                .collect();
            for x in (-5200..=5200).map(|i| i as f32 / 40.0) {
                let found = levels.nearest(x);
                assert_eq!(level(bits, found.code), found.value, "{bits} {x}");
                let distance = |v: i8| (x - f32::from(v)).abs();
                let least = all.iter().map(|&v| distance(v)).fold(f32::MAX, f32::min);
                assert_eq!(distance(found.value), least, "{bits} {x}");
            }
        }
        assert!(Levels::new(9).is_err() && Levels::new(1).is_err());
    }

    #[test]
    fn no_other_scale_has_a_smaller_error() {
        let mut rng = crate::random::Rng(7);
        for bits in 2..=8 {
            let levels = Levels::new(bits).unwrap();
            for size in [3.0, 300.0, 2500.0, 9000.0] {
                let x: Vec<f32> = (0..32).map(|_| (rng.normal() * size) as f32).collect();
                let weights: Vec<f32> = (0..32).map(|_| rng.unit() as f32).collect();
                for weights in [None, Some(&weights[..])] {
                    let found = levels.scale(&x, weights);
                    let error = |s: u8| levels.error(&x, weights, s.into());
                    let least = (1..=63).map(error).fold(f32::MAX, f32::min);
                    assert!(error(found) <= 1.03 * least, "{bits} {size}: {found}");
                }
            }
            assert_eq!(levels.scale(&[0.0; 32], None), 0);
        }
    }
}

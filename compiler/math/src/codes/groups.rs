//! Levels of a band, row by row: the scale of a group, and its codes, with what each leaves carried to those behind it
//! in the band.

use std::ops::Range;

use htc_formats::bands::{BAND, LEVEL_UNIT, MAX_SCALE, QUAD};

use super::coded::CodedBand;
use super::strip::{Strip, over};
use super::{Levels, Nearest};
use crate::Feedback;

/// How far from the scale that leaves the least error without feedback others are tried with it, in parts of that.
const AROUND: Range<f32> = 0.7..1.3;

/// Scales that are tried there, about.
const TRIED: usize = 10;

/// A group of a row in units of its scales' own.
struct Group {
    width: usize,
    /// What it should be, and what feedback of the bands before makes of that.
    exact: [f32; BAND],
    targets: [f32; BAND],
}

/// What errors of the columns of a band count there, and what of each is carried to those behind.
#[derive(Clone, Copy)]
struct Within<'a> {
    feedback: &'a Feedback,
    start: usize,
}

impl Group {
    fn of(unit: f32, exact: &[f32], targets: &[f32]) -> Group {
        let in_units = |numbers: &[f32]| {
            let mut of = [0.0; BAND];
            let pairs = of.iter_mut().zip(numbers);
            pairs.for_each(|(to, &x)| *to = over(x, unit));
            of
        };
        Group {
            width: exact.len().min(BAND),
            exact: in_units(exact),
            targets: in_units(targets),
        }
    }

    fn targets(&self) -> &[f32] {
        &self.targets[..self.width]
    }

    /// Codes with a scale, one by one, and what they lose; given up where that comes to `most`.
    fn code(
        &self,
        levels: &Levels,
        scale: u8,
        within: Option<Within<'_>>,
        most: Option<f32>,
    ) -> Option<([Nearest; BAND], f32)> {
        let scale = f32::from(scale);
        let inverse = over(1.0, scale);
        let mut codes = [Nearest::default(); BAND];
        let mut nearest = |c: usize, target: f32| {
            codes[c] = levels.nearest(target * inverse);
            scale * f32::from(codes[c].value)
        };
        let lost = match within {
            Some(Within { feedback, start }) => {
                let mut targets = self.targets;
                let group = (&self.exact[..self.width], &mut targets[..self.width]);
                feedback.feed_run(start, group, most, nearest)?
            }
            None => {
                let targets = self.targets().iter().enumerate();
                targets.for_each(|(c, &target)| _ = nearest(c, target));
                0.0
            }
        };
        Some((codes, lost))
    }

    /// The scale with which the group loses least, and its codes: around the one that would lose least if no code made
    /// up for another, those that make up for each other are looked at.
    fn best(&self, levels: &Levels, within: Option<Within<'_>>) -> (u8, [Nearest; BAND]) {
        let columns = |of: Within<'_>| of.start..of.start + self.width;
        let importance = within.map(|of| &of.feedback.importance()[columns(of)]);
        let alone = levels.scale(self.targets(), importance);
        let with = |scale, most| self.code(levels, scale, within, most);
        let (mut codes, mut least) = with(alone, None).unwrap_or_default();
        let mut best = alone;
        if within.is_none() {
            return (best, codes);
        }
        let [first, last] = [AROUND.start, AROUND.end].map(|share| share * f32::from(alone));
        let (first, last) = (first.max(1.0) as u8, (last.ceil() as u8).min(MAX_SCALE));
        let step = usize::from(last.saturating_sub(first)) / TRIED + 1;
        for scale in (first..=last).step_by(step) {
            if let Some((other, lost)) = with(scale, Some(least)) {
                (best, codes, least) = (scale, other, lost);
            }
        }
        (best, codes)
    }
}

impl Strip {
    /// Codes a band in levels; what is left of it is not yet carried to the bands behind.
    pub fn code_levels(
        &mut self,
        levels: &Levels,
        feedback: Option<&Feedback>,
        columns: Range<usize>,
    ) -> CodedBand {
        let (start, width) = (columns.start, columns.len());
        let within = feedback.map(|feedback| Within { feedback, start });
        let mut scales = vec![0; self.padded];
        let mut quads = std::array::from_fn(|_| vec![0; self.padded * QUAD]);
        for (r, to) in scales.iter_mut().enumerate().take(self.rows) {
            let unit = self.coded.rows[0][r] * LEVEL_UNIT;
            let at = r * self.cols + start;
            let [exact, targets] = [&self.weights, &self.targets].map(|of| &of[at..][..width]);
            let (scale, codes) = Group::of(unit, exact, targets).best(levels, within);
            *to = scale;
            let values = &mut self.values[at..][..width];
            for (c, (value, code)) in values.iter_mut().zip(codes).enumerate() {
                quads[c / QUAD][r * QUAD + c % QUAD] = code.code;
                *value = f32::from(code.value) * unit * f32::from(scale);
            }
        }
        CodedBand::Levels(scales, quads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecondMoment;

    /// Numbers that follow no rule that matters here, in -1..1.
    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Inputs that mostly depend on few numbers.
    fn feedback() -> Feedback {
        let of = numbers(1, BAND * 4);
        let entry = |at: usize| {
            let (i, j) = (at / BAND, at % BAND);
            let pairs = of[4 * i..][..4].iter().zip(&of[4 * j..]);
            let own = if i == j { 0.1 } else { 0.0 };
            pairs.map(|(a, b)| f64::from(a * b)).sum::<f64>() + own
        };
        let moment: Vec<f64> = (0..BAND * BAND).map(entry).collect();
        let moment = SecondMoment {
            order: BAND,
            values: &moment,
        };
        Feedback::new(moment, 0.01).unwrap()
    }

    /// What a scale loses is what its codes lose of the outputs, `e C eᵀ`; the one that is found never loses more than the one
    /// without feedback, and clearly less in all.
    #[test]
    fn the_scale_that_loses_least_with_feedback_is_found() {
        let feedback = feedback();
        let within = Some(Within {
            feedback: &feedback,
            start: 0,
        });
        for bits in 2..=4 {
            let levels = Levels::new(bits).unwrap();
            let (mut alone, mut fed) = (0.0, 0.0);
            for seed in 0..40 {
                let row: Vec<f32> = numbers(seed, BAND).iter().map(|x| x * 2500.0).collect();
                let group = Group::of(1.0, &row, &row);
                let lost = |scale: u8| {
                    let (codes, lost) = group.code(&levels, scale, within, None).unwrap();
                    let errors: Vec<f64> = row
                        .iter()
                        .zip(codes)
                        .map(|(w, code)| f64::from(*w) - f64::from(scale) * f64::from(code.value))
                        .collect();
                    let exact: f64 = (0..BAND * BAND)
                        .map(|at| {
                            let entry = f64::from(feedback.moment[at]);
                            errors[at / BAND] * entry * errors[at % BAND]
                        })
                        .sum();
                    assert!(
                        (exact / f64::from(lost) - 1.0).abs() < 1e-2,
                        "{exact} {lost}"
                    );
                    exact
                };
                let (best, codes) = group.best(&levels, within);
                assert_eq!(codes, group.code(&levels, best, within, None).unwrap().0);
                let found = lost(best);
                let plain = levels.scale(group.targets(), Some(feedback.importance()));
                assert!(found <= lost(plain) * 1.001);
                (alone, fed) = (alone + lost(plain), fed + found);
            }
            assert!(fed < 0.9 * alone, "{bits} bits: {fed} of {alone}");
        }
    }

    #[test]
    fn a_group_of_zeros_has_no_scale() {
        let feedback = feedback();
        let within = Some(Within {
            feedback: &feedback,
            start: 0,
        });
        let levels = Levels::new(2).unwrap();
        let zeros = [0.0; BAND];
        for group in [
            Group::of(1.0, &zeros, &zeros),
            Group::of(0.0, &zeros, &[1.0; BAND]),
        ] {
            let (scale, codes) = group.best(&levels, within);
            assert_eq!(scale, 0);
            assert!(codes.iter().all(|code| code.code == 0));
        }
    }
}

//! Fits that differ from one in a single run.

use half::f16;

use super::format::{Format, Levels};
use super::{BlockFit, MAX_RUNS, lanes};

/// Steps that are tried to either side.
const STEPS: i16 = 4;

/// How far they are apart, in parts of the step.
const APART: f32 = 0.05;

/// Neighbours among the integers of a minimum.
const NEXT: [f32; 2] = [-1.0, 1.0];

impl Format {
    /// The code, or what would be one, half way between the first and the last where all are offset; else zero.
    fn middle(&self) -> f32 {
        match self.levels {
            Levels::Whole(low, high) if low == 0.0 => 0.5 * high,
            _ => 0.0,
        }
    }
}

impl BlockFit {
    /// Fits with other steps for a run, from four fifths of this one's to six fifths, as far as they can be stored. Where
    /// there are offsets the run's middle stays about where it is.
    pub fn with_other_steps(&self, run: usize) -> impl Iterator<Item = BlockFit> + '_ {
        let run = run % MAX_RUNS;
        let distances = (-STEPS..=STEPS).map(f32::from);
        let fits = distances.filter_map(move |distance| match self.format.runs() {
            1 => self.with_d(distance),
            _ => self.with_run(run, distance, 0.0),
        });
        fits.filter(move |fit| fit != self)
    }

    /// Fits with the next offsets of a run that can be stored, where they are those of a block's minima.
    pub fn with_other_offsets(&self, run: usize) -> impl Iterator<Item = BlockFit> + '_ {
        let run = run % MAX_RUNS;
        let has_integers = self.format.minima.1 > 1.0;
        let fits = NEXT.into_iter().filter(move |_| has_integers);
        fits.filter_map(move |by| self.with_run(run, 0.0, by))
    }

    fn with_d(&self, distance: f32) -> Option<BlockFit> {
        let d = f16::from_f32(self.d.to_f32() * (1.0 + APART * distance));
        // An offset is less the minimum: with larger steps the first code begins lower.
        let moved = (d.to_f32() - self.d.to_f32()) * self.format.middle();
        let d_min = f16::from_f32(self.d_min.to_f32() + moved);
        let fits = d.is_finite() && d_min.is_finite();
        fits.then(|| BlockFit::with(self.format, (d, d_min), self.scales, self.minima))
    }

    fn with_run(&self, run: usize, distance: f32, other: f32) -> Option<BlockFit> {
        let format = self.format;
        let before = f32::from(self.scales[run]);
        let apart = f32::max(1.0, (APART * before.abs()).round());
        // Integers that are few are further apart than that.
        let furthest = f32::max(1.0, APART * f32::from(STEPS) * before.abs());
        if (apart * distance).abs() > furthest {
            return None;
        }
        let scale = before + apart * distance;
        let moved = (scale - before) * self.d.to_f32() * format.middle();
        let shifted = match self.d_min.to_f32() {
            0.0 => 0.0,
            d_min => moved / d_min,
        };
        let minimum = (f32::from(self.minima[run]) + shifted).round() + other;
        let within = |integer: f32, (first, last): (f32, f32)| (first..=last).contains(&integer);
        if !within(scale, format.scales) || !within(minimum, format.minima) {
            return None;
        }
        let mut fit = *self;
        fit.scales[run] = scale as i8;
        fit.minima[run] = minimum as u8;
        let step = self.d.to_f32() * scale;
        fit.runs[run].step = step;
        fit.runs[run].shift = -(self.d_min.to_f32() * minimum);
        fit.runs[run].inverse = lanes::inverse(step);
        Some(fit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{decode, fit::MAX_LEN};

    /// All are stored as they say, no other run is touched, and the step and its neighbours are what they should be.
    #[test]
    fn fits_nearby_differ_in_a_run_alone_and_decode_to_what_they_say() {
        let values: Vec<f32> = (0..MAX_LEN)
            .map(|i| ((i * 37 % 101) as f32 - 47.0) / 9.0)
            .collect();
        for &dtype in BlockFit::TYPES {
            let len = dtype.block_len();
            let fit = BlockFit::search(dtype, &values[..len], None).unwrap();
            let run_len = BlockFit::run_len(dtype).unwrap();
            for run in 0..len / run_len {
                let here = run * run_len..(run + 1) * run_len;
                let mut count = 0;
                for near in fit.with_other_steps(run).chain(fit.with_other_offsets(run)) {
                    assert_ne!(near, fit);
                    let mut codes = vec![0; len];
                    near.round(&values[..len], &mut codes).unwrap();
                    let mut bytes = vec![0; dtype.block_bytes()];
                    near.pack(&codes, &mut bytes).unwrap();
                    let mut decoded = vec![0.0; len];
                    decode(dtype, &bytes, &mut decoded).unwrap();
                    for (place, (&code, decoded)) in codes.iter().zip(decoded).enumerate() {
                        assert_eq!(near.value(place, code), decoded, "{dtype}");
                        if !here.contains(&place) {
                            assert_eq!(fit.value(place, code), decoded, "{dtype}");
                        }
                    }
                    let place = here.start;
                    let parts = near.run(place).step / fit.run(place).step;
                    let apart = (parts - 1.0).abs() * f32::from(fit.scales[run]).abs();
                    assert!(
                        (0.75..1.25).contains(&parts) || apart < 1.01,
                        "{dtype}: {parts}"
                    );
                    // The middle of a run's codes moves by half a minimum's step and one more at most.
                    let middle = |of: &BlockFit| {
                        of.run(place).step * of.format.middle() + of.run(place).shift
                    };
                    let moved = (middle(&near) - middle(&fit)).abs();
                    let least = 1.51 * near.d_min.to_f32().abs() + 1e-3;
                    assert!(moved <= least, "{dtype}: {moved} {least}");
                    count += 1;
                }
                assert!((2..=10).contains(&count), "{dtype}: {count}");
            }
        }
    }
}

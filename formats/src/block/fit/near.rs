use half::f16;

use super::format::{Format, LevelSet};
use super::{BlockFit, MAX_RUNS, Run, RunIntegers, SuperScales};

/// Kind of difference between nearby fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearbyKind {
    /// Different steps; the middle of the run's range stays about the same.
    Steps,
    /// Different offsets only.
    Offsets,
}

const STEP_SPACING: f32 = 0.05;
const STEPS: i8 = 4;

impl Format {
    /// Returns the position halfway between the first and the last code if all are offset; else
    /// zero.
    fn middle_code(&self) -> f32 {
        match self.levels {
            LevelSet::Integers(0.0, high) => 0.5 * high,
            _ => 0.0,
        }
    }
}

impl BlockFit {
    /// Iterates over fits with other steps for a run (from four fifths to six fifths, and the
    /// neighbouring integers), or with the neighbouring integer offsets.
    pub fn nearby_fits(&self, run: usize, of: NearbyKind) -> impl Iterator<Item = BlockFit> + '_ {
        let (run, whole) = (run % MAX_RUNS, self.format.runs() == 1);
        let (steps, minima) = match of {
            NearbyKind::Steps => (STEPS, 0),
            NearbyKind::Offsets => (0, i8::from(self.format.minima.last > 1.0)),
        };
        let minima = move |distance| (-minima..=minima).map(move |next| (distance, next));
        let others = (-steps..=steps).flat_map(minima);
        // Converted once, because conversions dominate the cost.
        let stored = self.super_scales.to_f32();
        let others = others.filter(|other| *other != (0, 0));
        others.filter_map(move |(distance, next)| {
            if whole {
                self.with_scaled_step(stored, distance.into())
            } else {
                self.with_run_step(run, stored, distance.into(), next.into())
            }
        })
    }

    fn with_scaled_step(&self, stored: SuperScales<f32>, distance: f32) -> Option<BlockFit> {
        let d = f16::from_f32(stored.d * (1.0 + STEP_SPACING * distance));
        // The minimum is subtracted: a larger step lowers the first code.
        let moved = (d.to_f32() - stored.d) * self.format.middle_code();
        let d_min = if moved == 0.0 {
            self.super_scales.d_min
        } else {
            f16::from_f32(stored.d_min + moved)
        };
        let fits = d.is_finite() && d_min.is_finite();
        fits.then(|| {
            let super_scales = SuperScales { d, d_min };
            BlockFit::from_integers(self.format, super_scales, self.scales, self.minima)
        })
    }

    /// Returns the fit whose run has a step larger by `distance` multiples of [`STEP_SPACING`] or
    /// of its integer, and a minimum that is `next` above the one that keeps its middle.
    fn with_run_step(
        &self,
        run: usize,
        stored: SuperScales<f32>,
        distance: f32,
        next: f32,
    ) -> Option<BlockFit> {
        let format = self.format;
        let SuperScales { d, d_min } = stored;
        let before = f32::from(self.scales[run]);
        let apart = f32::max(1.0, (STEP_SPACING * before.abs()).round());
        let furthest = f32::max(1.0, STEP_SPACING * f32::from(STEPS) * before.abs());
        if (apart * distance).abs() > furthest {
            return None;
        }
        let scale = before + apart * distance;
        let moved = (scale - before) * d * format.middle_code();
        let shifted = if d_min == 0.0 { 0.0 } else { moved / d_min };
        let minimum = (f32::from(self.minima[run]) + shifted).round() + next;
        if !format.scales.contains(scale) || !format.minima.contains(minimum) {
            return None;
        }
        let mut fit = *self;
        (fit.scales[run], fit.minima[run]) = (scale as i8, minimum as u8);
        fit.runs[run] = Run::new(stored, RunIntegers { scale, minimum });
        Some(fit)
    }
}

#[cfg(test)]
mod tests;

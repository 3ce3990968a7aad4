//! Scales for fixed codes.

use super::format::IntegerRange;
use super::nested::{Moments, SuperScaleProblem};
use super::{BlockFit, MAX_LEN, MAX_RUNS, RunIntegers};

const ITERATIONS: usize = 2;

/// Distances of the candidates from the nearest scale; each has its own best minimum.
const NEIGHBOURS: [f32; 5] = [-2.0, -1.0, 0.0, 1.0, 2.0];

/// Needs one value and one weight per code.
pub(super) fn refit(fit: &BlockFit, values: &[f32], weights: &[f32], codes: &[u8]) -> BlockFit {
    let mut buffer = [0.0; MAX_LEN];
    let levels = &mut buffer[..codes.len()];
    for (level, &code) in levels.iter_mut().zip(codes) {
        *level = fit.format.level(code);
    }
    let moments = moments(fit, values, weights, levels);
    let error = |fit: &BlockFit| error(fit, values, weights, levels);
    let mut best = *fit;
    let mut least = error(fit);
    let mut keep = |next: Option<BlockFit>, best: &mut BlockFit| {
        let Some(next) = next else { return false };
        let error = error(&next);
        let better = error < least;
        if better {
            (*best, least) = (next, error);
        }
        better
    };
    for _ in 0..ITERATIONS {
        let integers = keep(refit_integers(&best, &moments), &mut best);
        let supers = keep(refit_super_scales(&best, &moments), &mut best);
        if !(integers || supers) {
            break;
        }
    }
    best
}

fn moments(fit: &BlockFit, x: &[f32], w: &[f32], q: &[f32]) -> [Moments; MAX_RUNS] {
    match fit.format.run_len() {
        16 => compute_moments::<16>(x, w, q),
        _ => compute_moments::<32>(x, w, q),
    }
}

fn compute_moments<const N: usize>(x: &[f32], w: &[f32], q: &[f32]) -> [Moments; MAX_RUNS] {
    let mut moments = [Moments::default(); MAX_RUNS];
    let runs = x.as_chunks::<N>().0.iter().zip(w.as_chunks::<N>().0);
    for ((moments, (x, w)), q) in moments.iter_mut().zip(runs).zip(q.as_chunks::<N>().0) {
        *moments = Moments::compute(x, w, q);
    }
    moments
}

/// Returns the weighted squared error, in f64 so that comparisons are reliable.
fn error(fit: &BlockFit, values: &[f32], weights: &[f32], levels: &[f32]) -> f64 {
    let len = fit.format.run_len();
    let numbers = values.chunks(len).zip(weights.chunks(len));
    let mut sum = 0.0;
    for ((run, (values, weights)), levels) in fit.runs.iter().zip(numbers).zip(levels.chunks(len)) {
        for ((value, weight), level) in values.iter().zip(weights).zip(levels) {
            let error = f64::from(run.step * level + run.shift) - f64::from(*value);
            sum += f64::from(*weight) * error * error;
        }
    }
    sum
}

/// Chooses the best integers of every run for fixed scales of the scales; `None` for types without
/// integers.
fn refit_integers(fit: &BlockFit, moments: &[Moments; MAX_RUNS]) -> Option<BlockFit> {
    let format = fit.format;
    let runs = format.runs();
    if runs == 1 {
        return None;
    }
    let stored = fit.super_scales;
    let (d, d_min) = (stored.d.to_f64(), stored.d_min.to_f64());
    let (mut scales, mut minima) = (fit.scales, fit.minima);
    for (run, of) in moments.iter().enumerate().take(runs) {
        let of_run = RunError {
            d,
            d_min,
            moments: of,
        };
        let old = RunIntegers {
            scale: fit.scales[run].into(),
            minimum: fit.minima[run].into(),
        };
        let mut best = (of_run.error(old), old);
        for scale in of_run.scales(format.scales, format.has_minima()) {
            let minimum = of_run.minimum(scale, format.minima, old.minimum);
            let tried = RunIntegers { scale, minimum };
            let error = of_run.error(tried);
            if error < best.0 {
                best = (error, tried);
            }
        }
        scales[run] = best.1.scale as i8;
        minima[run] = best.1.minimum as u8;
    }
    Some(BlockFit::from_integers(format, stored, scales, minima))
}

fn refit_super_scales(fit: &BlockFit, moments: &[Moments; MAX_RUNS]) -> Option<BlockFit> {
    let mut sums = SuperScaleProblem::default();
    for ((of, scale), minimum) in moments.iter().zip(fit.scales).zip(fit.minima) {
        sums.add(of, f32::from(scale), f32::from(minimum));
    }
    let super_scales = sums.solve(fit.format, fit.super_scales)?;
    Some(BlockFit::from_integers(
        fit.format,
        super_scales,
        fit.scales,
        fit.minima,
    ))
}

struct RunError<'a> {
    d: f64,
    d_min: f64,
    moments: &'a Moments,
}

impl RunError<'_> {
    /// Weighted squared error, relative to all zeros.
    fn error(&self, integers: RunIntegers) -> f64 {
        let of = self.moments;
        let step = self.d * f64::from(integers.scale);
        let offset = self.d_min * f64::from(integers.minimum);
        step * (step * of.qq - 2.0 * (of.qx + offset * of.q))
            + offset * (offset * of.w + 2.0 * of.x)
    }

    fn scales(&self, range: IntegerRange, with_offset: bool) -> impl Iterator<Item = f32> + use<> {
        let of = self.moments;
        let determinant = of.w * of.qq - of.q * of.q;
        let step = if with_offset && determinant > 0.0 {
            (of.w * of.qx - of.q * of.x) / determinant
        } else {
            of.qx / of.qq
        };
        // NaN if no code or no scale has an effect, which rounds to the first integer.
        let nearest = range.nearest((step / self.d) as f32);
        let tried = NEIGHBOURS.map(|distance| nearest + distance);
        tried
            .into_iter()
            .filter(move |&tried| range.contains(tried))
    }

    fn minimum(&self, scale: f32, range: IntegerRange, old: f32) -> f32 {
        if self.d_min == 0.0 {
            return old;
        }
        let offset = (self.d * f64::from(scale) * self.moments.q - self.moments.x) / self.moments.w;
        range.nearest((offset / self.d_min) as f32)
    }
}

//! Step and offset of a run: as for a step alone (`step.rs`), with two unknowns.

use super::lanes::{self, Lanes, NEGLIGIBLE};

const ITERATIONS: usize = 2;

/// Distances, in codes, by which the minimum or maximum lies outside of the codes.
const OVERHANGS: [f32; 4] = [-0.75, -0.25, 0.25, 0.75];

/// Codes nearest to `y inverse + shift` decode to `step q - offset`.
#[derive(Clone, Copy, PartialEq)]
struct Candidate {
    /// Weighted squared error minus the weighted sum of squares, a constant.
    error: f32,
    step: f32,
    offset: f32,
}

/// Inputs of the search over a run. Numbers are relative to the least one, which avoids
/// cancellation in their sums.
struct RunSearch<'a, const N: usize> {
    y: [f32; N],
    w: &'a [f32; N],
    /// `Σ w` and `Σ w y`.
    weight: f32,
    sum: f32,
    high: f32,
    /// The least offset of `y`.
    min_offset: f32,
    /// Origin of `y`: the offset of `x` is that of `y` less this.
    origin: f32,
    limit: f32,
}

/// Searches the step, not negative, and the offset, which is not negative unless `free`, for codes
/// from 0 to `high`. Both are below `limit` in magnitude, which must exceed the magnitude of every
/// number.
#[inline(always)]
pub(super) fn search<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    high: f32,
    free: bool,
    limit: f32,
) -> (f32, f32) {
    let (least, largest) = lanes::min_max(x);
    let zero = if free { least } else { f32::min(least, 0.0) };
    let y = x.map(|x| x - zero);
    let (mut weight, mut sum) = (Lanes::splat(0.0), Lanes::splat(0.0));
    for (y, w) in Lanes::chunks(&y).iter().zip(Lanes::chunks(w)) {
        let w = Lanes::load(w);
        weight = weight + w;
        sum = sum + w * Lanes::load(y);
    }
    let (weight, sum) = (weight.horizontal_sum(), sum.horizontal_sum());
    let range = largest - zero;
    if range < NEGLIGIBLE {
        let offset = -zero - sum / weight;
        return (0.0, if free { offset } else { f32::max(offset, 0.0) });
    }
    let numbers = RunSearch {
        y,
        w,
        weight,
        sum,
        high,
        min_offset: if free { f32::NEG_INFINITY } else { zero },
        origin: zero,
        limit,
    };
    let mut best = Candidate {
        error: f32::INFINITY,
        step: range / high,
        offset: 0.0,
    };
    for low_end in OVERHANGS {
        for high_end in OVERHANGS {
            let inverse = (high + low_end + high_end) / range;
            best = numbers.improve(inverse, -low_end, best);
        }
    }
    for _ in 0..ITERATIONS {
        let inverse = 1.0 / best.step;
        let next = numbers.improve(inverse, best.offset * inverse, best);
        if next == best {
            break;
        }
        best = next;
    }
    (best.step, best.offset - zero)
}

impl<const N: usize> RunSearch<'_, N> {
    /// Returns the fit to the codes nearest to `y inverse + shift`, if better than `best`.
    #[inline(always)]
    fn improve(&self, inverse: f32, shift: f32, best: Candidate) -> Candidate {
        let (factor, term) = (Lanes::splat(inverse), Lanes::splat(shift));
        let [mut q, mut qq, mut yq] = [Lanes::splat(0.0); 3];
        for (y, w) in Lanes::chunks(&self.y).iter().zip(Lanes::chunks(self.w)) {
            let y = Lanes::load(y);
            let code = (y * factor + term).round(0.0, self.high);
            let weighted = Lanes::load(w) * code;
            q = q + weighted;
            qq = qq + weighted * code;
            yq = yq + weighted * y;
        }
        let [q, qq, yq] = [q, qq, yq].map(Lanes::horizontal_sum);
        let (n, sum) = (self.weight, self.sum);
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            return best;
        }
        let mut step = (n * yq - sum * q) / determinant;
        let mut offset = (q * yq - qq * sum) / determinant;
        if offset < self.min_offset {
            (step, offset) = ((yq + self.min_offset * q) / qq, self.min_offset);
        }
        let error =
            step * (step * qq - 2.0 * (yq + offset * q)) + offset * (n * offset + 2.0 * sum);
        let fits = step < self.limit && (offset - self.origin).abs() < self.limit;
        if error < best.error && step > 0.0 && fits {
            Candidate {
                error,
                step,
                offset,
            }
        } else {
            best
        }
    }
}

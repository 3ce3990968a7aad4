//! Step and offset of a run.
//!
//! As for a step alone (`step.rs`), with two unknowns: the starts place the minimum and maximum at
//! different positions among the codes.

use super::lanes::{self, Lanes, NEGLIGIBLE};

const TURNS: usize = 2;

/// Distances, in codes, by which minimum or maximum lie outside of the codes.
const ENDS: [f32; 4] = [-0.75, -0.25, 0.25, 0.75];

/// A candidate: codes nearest to `y inverse + shift` decode to `step q - offset`.
#[derive(Clone, Copy, PartialEq)]
struct Tried {
    /// Without the weighted sum of squares, a constant.
    error: f32,
    step: f32,
    offset: f32,
}

/// Inputs of the search over a run. Numbers are relative to the least one, which avoids
/// cancellation in their sums.
struct Numbers<'a, const N: usize> {
    y: [f32; N],
    w: &'a [f32; N],
    /// `Σ w` and `Σ w y`.
    weight: f32,
    sum: f32,
    high: f32,
    /// The least offset of `y`.
    floor: f32,
    /// Origin of `y`: the offset of `x` is that of `y` less this.
    zero: f32,
    limit: f32,
}

/// Searches the step, not negative, and the offset for codes from 0 to `high`. The offset has
/// either sign if `free`, else it is not negative. Both are below `limit` in magnitude, which must
/// exceed the magnitude of every number.
#[inline(always)]
pub(super) fn search<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    high: f32,
    free: bool,
    limit: f32,
) -> (f32, f32) {
    let (least, largest) = lanes::ends(x);
    let zero = if free { least } else { f32::min(least, 0.0) };
    let y = x.map(|x| x - zero);
    let (mut weight, mut sum) = (Lanes::all(0.0), Lanes::all(0.0));
    for (y, w) in Lanes::chunks(&y).iter().zip(Lanes::chunks(w)) {
        let w = Lanes::of(w);
        weight = weight + w;
        sum = sum + w * Lanes::of(y);
    }
    let (weight, sum) = (weight.total(), sum.total());
    let range = largest - zero;
    if range < NEGLIGIBLE {
        let offset = -zero - sum / weight;
        return (0.0, if free { offset } else { f32::max(offset, 0.0) });
    }
    let numbers = Numbers {
        y,
        w,
        weight,
        sum,
        high,
        floor: if free { f32::NEG_INFINITY } else { zero },
        zero,
        limit,
    };
    let mut best = Tried {
        error: f32::INFINITY,
        step: range / high,
        offset: 0.0,
    };
    for low_end in ENDS {
        for high_end in ENDS {
            let inverse = (high + low_end + high_end) / range;
            best = numbers.better(inverse, -low_end, best);
        }
    }
    for _ in 0..TURNS {
        let inverse = 1.0 / best.step;
        let next = numbers.better(inverse, best.offset * inverse, best);
        if next == best {
            break;
        }
        best = next;
    }
    (best.step, best.offset - zero)
}

impl<const N: usize> Numbers<'_, N> {
    /// Returns the fit to the codes nearest to `y inverse + shift`, if better than `best`.
    #[inline(always)]
    fn better(&self, inverse: f32, shift: f32, best: Tried) -> Tried {
        let (factor, term) = (Lanes::all(inverse), Lanes::all(shift));
        let [mut q, mut qq, mut yq] = [Lanes::all(0.0); 3];
        for (y, w) in Lanes::chunks(&self.y).iter().zip(Lanes::chunks(self.w)) {
            let y = Lanes::of(y);
            let code = (y * factor + term).rounded(0.0, self.high);
            let weighted = Lanes::of(w) * code;
            q = q + weighted;
            qq = qq + weighted * code;
            yq = yq + weighted * y;
        }
        let [q, qq, yq] = [q, qq, yq].map(Lanes::total);
        let (n, sum) = (self.weight, self.sum);
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            return best;
        }
        let mut step = (n * yq - sum * q) / determinant;
        let mut offset = (q * yq - qq * sum) / determinant;
        if offset < self.floor {
            (step, offset) = ((yq + self.floor * q) / qq, self.floor);
        }
        let error =
            step * (step * qq - 2.0 * (yq + offset * q)) + offset * (n * offset + 2.0 * sum);
        let fits = step < self.limit && (offset - self.zero).abs() < self.limit;
        if error < best.error && step > 0.0 && fits {
            Tried {
                error,
                step,
                offset,
            }
        } else {
            best
        }
    }
}

//! The search behind the encoders: scales that leave the least squared error.
//!
//! A block holds integer codes `q` and decodes to `step q`, or to `step q - offset`. For given
//! codes the best step and offset are a linear least-squares problem with a closed form; for a
//! given step and offset the best codes are the nearest ones. Doing both in turn never makes the
//! error larger (Lloyd's method, "Least squares quantization in PCM", 1982, with levels at equal
//! distances), but ends where it began to look. So several starts are tried, which differ in the
//! places that the extreme numbers take among the codes: clipping them, or leaving the last code
//! unused, often costs less than it saves in all others. The start with the least error after one
//! fit is carried on.
//!
//! Sums are float32 in a fixed order: the same bits on every machine.

/// Partial sums, so that a loop over numbers is one of vectors.
pub(super) const LANES: usize = 4;

/// Turns of fitting and rounding after the best start.
const TURNS: usize = 2;

/// Numbers that are all below this decode to zero whatever their step is, because the least step
/// of every format is the least f16, 2^-24; squares of larger ones are ordinary numbers.
const NEGLIGIBLE: f32 = 1.0 / (1_u64 << 40) as f32;

/// The integer from `low` to `high` that is nearest to `value`, ties to even. The magnitudes of
/// `low` and `high` are small.
#[inline(always)]
pub(super) fn nearest(value: f32, low: f32, high: f32) -> f32 {
    // 1.5 · 2^23: sums with it have no digits behind the point.
    const ROUND: f32 = 12_582_912.0;
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    (value + ROUND) - ROUND
}

#[inline(always)]
pub(super) fn total(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d] = lanes;
    (a + c) + (b + d)
}

/// The step that suits codes from `-half` to `half - 1`; it may be negative. It is below `limit` in
/// magnitude, and `limit` must be above the largest magnitude divided by `half`.
///
/// `starts` are distances, in codes, from the last code (of either end) to the place of the
/// extreme number.
pub(super) fn step<const N: usize>(x: &[f32; N], half: f32, starts: &[f32], limit: f32) -> f32 {
    let farther = |a: f32, b: &f32| if b.abs() > a.abs() { *b } else { a };
    let extreme = x.iter().fold(0.0, farther);
    if extreme.abs() < NEGLIGIBLE {
        return 0.0;
    }
    // Gain and step: a step of least squares takes (Σ x q)² / Σ q² from the sum of squares.
    let better = |inverse: f32, best: (f32, f32)| {
        let (xq, qq) = step_moments(x, inverse, half);
        if xq * xq > best.0 * qq && xq.abs() < limit * qq {
            (xq * xq / qq, xq / qq)
        } else {
            best
        }
    };
    let mut best = (0.0, -extreme / half);
    for &start in starts {
        best = better(-(half + start) / extreme, best);
        best = better((half - 1.0 + start) / extreme, best);
    }
    for _ in 0..TURNS {
        let next = better(1.0 / best.1, best);
        if next == best {
            break;
        }
        best = next;
    }
    best.1
}

/// `Σ x q` and `Σ q²` of the codes that suit a step of `1 / inverse`.
#[inline(always)]
fn step_moments<const N: usize>(x: &[f32; N], inverse: f32, half: f32) -> (f32, f32) {
    let q = x.map(|x| nearest(x * inverse, -half, half - 1.0));
    (product(x, &q), product(&q, &q))
}

/// Distances, in codes, by which the least or largest number lies outside of the codes.
const ENDS: [f32; 4] = [-0.75, -0.25, 0.25, 0.75];

/// The step, not negative, and the offset from 0 to `limit` that suit codes from 0 to `high`.
/// `limit` must be above the magnitude of the least number.
pub(super) fn step_and_offset<const N: usize>(x: &[f32; N], high: f32, limit: f32) -> (f32, f32) {
    let (mut least, mut largest) = ([0.0_f32; LANES], [f32::MIN; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            least[i] = if x[i] < least[i] { x[i] } else { least[i] };
            largest[i] = if x[i] > largest[i] { x[i] } else { largest[i] };
        }
    }
    let least = least.into_iter().fold(0.0, f32::min);
    let range = largest.into_iter().fold(f32::MIN, f32::max) - least;
    // Distances from the least number: nothing cancels in their sums.
    let y = x.map(|x| x - least);
    let n = N as f32;
    let sum = sum(&y);
    if range < NEGLIGIBLE {
        return (0.0, f32::max(-least - sum / n, 0.0));
    }

    // The fit of the codes nearest to `y inverse + shift`: its error less the sum of squares, its
    // step, and its offset for `y`, which is that for `x` plus `least`.
    let better = |inverse: f32, shift: f32, best: (f32, f32, f32)| {
        let [q, qq, yq] = moments(&y, inverse, shift, high);
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            return best;
        }
        let mut step = (n * yq - sum * q) / determinant;
        let mut offset = (q * yq - qq * sum) / determinant;
        if offset < least {
            (step, offset) = ((yq + least * q) / qq, least);
        }
        let error =
            step * (step * qq - 2.0 * (yq + offset * q)) + offset * (n * offset + 2.0 * sum);
        if error < best.0 && step > 0.0 && offset - least < limit {
            (error, step, offset)
        } else {
            best
        }
    };
    let mut best = (f32::INFINITY, range / high, 0.0);
    for low_end in ENDS {
        for high_end in ENDS {
            best = better((high + low_end + high_end) / range, -low_end, best);
        }
    }
    for _ in 0..TURNS {
        let inverse = 1.0 / best.1;
        let next = better(inverse, best.2 * inverse, best);
        if next == best {
            break;
        }
        best = next;
    }
    (best.1, best.2 - least)
}

/// `Σ x`.
#[inline(always)]
pub(super) fn sum<const N: usize>(x: &[f32; N]) -> f32 {
    let mut sums = [0.0; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            sums[i] += x[i];
        }
    }
    total(sums)
}

/// `Σ x y`.
#[inline(always)]
pub(super) fn product<const N: usize>(x: &[f32; N], y: &[f32; N]) -> f32 {
    let mut sums = [0.0; LANES];
    for (x, y) in x.as_chunks::<LANES>().0.iter().zip(y.as_chunks().0) {
        let y: &[f32; LANES] = y;
        for i in 0..LANES {
            sums[i] += x[i] * y[i];
        }
    }
    total(sums)
}

/// `Σ q`, `Σ q²` and `Σ y q` of the codes nearest to `y inverse + shift`.
#[inline(always)]
fn moments<const N: usize>(y: &[f32; N], inverse: f32, shift: f32, high: f32) -> [f32; 3] {
    let q = y.map(|y| nearest(y * inverse + shift, 0.0, high));
    [sum(&q), product(&q, &q), product(y, &q)]
}

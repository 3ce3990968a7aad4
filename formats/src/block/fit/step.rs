//! Step of a run without an offset.
//!
//! For fixed levels the best step is a linear least-squares problem; for a fixed step the best
//! levels are the nearest ones. Alternating never increases the error (Lloyd, "Least squares
//! quantization in PCM", 1982), but finds a local optimum, so it starts with several positions of
//! the extreme number among the levels.

use super::format::NearestLevel;
use super::lanes::{self, Lanes, NEGLIGIBLE};

const ITERATIONS: usize = 2;

/// Additional starts for unequal importances, under which strong clipping may pay: multiples of the
/// last level.
const CLIPPING: [f32; 8] = [1.15, 1.3, 1.45, 1.65, 1.9, 2.2, 2.6, 3.1];

#[derive(Clone, Copy, PartialEq)]
struct Candidate {
    error: f32,
    step: f32,
}

/// Searches the step of a run, of either sign, below `limit` in magnitude, which must exceed the
/// largest magnitude divided by that of the lowest level.
///
/// `starts` are distances, in level gaps, from the last level of either end to the extreme number.
/// `alike` states that all weights are equal.
#[inline(always)]
pub(super) fn search<const N: usize, L: NearestLevel>(
    x: &[f32; N],
    w: &[f32; N],
    levels: L,
    starts: &[f32],
    alike: bool,
    limit: f32,
) -> f32 {
    let (least, largest) = lanes::min_max(x);
    let extreme = if -least > largest { least } else { largest };
    if extreme.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let (low, high) = levels.bounds();
    let symmetric = low == -high;
    let mut best = Candidate {
        error: f32::INFINITY,
        step: if symmetric {
            extreme.abs() / high
        } else {
            extreme / low
        },
    };
    let mut try_ends = |[low, high]: [f32; 2]| {
        if symmetric {
            best = improve(x, w, levels, high / extreme.abs(), best, limit);
        } else {
            best = improve(x, w, levels, low / extreme, best, limit);
            best = improve(x, w, levels, high / extreme, best, limit);
        }
    };
    for start in starts {
        let start = start * levels.gap();
        try_ends([low - start, high + start]);
    }
    if !alike {
        for factor in CLIPPING {
            try_ends([low * factor, high * factor]);
        }
    }
    for _ in 0..ITERATIONS {
        let next = improve(x, w, levels, 1.0 / best.step, best, limit);
        if next == best {
            break;
        }
        best = next;
    }
    best.step
}

/// Returns the least-squares step for the levels nearest to the numbers times `inverse`, if better
/// than `best`.
#[inline(always)]
fn improve<const N: usize, L: NearestLevel>(
    x: &[f32; N],
    w: &[f32; N],
    levels: L,
    inverse: f32,
    best: Candidate,
    limit: f32,
) -> Candidate {
    // The residual r is small, and nothing cancels in its sums: the step changes by a part Σ w q r
    // / Σ w q², which takes (Σ w q r)² / Σ w q² from Σ w r².
    let factor = Lanes::splat(inverse);
    let [mut qq, mut qr, mut rr] = [Lanes::splat(0.0); 3];
    for (x, w) in Lanes::chunks(x).iter().zip(Lanes::chunks(w)) {
        let w = Lanes::load(w);
        let scaled = Lanes::load(x) * factor;
        let level = levels.nearest(scaled);
        let (rest, weighted) = (scaled - level, w * level);
        qq = qq + weighted * level;
        qr = qr + weighted * rest;
        rr = rr + w * rest * rest;
    }
    let [qq, qr, rr] = [qq, qr, rr].map(Lanes::horizontal_sum);
    let part = qr / qq;
    let error = (rr - qr * part) / (inverse * inverse);
    let step = (1.0 + part) / inverse;
    if qq > 0.0 && error < best.error && step.abs() < limit {
        Candidate { error, step }
    } else {
        best
    }
}

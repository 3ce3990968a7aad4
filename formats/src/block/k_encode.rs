//! Encoders of the formats with two levels of scales: q4_k, q5_k and q6_k.
//!
//! First every run of numbers that has a scale of its own is fitted alone. The largest of the
//! fitted scales makes the scale of the scales. Then the integer scale of every run is chosen
//! with its codes and the true error in view, from the nearest one and its neighbours; at last the
//! scales of the scales are fitted to all codes of the block, and the choice is made again.

use half::f16;

use super::fit::{self, LANES};
use super::float::{F16_LIMIT, f16_scale};

/// Numbers in a block.
const LEN: usize = 256;

/// Turns of fitting the scales of the scales.
const TURNS: usize = 2;

/// Distances from the nearest integer scale of those that are tried.
const NEIGHBOURS: [f32; 3] = [-1.0, 0.0, 1.0];

/// Where the search for a scale of q6_k begins. With 64 codes a wide choice hardly clips, and each
/// start is another chance that the numbers lie near to codes.
const Q6_K_STARTS: [f32; 9] = [-3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0];

/// `1 / x`, or 0: what a step of zero makes of every number.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The codes from `low` to `high` nearest to `(x + offset) / step`, and the squared error of what
/// they decode to.
#[inline(always)]
fn coded<const N: usize>(
    x: &[f32; N],
    step: f32,
    offset: f32,
    (low, high): (f32, f32),
) -> ([f32; N], f32) {
    let inverse = inverse(step);
    let (mut codes, mut errors) = ([0.0; N], [0.0; LANES]);
    let (runs, _) = codes.as_chunks_mut::<LANES>();
    for (x, codes) in x.as_chunks::<LANES>().0.iter().zip(runs) {
        for i in 0..LANES {
            codes[i] = fit::nearest((x[i] + offset) * inverse, low, high);
            let error = step * codes[i] - offset - x[i];
            errors[i] += error * error;
        }
    }
    (codes, fit::total(errors))
}

/// The numbers that share a scale and a minimum in q4_k and q5_k, and how many such runs there
/// are.
const SUB: usize = 32;
const SUBS: usize = LEN / SUB;

/// A block of q4_k or q5_k; integers are kept as floats.
struct Offsets {
    d: f16,
    dmin: f16,
    scales: [f32; SUBS],
    minima: [f32; SUBS],
    codes: [[f32; SUB]; SUBS],
    error: f32,
}

impl Offsets {
    /// The block whose codes go up to `high`.
    fn of(values: &[f32; LEN], high: f32) -> Offsets {
        let (x, _) = values.as_chunks::<SUB>();
        let mut fits = [(0.0, 0.0); SUBS];
        for (fit, x) in fits.iter_mut().zip(x) {
            *fit = fit::step_and_offset(x, high, 63.0 * F16_LIMIT);
        }
        let step = fits.iter().map(|fit| fit.0).fold(0.0, f32::max);
        let offset = fits.iter().map(|fit| fit.1).fold(0.0, f32::max);
        let (d, dmin) = (f16_scale(step / 63.0), f16_scale(offset / 63.0));
        let mut best = Offsets::with(x, &fits, high, d, dmin);
        for _ in 0..TURNS {
            let Some((d, dmin)) = best.fitted(x) else {
                break;
            };
            if (d, dmin) == (best.d, best.dmin) {
                break;
            }
            let next = Offsets::with(x, &fits, high, d, dmin);
            if next.error >= best.error {
                break;
            }
            best = next;
        }
        best
    }

    /// The integer scales and minima, and the codes, that suit given scales of both.
    fn with(x: &[[f32; SUB]], fits: &[(f32, f32); SUBS], high: f32, d: f16, dmin: f16) -> Offsets {
        let mut block = Offsets {
            d,
            dmin,
            scales: [0.0; SUBS],
            minima: [0.0; SUBS],
            codes: [[0.0; SUB]; SUBS],
            error: 0.0,
        };
        let (d, dmin) = (d.to_f32(), dmin.to_f32());
        let (of_step, of_offset) = (inverse(d), inverse(dmin));
        for (sub, (x, &(step, offset))) in x.iter().zip(fits).enumerate() {
            let mut least = f32::INFINITY;
            let nearest = fit::nearest(step * of_step, 0.0, 63.0);
            let minimum = fit::nearest(offset * of_offset, 0.0, 63.0);
            block.minima[sub] = minimum;
            for scale in NEIGHBOURS.map(|distance| nearest + distance) {
                if !(0.0..=63.0).contains(&scale) {
                    continue;
                }
                let (codes, error) = coded(x, d * scale, dmin * minimum, (0.0, high));
                if error < least {
                    least = error;
                    block.scales[sub] = scale;
                    block.codes[sub] = codes;
                }
            }
            block.error += least;
        }
        block
    }

    /// The scales of the scales and of the minima of least squared error for the integers and
    /// codes as they are; `None` where they are not determined or do not fit.
    fn fitted(&self, x: &[[f32; SUB]]) -> Option<(f16, f16)> {
        // The numbers are d a - dmin b with a = scale · code and b = minimum.
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (sub, x) in x.iter().enumerate() {
            let (scale, minimum) = (f64::from(self.scales[sub]), f64::from(self.minima[sub]));
            let codes = &self.codes[sub];
            aa += scale * scale * f64::from(fit::product(codes, codes));
            ab += scale * minimum * f64::from(fit::sum(codes));
            bb += minimum * minimum * SUB as f64;
            ax += scale * f64::from(fit::product(codes, x));
            bx += minimum * f64::from(fit::sum(x));
        }
        let determinant = aa * bb - ab * ab;
        let (d, dmin) = if determinant > 0.0 {
            (
                (bb * ax - ab * bx) / determinant,
                (ab * ax - aa * bx) / determinant,
            )
        } else {
            (ax / aa, -bx / bb)
        };
        // A part that no code or no minimum uses is not a number, and stays as it is.
        let stored = |fitted: f64, old: f16| match fitted {
            fitted if fitted.is_nan() => Some(old),
            fitted if (0.0..f64::from(F16_LIMIT)).contains(&fitted) => {
                Some(f16_scale(fitted as f32))
            }
            _ => None,
        };
        Some((stored(d, self.d)?, stored(dmin, self.dmin)?))
    }

    /// The first 16 bytes of the block; see `scales_and_minima` for their layout.
    fn head(&self) -> [u8; 16] {
        let (scales, minima) = (self.scales.map(|s| s as u8), self.minima.map(|m| m as u8));
        let mut head = [0; 16];
        head[..2].copy_from_slice(&self.d.to_le_bytes());
        head[2..4].copy_from_slice(&self.dmin.to_le_bytes());
        for i in 0..4 {
            head[4 + i] = scales[i] | ((scales[4 + i] >> 4) << 6);
            head[8 + i] = minima[i] | ((minima[4 + i] >> 4) << 6);
            head[12 + i] = (scales[4 + i] & 15) | ((minima[4 + i] & 15) << 4);
        }
        head
    }

    /// The low four bits of all codes.
    fn pairs(&self) -> [u8; LEN / 2] {
        let mut pairs = [0; LEN / 2];
        for (pairs, codes) in pairs
            .as_chunks_mut::<SUB>()
            .0
            .iter_mut()
            .zip(self.codes.as_chunks().0)
        {
            let [low, high]: &[[f32; SUB]; 2] = codes;
            for ((pair, low), high) in pairs.iter_mut().zip(low).zip(high) {
                *pair = (*low as u8 & 15) | ((*high as u8 & 15) << 4);
            }
        }
        pairs
    }
}

/// The numbers are finite and below the limit of the format.
pub(super) fn encode_q4_k(values: &[f32; LEN], block: &mut [u8; 144]) {
    let found = Offsets::of(values, 15.0);
    block[..16].copy_from_slice(&found.head());
    block[16..].copy_from_slice(&found.pairs());
}

/// The numbers are finite and below the limit of the format.
pub(super) fn encode_q5_k(values: &[f32; LEN], block: &mut [u8; 176]) {
    let found = Offsets::of(values, 31.0);
    block[..16].copy_from_slice(&found.head());
    let fifth = &mut block[16..48];
    fifth.fill(0);
    for (sub, codes) in found.codes.iter().enumerate() {
        for (fifth, code) in fifth.iter_mut().zip(codes) {
            *fifth |= (*code as u8 >> 4) << sub;
        }
    }
    block[48..].copy_from_slice(&found.pairs());
}

/// The numbers that share a scale in q6_k, and how many such runs there are.
const STEP: usize = 16;
const STEPS: usize = LEN / STEP;

/// A block of q6_k; integers are kept as floats.
struct Signed {
    d: f16,
    scales: [f32; STEPS],
    codes: [[f32; STEP]; STEPS],
    error: f32,
}

impl Signed {
    fn of(values: &[f32; LEN]) -> Signed {
        let (x, _) = values.as_chunks::<STEP>();
        let mut fits = [0.0; STEPS];
        for (fit, x) in fits.iter_mut().zip(x) {
            *fit = fit::step(x, 32.0, &Q6_K_STARTS, 128.0 * F16_LIMIT);
        }
        let farther = |a: f32, b: &f32| if b.abs() > a.abs() { *b } else { a };
        // The scale of the largest magnitude takes the code of the largest magnitude.
        let d = fits.iter().fold(0.0, farther) / -128.0;
        let mut best = Signed::with(x, &fits, f16_scale(d));
        for _ in 0..TURNS {
            match best.fitted(x) {
                Some(d) if d != best.d => {
                    let next = Signed::with(x, &fits, d);
                    if next.error >= best.error {
                        break;
                    }
                    best = next;
                }
                _ => break,
            }
        }
        best
    }

    /// The integer scales and codes that suit a given scale of the scales.
    fn with(x: &[[f32; STEP]], fits: &[f32; STEPS], d: f16) -> Signed {
        let mut block = Signed {
            d,
            scales: [0.0; STEPS],
            codes: [[0.0; STEP]; STEPS],
            error: 0.0,
        };
        let d = d.to_f32();
        let of_step = inverse(d);
        for (sub, (x, step)) in x.iter().zip(fits).enumerate() {
            let mut least = f32::INFINITY;
            let nearest = fit::nearest(step * of_step, -128.0, 127.0);
            for scale in NEIGHBOURS.map(|distance| nearest + distance) {
                if !(-128.0..=127.0).contains(&scale) {
                    continue;
                }
                let (codes, error) = coded(x, d * scale, 0.0, (-32.0, 31.0));
                if error < least {
                    least = error;
                    block.scales[sub] = scale;
                    block.codes[sub] = codes;
                }
            }
            block.error += least;
        }
        block
    }

    /// The scale of the scales of least squared error for the integers and codes as they are;
    /// `None` where it is not determined or does not fit.
    fn fitted(&self, x: &[[f32; STEP]]) -> Option<f16> {
        let (mut aa, mut ax) = (0.0, 0.0);
        for ((scale, codes), x) in self.scales.iter().zip(&self.codes).zip(x) {
            let scale = f64::from(*scale);
            aa += scale * scale * f64::from(fit::product(codes, codes));
            ax += scale * f64::from(fit::product(codes, x));
        }
        let d = (ax / aa) as f32;
        (d.abs() < F16_LIMIT).then(|| f16_scale(d))
    }
}

/// The numbers are finite and below the limit of the format.
pub(super) fn encode_q6_k(values: &[f32; LEN], block: &mut [u8; 210]) {
    let found = Signed::of(values);
    block.fill(0);
    for (sub, codes) in found.codes.iter().enumerate() {
        // Two runs of 16 make one of the 32 of the layout; see `decode_q6_k`.
        let (half, quarter, part) = (sub / 8, sub / 2 % 4, sub % 2);
        let (low, rest) = block.split_at_mut(LEN / 2);
        let low = &mut low[64 * half + 32 * (quarter % 2) + STEP * part..];
        let high = &mut rest[32 * half + STEP * part..];
        for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
            let code = (code + 32.0) as u8;
            *low |= (code & 15) << (4 * (quarter / 2));
            *high |= (code >> 4) << (2 * quarter);
        }
        block[192 + sub] = found.scales[sub] as i8 as u8;
    }
    block[208..].copy_from_slice(&found.d.to_le_bytes());
}

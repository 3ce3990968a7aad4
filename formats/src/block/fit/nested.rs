//! Fit of a whole block: the integers of its runs, and their scales.
//!
//! Each run is first fitted alone. Then the integers of each run are chosen together with its codes
//! by true error, among the nearest ones and their neighbours. Finally the scales of the scales are
//! fitted to all codes, and the choice is repeated.

use half::f16;

use super::format::{Format, IntegerLevels, IntegerRange, Iq4Levels, LevelSet, NearestLevel};
use super::lanes::{self, Lanes};
use super::{BlockFit, MAX_RUNS, SuperScales, offset, step};
use crate::block::float::{F16_LIMIT, f16_scale};

const ITERATIONS: usize = 2;

const NEIGHBOURS: [f32; 3] = [-1.0, 0.0, 1.0];

pub(super) fn search(format: &'static Format, x: &[f32], w: &[f32]) -> BlockFit {
    match (format.levels, format.run_shift, format.runs()) {
        (LevelSet::Integers(low, high), 5, 1) => {
            search_block::<32, 1, _>(format, x, w, IntegerLevels(low, high))
        }
        (LevelSet::Integers(low, high), 5, _) => {
            search_block::<32, 8, _>(format, x, w, IntegerLevels(low, high))
        }
        (LevelSet::Integers(low, high), _, _) => {
            search_block::<16, 16, _>(format, x, w, IntegerLevels(low, high))
        }
        (LevelSet::Iq4, _, 1) => search_block::<32, 1, _>(format, x, w, Iq4Levels),
        (LevelSet::Iq4, _, _) => search_block::<32, 8, _>(format, x, w, Iq4Levels),
    }
}

struct Block<'a, const N: usize, const R: usize, L> {
    format: &'static Format,
    x: &'a [[f32; N]],
    w: &'a [[f32; N]],
    levels: L,
    run_fits: [(f32, f32); R],
}

/// Integers (as floats) and levels chosen for given scales of the scales.
struct BlockCandidate<const N: usize, const R: usize> {
    super_scales: SuperScales<f16>,
    scales: [f32; R],
    minima: [f32; R],
    levels: [[f32; N]; R],
    error: f32,
}

#[inline(always)]
fn search_block<const N: usize, const R: usize, L: NearestLevel>(
    format: &'static Format,
    x: &[f32],
    w: &[f32],
    levels: L,
) -> BlockFit {
    let mut block = Block::<N, R, L> {
        format,
        x: x.as_chunks().0,
        w: w.as_chunks().0,
        levels,
        run_fits: [(0.0, 0.0); R],
    };
    let alike = w.iter().all(|&other| other == w[0]);
    let limit = F16_LIMIT * f32::max(format.scales.last, -format.scales.first);
    for ((alone, x), w) in block.run_fits.iter_mut().zip(block.x).zip(block.w) {
        *alone = if format.has_minima() {
            offset::search(
                x,
                w,
                levels.bounds().1,
                format.minima == IntegerRange::ONE,
                limit,
            )
        } else {
            (step::search(x, w, levels, format.starts, alike, limit), 0.0)
        };
    }
    block.best_candidate().fit(format)
}

impl Format {
    pub(super) fn has_minima(&self) -> bool {
        self.minima.last > 0.0
    }

    /// `None` if out of range, or negative where that is not allowed.
    pub(super) fn round_super_scale(&self, fitted: f64, minimum: bool) -> Option<f16> {
        let signed = if minimum {
            self.minima == IntegerRange::ONE
        } else {
            !self.has_minima()
        };
        let fits = fitted.abs() < f64::from(F16_LIMIT) && (signed || fitted >= 0.0);
        fits.then(|| {
            if minimum {
                self.round_minimum(fitted as f32)
            } else {
                f16_scale(fitted as f32)
            }
        })
    }

    /// Rounds `d_min` up if it scales integer minima, which it would clip if too small.
    fn round_minimum(&self, d_min: f32) -> f16 {
        if self.minima == IntegerRange::ONE {
            f16::from_f32(d_min)
        } else {
            f16_scale(d_min)
        }
    }
}

impl<const N: usize, const R: usize, L: NearestLevel> Block<'_, N, R, L> {
    fn best_candidate(&self) -> BlockCandidate<N, R> {
        let mut best = self.choose_integers(self.initial_scales());
        for _ in 0..ITERATIONS {
            let Some(super_scales) = best.fit_super_scales(self) else {
                break;
            };
            if super_scales == best.super_scales {
                break;
            }
            let next = self.choose_integers(super_scales);
            if next.error >= best.error {
                break;
            }
            best = next;
        }
        best
    }

    /// Returns the scales of the scales that map the largest step and offset to the largest
    /// integers.
    fn initial_scales(&self) -> SuperScales<f16> {
        let farther = |a: f32, b: f32| if b.abs() > a.abs() { b } else { a };
        let step = self.run_fits.iter().map(|alone| alone.0).fold(0.0, farther);
        let offset = self.run_fits.iter().map(|alone| alone.1).fold(0.0, farther);
        let IntegerRange { first, last } = self.format.scales;
        let largest = if first < 0.0 { first } else { last };
        let d_min = offset / f32::max(self.format.minima.last, 1.0);
        SuperScales {
            d: f16_scale(step / largest),
            d_min: self.format.round_minimum(d_min),
        }
    }

    fn choose_integers(&self, super_scales: SuperScales<f16>) -> BlockCandidate<N, R> {
        let mut chosen = BlockCandidate {
            super_scales,
            scales: [0.0; R],
            minima: [0.0; R],
            levels: [[0.0; N]; R],
            error: 0.0,
        };
        let SuperScales { d, d_min } = super_scales.to_f32();
        let (of_step, of_offset) = (
            lanes::reciprocal_or_zero(d),
            lanes::reciprocal_or_zero(d_min),
        );
        let middle = 0.5 * self.levels.bounds().1;
        for run in 0..R {
            let (step, offset) = self.run_fits[run];
            let mut least = f32::INFINITY;
            for scale in neighbours(step * of_step, self.format.scales) {
                let moved = offset + (d * scale - step) * middle;
                for minimum in neighbours(moved * of_offset, self.format.minima) {
                    let (levels, error) = self.encode_run(run, d * scale, d_min * minimum);
                    if error < least {
                        least = error;
                        chosen.scales[run] = scale;
                        chosen.minima[run] = minimum;
                        chosen.levels[run] = levels;
                    }
                }
            }
            chosen.error += least;
        }
        chosen
    }

    #[inline(always)]
    fn encode_run(&self, run: usize, step: f32, offset: f32) -> ([f32; N], f32) {
        let inverse = lanes::reciprocal_or_zero(step);
        let (step, offset) = (Lanes::splat(step), Lanes::splat(offset));
        let inverse = Lanes::splat(inverse);
        let (mut levels, mut errors) = ([0.0; N], Lanes::splat(0.0));
        let numbers = Lanes::chunks(&self.x[run])
            .iter()
            .zip(Lanes::chunks(&self.w[run]));
        for ((x, w), levels) in numbers.zip(levels.as_chunks_mut().0) {
            let x = Lanes::load(x);
            let level = self.levels.nearest((x + offset) * inverse);
            let error = step * level - offset - x;
            errors = errors + Lanes::load(w) * error * error;
            *levels = level.to_array();
        }
        (levels, errors.horizontal_sum())
    }
}

fn neighbours(value: f32, range: IntegerRange) -> impl Iterator<Item = f32> {
    let nearest = range.nearest(value);
    let tried = NEIGHBOURS.map(|distance| nearest + distance);
    tried
        .into_iter()
        .filter(move |&tried| range.contains(tried))
}

impl<const N: usize, const R: usize> BlockCandidate<N, R> {
    /// Fits the scales of scales and minima to fixed integers and levels by least squares; `None`
    /// if they cannot be stored.
    fn fit_super_scales<L>(&self, block: &Block<'_, N, R, L>) -> Option<SuperScales<f16>> {
        let mut sums = SuperScaleProblem::default();
        for run in 0..R {
            let (x, w) = (&block.x[run], &block.w[run]);
            let of_run = Moments::compute(x, w, &self.levels[run]);
            sums.add(&of_run, self.scales[run], self.minima[run]);
        }
        sums.solve(block.format, self.super_scales)
    }

    fn fit(&self, format: &'static Format) -> BlockFit {
        let (mut scales, mut minima) = ([0; MAX_RUNS], [0; MAX_RUNS]);
        for run in 0..R {
            scales[run] = self.scales[run] as i8;
            minima[run] = self.minima[run] as u8;
        }
        BlockFit::from_integers(format, self.super_scales, scales, minima)
    }
}

/// Sufficient statistics for the step and offset of a run with numbers x, weights w and levels q:
/// `Σ w q²`, `Σ w q`, `Σ w`, `Σ w q x` and `Σ w x`.
#[derive(Clone, Copy, Default)]
pub(super) struct Moments {
    pub(super) qq: f64,
    pub(super) q: f64,
    pub(super) w: f64,
    pub(super) qx: f64,
    pub(super) x: f64,
}

impl Moments {
    #[inline(always)]
    pub(super) fn compute<const N: usize>(x: &[f32; N], w: &[f32; N], q: &[f32; N]) -> Moments {
        let mut sums = [Lanes::splat(0.0); 5];
        let numbers = Lanes::chunks(x).iter().zip(Lanes::chunks(w));
        for ((x, w), q) in numbers.zip(Lanes::chunks(q)) {
            let (x, w, q) = (Lanes::load(x), Lanes::load(w), Lanes::load(q));
            let (wq, wx) = (w * q, w * x);
            for (sum, term) in sums.iter_mut().zip([wq * q, wq, w, wq * x, wx]) {
                *sum = *sum + term;
            }
        }
        let [qq, q, w, qx, x] = sums.map(|sum| f64::from(sum.horizontal_sum()));
        Moments { qq, q, w, qx, x }
    }
}

/// Least-squares problem of the scales of the scales: numbers are `d a - d_min b` with `a = scale ·
/// level` and `b = minimum`.
#[derive(Default)]
pub(super) struct SuperScaleProblem {
    aa: f64,
    ab: f64,
    bb: f64,
    ax: f64,
    bx: f64,
}

impl SuperScaleProblem {
    pub(super) fn add(&mut self, of: &Moments, scale: f32, minimum: f32) {
        let (scale, minimum) = (f64::from(scale), f64::from(minimum));
        self.aa += scale * scale * of.qq;
        self.ab += scale * minimum * of.q;
        self.bb += minimum * minimum * of.w;
        self.ax += scale * of.qx;
        self.bx += minimum * of.x;
    }

    /// Returns the solution rounded to f16; an undetermined unknown stays as it is. `None` if it
    /// cannot be stored.
    pub(super) fn solve(
        &self,
        format: &Format,
        stored: SuperScales<f16>,
    ) -> Option<SuperScales<f16>> {
        let SuperScaleProblem { aa, ab, bb, ax, bx } = *self;
        let determinant = aa * bb - ab * ab;
        let d_min = if determinant > 0.0 {
            format.round_super_scale((ab * ax - aa * bx) / determinant, true)?
        } else if bb > 0.0 && aa == 0.0 {
            format.round_super_scale(-bx / bb, true)?
        } else {
            stored.d_min
        };
        // Optimal `d` for the rounded `d_min`.
        let d = if aa > 0.0 {
            format.round_super_scale((ax + d_min.to_f64() * ab) / aa, false)?
        } else {
            stored.d
        };
        Some(SuperScales { d, d_min })
    }
}

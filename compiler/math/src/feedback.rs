//! Codes with feedback: a weight is rounded column by column, and what rounding a column loses of the
//! outputs is put back by the columns behind it.
//!
//! With `E = W − Ŵ` and the second moment `C` of the inputs, `E‖(W − Ŵ) x‖² = tr(E C Eᵀ)`. For
//! `C = N D Nᵀ` with `N` upper triangular, ones on its diagonal, and `D` diagonal,
//!
//! ```text
//! tr(E C Eᵀ) = Σ_k D_k ‖(E N)_k‖²,      (E N)_k = E_k + Σ_{j<k} E_j N_jk
//! ```
//!
//! so that the best that column `k` can do, given those before it, is the code nearest to
//! `W_k + Σ_{j<k} E_j N_jk` ("QuIP", Chee et al. 2023, equation 2, LDLQ; the same as GPTQ, Frantar et al. 2022).
//! `D_k` is the variance of input `k` that the inputs behind it do not explain, and the importance of a
//! column in the search for scales.
//!
//! Behind that, sweeps of coordinate descent take each code to the one nearest to the minimum of
//! `tr(E C Eᵀ)` over it alone, all others fixed; none makes it larger.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor;
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use std::ops::{Add, Mul, Sub};
use std::sync::OnceLock;

use htc_formats::bands::rotate;
use htc_formats::block::Near;

use super::gauge::SecondMoment;
use super::{FactoriseError, Weight};

/// A code whose scales are fixed block by block of a row, before its codes.
pub trait BlockCode {
    /// What is fixed of a block.
    type Scales: Clone;

    /// Numbers of a block.
    fn block_len(&self) -> usize;

    /// The scales of the least squared error of a block, each number counted by its importance; `None` where
    /// the block has numbers that are beyond what the code can say.
    fn scales(&self, values: &[f32], importance: &[f32]) -> Option<Self::Scales>;

    /// The code nearest to a number at a place of a block, and the number that it stands for.
    fn nearest(&self, scales: &Self::Scales, place: usize, value: f32) -> (u8, f32);

    /// Numbers of a run of a block, which share a step and a shift: what a code stands for is `step · level + shift`, in
    /// float32.
    fn run_len(&self) -> usize;

    /// The level of a code.
    fn level(&self, scales: &Self::Scales, code: u8) -> f32;

    /// The step and the shift of a run.
    fn step_and_shift(&self, scales: &Self::Scales, run: usize) -> (f32, f32);

    /// What the scales of a block might be as well: those of a run differ.
    fn near(
        &self,
        scales: &Self::Scales,
        run: usize,
        of: Near,
    ) -> impl Iterator<Item = Self::Scales>;
}

/// What else scales may be, in the order in which it is looked at: what is behind from the best of what is before.
const NEAR: [Near; 2] = [Near::Steps, Near::Offsets];

/// What the code of some rows is.
#[derive(Clone, Debug, PartialEq)]
pub struct Coded<S> {
    /// Of every block, row by row.
    pub scales: Vec<S>,
    /// `[rows, n]`.
    pub codes: Vec<u8>,
    /// What they stand for, `[rows, n]`.
    pub values: Vec<f32>,
}

/// How errors of columns are made up for by the columns behind them: of one second moment.
#[derive(Clone, Debug)]
pub struct Feedback {
    pub(crate) order: usize,
    /// `N [n, n]`, row-major; read above the diagonal alone.
    pub(crate) factor: Vec<f32>,
    /// `D`, in units of its mean.
    conditional: Vec<f32>,
    /// `C [n, n]`, row-major and whole, in the units of `D`.
    pub(crate) moment: Vec<f32>,
    /// The same of rotated inputs, where it was asked for.
    rotated: OnceLock<Result<Box<Feedback>, FactoriseError>>,
}

/// Columns whose errors are carried to the columns behind them together.
const CHUNK: usize = 64;

/// Makes `H C H` of a symmetric `C [n, n]` that is whole: the second moment of inputs that are
/// [rotated](htc_formats::bands::rotate) band by band.
pub fn rotate_moment<T>(n: usize, moment: &mut [T])
where
    T: Copy + From<f32> + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
{
    for _ in 0..2 {
        moment.chunks_exact_mut(n.max(1)).for_each(rotate);
        // `C H` and then its transpose times `H`.
        for row in 0..n {
            for col in 0..row {
                moment.swap(row * n + col, col * n + row);
            }
        }
    }
}

impl Feedback {
    /// Columns.
    pub fn order(&self) -> usize {
        self.order
    }

    /// Of `C + damping · mean(diag C) · 1`, where `C` is the second moment: what the text hardly excites is not
    /// free, because another text may.
    ///
    /// # Errors
    /// A second moment that is none, or one that is not definite in spite of the damping; a damping that is not a
    /// finite number of at least zero.
    pub fn new(moment: SecondMoment<'_>, damping: f64) -> Result<Self, FactoriseError> {
        moment.check()?;
        if !damping.is_finite() || damping < 0.0 {
            return Err(FactoriseError::Damping { found: damping });
        }
        let n = moment.order;
        let mean = (0..n).map(|i| moment.values[i * n + i]).sum::<f64>() / n as f64;
        // Inputs that are all zero are like inputs that are all alike.
        let unit = if mean > 0.0 { mean } else { 1.0 };
        let added = damping.max(SMALLEST_DAMPING);
        Feedback::of(n, |row, col| {
            let (row, col) = (row.max(col), row.min(col));
            let own = if row == col { added } else { 0.0 };
            moment.values[row * n + col] / unit + own
        })
    }

    /// Of a damped second moment with these entries.
    fn of(n: usize, entry: impl Fn(usize, usize) -> f64) -> Result<Self, FactoriseError> {
        let (factor, conditional) = factored(n, &entry)?;
        let moment = (0..n * n).map(|at| entry(at / n, at % n) as f32).collect();
        Ok(Feedback {
            order: n,
            factor,
            conditional,
            moment,
            rotated: OnceLock::new(),
        })
    }

    /// The feedback of inputs that are [rotated](htc_formats::bands::rotate) band by band, `H C H` with the damping in `C`;
    /// made when it is first asked for.
    ///
    /// # Errors
    /// Where rounding leaves it not definite.
    pub fn rotated(&self) -> Result<&Feedback, FactoriseError> {
        let n = self.order;
        let made = self.rotated.get_or_init(|| {
            let mut moment = self.moment.clone();
            rotate_moment(n, &mut moment);
            // Rounding leaves one half a little different from the other.
            for row in 0..n {
                for col in 0..row {
                    moment[col * n + row] = moment[row * n + col];
                }
            }
            let (factor, conditional) = factored(n, |row, col| moment[row * n + col].into())?;
            Ok(Box::new(Feedback {
                order: n,
                factor,
                conditional,
                moment,
                rotated: OnceLock::new(),
            }))
        });
        made.as_deref().map_err(Clone::clone)
    }

    /// The importance of every column: the variance that the columns behind it do not explain, in units of the
    /// mean of the second moment's diagonal.
    pub fn importance(&self) -> &[f32] {
        &self.conditional
    }

    /// The codes of some rows, on the calling thread. Rows do not depend on each other: the same row has the
    /// same codes among any others as long as their number is the same.
    ///
    /// # Errors
    /// Rows that are not of as many finite numbers as there are inputs, or not of whole blocks.
    pub fn code<C: BlockCode>(
        &self,
        rows: Weight<'_>,
        code: &C,
        sweeps: usize,
    ) -> Result<Coded<C::Scales>, FactoriseError> {
        rows.check(0)?;
        let (n, block) = (self.order, code.block_len());
        if rows.cols != n {
            return Err(FactoriseError::VectorLength {
                expected: n,
                found: rows.cols,
            });
        }
        if block == 0 || !n.is_multiple_of(block) {
            return Err(FactoriseError::Blocks { cols: n, block });
        }
        let run = code.run_len();
        if run == 0
            || !CHUNK.min(block).is_multiple_of(run)
            || !block.is_multiple_of(CHUNK.min(block))
        {
            return Err(FactoriseError::Blocks {
                cols: n,
                block: run,
            });
        }
        let mut coded = self.feed(rows, code)?;
        for _ in 0..sweeps {
            if self.sweep(rows, code, &mut coded) == 0 {
                break;
            }
        }
        Ok(coded)
    }

    /// Column by column, errors carried to those behind.
    fn feed<C: BlockCode>(
        &self,
        rows: Weight<'_>,
        code: &C,
    ) -> Result<Coded<C::Scales>, FactoriseError> {
        let (m, n, block) = (rows.rows, self.order, code.block_len());
        let chunk = CHUNK.min(block);
        let mut targets = rows.values.to_vec();
        let mut errors = vec![0.0f32; m * chunk];
        let mut scales: Vec<Vec<C::Scales>> = vec![Vec::with_capacity(n / block); m];
        let (mut codes, mut values) = (vec![0u8; m * n], vec![0.0f32; m * n]);
        for start in (0..n).step_by(chunk) {
            let width = chunk.min(n - start);
            for row in 0..m {
                let at = row * n;
                if start.is_multiple_of(block) {
                    let whole = start..start + block;
                    let importance = &self.conditional[whole.clone()];
                    let values = &targets[at + whole.start..at + whole.end];
                    let found = code.scales(values, importance);
                    scales[row].push(found.ok_or(FactoriseError::NoScales { row, col: start })?);
                }
                let Some(of_block) = scales[row].last_mut() else {
                    continue;
                };
                let here = at + start..at + start + width;
                let exact = &rows.values[here.clone()];
                let targets = &mut targets[here.clone()];
                for run in (0..width).step_by(code.run_len()) {
                    let column = start + run;
                    let exact = &exact[run..run + code.run_len()];
                    let targets = &mut targets[run..];
                    let group = (exact, &targets[..exact.len()]);
                    if let Some(better) = self.better_scales(code, of_block, column, group) {
                        *of_block = better;
                    }
                    let nearest = |c: usize, target: f32| {
                        let (q, value) = code.nearest(of_block, column % block + c, target);
                        (codes[at + column + c], values[at + column + c]) = (q, value);
                        value
                    };
                    self.feed_run(column, (exact, targets), None, nearest);
                }
                let pairs = exact.iter().zip(&values[here]);
                let errors = errors[row * chunk..].iter_mut().zip(pairs);
                errors.for_each(|(error, (w, value))| *error = w - value);
            }
            let behind = start + width;
            if behind < n {
                let factor = MatRef::from_row_major_slice(&self.factor, n, n);
                let all = MatMut::from_row_major_slice_mut(&mut targets, m, n);
                matmul(
                    all.subcols_mut(behind, n - behind),
                    Accum::Add,
                    MatRef::from_row_major_slice(&errors, m, chunk).subcols(0, width),
                    factor.submatrix(start, behind, width, n - behind),
                    1.0,
                    Par::Seq,
                );
            }
        }
        Ok(Coded {
            scales: scales.into_iter().flatten().collect(),
            codes,
            values,
        })
    }

    /// What some neighbouring columns of a row lose where each is rounded to what is nearest to its target then, and what that leaves
    /// is carried to the targets behind it, of which there may be more: `Σ D_k (target - value)²`. `None` once that comes to
    /// `most`.
    pub(crate) fn feed_run(
        &self,
        start: usize,
        (exact, targets): (&[f32], &mut [f32]),
        most: Option<f32>,
        mut nearest: impl FnMut(usize, f32) -> f32,
    ) -> Option<f32> {
        let (end, mut lost) = (start + targets.len(), 0.0);
        for (c, &exact) in exact.iter().enumerate() {
            let value = nearest(c, targets[c]);
            let column = start + c;
            lost += self.conditional[column] * (targets[c] - value).powi(2);
            if most.is_some_and(|most| lost >= most) {
                return None;
            }
            let factors = &self.factor[column * self.order..][column + 1..end];
            let behind = targets[c + 1..].iter_mut().zip(factors);
            behind.for_each(|(target, factor)| *target += (exact - value) * factor);
        }
        Some(lost)
    }

    /// Other scales with which the columns of a run that begins here lose less, when their codes make up for each other;
    /// `None` where there are none.
    fn better_scales<C: BlockCode>(
        &self,
        code: &C,
        scales: &C::Scales,
        start: usize,
        (exact, targets): (&[f32], &[f32]),
    ) -> Option<C::Scales> {
        let place = start % code.block_len();
        let mut room = [0.0; CHUNK];
        let room = &mut room[..targets.len()];
        let mut lost = |scales: &C::Scales, most| {
            room.copy_from_slice(targets);
            let nearest = |c, target| code.nearest(scales, place + c, target).1;
            self.feed_run(start, (exact, &mut *room), most, nearest)
        };
        let least = lost(scales, None)?;
        let run = place / code.run_len();
        least_near(code, (scales, run), least, |other, most| {
            lost(other, Some(most))
        })
    }

    /// Other scales with which the codes of a run, as they are, lose less; `None` where there are none. `slopes` are half of the
    /// gradient of what is lost of the row, with its sign turned.
    fn fitted_scales<C: BlockCode>(
        &self,
        code: &C,
        scales: &C::Scales,
        (start, codes): (usize, &[u8]),
        slopes: &[f32],
    ) -> Option<C::Scales> {
        let (n, run) = (self.order, start % code.block_len() / code.run_len());
        let levels: Vec<f32> = codes.iter().map(|&q| code.level(scales, q)).collect();
        // What is lost is a form of the two numbers of the run.
        let [mut ll, mut l1, mut one] = [0.0; 3];
        let [mut of_level, mut of_one] = [0.0; 2];
        for (c, level) in levels.iter().enumerate() {
            let of_column = &self.moment[(start + c) * n + start..][..codes.len()];
            let with_levels: f32 = of_column.iter().zip(&levels).map(|(of, l)| of * l).sum();
            let alone: f32 = of_column.iter().sum();
            (ll, l1, one) = (ll + level * with_levels, l1 + with_levels, one + alone);
            (of_level, of_one) = (of_level + slopes[c] * level, of_one + slopes[c]);
        }
        let (step, shift) = code.step_and_shift(scales, run);
        let lost = |other: &C::Scales| {
            let other = code.step_and_shift(other, run);
            let (a, b) = (other.0 - step, other.1 - shift);
            a * a * ll + 2.0 * a * b * l1 + b * b * one - 2.0 * (a * of_level + b * of_one)
        };
        least_near(code, (scales, run), 0.0, |other, most| {
            Some(lost(other)).filter(|&found| found < most)
        })
    }

    /// Takes what a column of a row moved by off the slopes of that row, half of the gradient with its sign turned.
    pub(crate) fn moved(&self, column: usize, by: f32, slopes: &mut [f32]) {
        let of_column = &self.moment[column * self.order..][..self.order];
        let pairs = slopes.iter_mut().zip(of_column);
        pairs.for_each(|(slope, of)| *slope -= by * of);
    }

    /// One sweep of coordinate descent over the scales of runs and the codes; how many of them changed.
    fn sweep<C: BlockCode>(
        &self,
        rows: Weight<'_>,
        code: &C,
        coded: &mut Coded<C::Scales>,
    ) -> usize {
        let (m, n, block) = (rows.rows, self.order, code.block_len());
        let pairs = rows.values.iter().zip(&coded.values);
        let errors: Vec<f32> = pairs.map(|(w, value)| w - value).collect();
        // Half of the gradient.
        let mut slopes = vec![0.0f32; m * n];
        matmul(
            MatMut::from_row_major_slice_mut(&mut slopes, m, n),
            Accum::Replace,
            MatRef::from_row_major_slice(&errors, m, n),
            MatRef::from_row_major_slice(&self.moment, n, n),
            1.0,
            Par::Seq,
        );
        let mut changed = 0;
        for row in 0..m {
            let slopes = &mut slopes[row * n..][..n];
            let scales = &mut coded.scales[row * (n / block)..][..n / block];
            let codes = &mut coded.codes[row * n..][..n];
            let values = &mut coded.values[row * n..][..n];
            for column in 0..n {
                if column.is_multiple_of(code.run_len()) {
                    let run = column..column + code.run_len();
                    let of_block = &mut scales[column / block];
                    let fixed = (column, &codes[run.clone()]);
                    let found = self.fitted_scales(code, of_block, fixed, &slopes[run.clone()]);
                    if let Some(better) = found {
                        *of_block = better;
                        changed += 1;
                        let index = column % block / code.run_len();
                        let (step, shift) = code.step_and_shift(of_block, index);
                        for column in run {
                            let value = step * code.level(of_block, codes[column]) + shift;
                            let before = std::mem::replace(&mut values[column], value);
                            self.moved(column, value - before, slopes);
                        }
                    }
                }
                let step = slopes[column] / self.moment[column * n + column];
                let before = values[column];
                let scales = &scales[column / block];
                let (q, value) = code.nearest(scales, column % block, before + step);
                // Nearer to the minimum, or not at all: of two that are as near the first stays.
                if (value - before - step).abs() >= step.abs() {
                    continue;
                }
                (codes[column], values[column]) = (q, value);
                changed += 1;
                self.moved(column, value - before, slopes);
            }
        }
        changed
    }
}

/// Of what the scales of a run may be as well, what loses least and less than `least`: `lost` says what scales lose where
/// that is less than so much. `None` where there is none.
fn least_near<C: BlockCode>(
    code: &C,
    (scales, run): (&C::Scales, usize),
    mut least: f32,
    mut lost: impl FnMut(&C::Scales, f32) -> Option<f32>,
) -> Option<C::Scales> {
    let mut better = None;
    for of in NEAR {
        let from = better.clone().unwrap_or_else(|| scales.clone());
        for other in code.near(&from, run, of) {
            if let Some(found) = lost(&other, least) {
                (better, least) = (Some(other), found);
            }
        }
    }
    better
}

/// `N [n, n]`, row-major, and `D` of a damped second moment with these entries, of which those below the diagonal are
/// asked for.
fn factored(
    n: usize,
    entry: impl Fn(usize, usize) -> f64,
) -> Result<(Vec<f32>, Vec<f32>), FactoriseError> {
    // From behind: what the last columns leave unexplained of the first comes first in a Cholesky factor.
    let mut reversed = Mat::from_fn(n, n, |i, j| match j <= i {
        true => entry(n - 1 - i, n - 1 - j),
        false => 0.0,
    });
    cholesky(&mut reversed)?;
    let diagonal: Vec<f64> = (0..n).map(|i| reversed[(i, i)]).collect();
    let mut factor = vec![0.0; n * n];
    for (row, to) in factor.chunks_exact_mut(n).enumerate() {
        let i = n - 1 - row;
        for (col, to) in to.iter_mut().enumerate().skip(row + 1) {
            let j = n - 1 - col;
            *to = (reversed[(i, j)] / diagonal[j]) as f32;
        }
    }
    let conditional = diagonal.iter().rev().map(|d| (d * d) as f32).collect();
    Ok((factor, conditional))
}

/// Below it a second moment that lacks rank has no factor in float64.
pub(crate) const SMALLEST_DAMPING: f64 = 1e-8;

/// The Cholesky factor in the place of a symmetric matrix, of which the lower triangle is read.
pub(crate) fn cholesky(matrix: &mut Mat<f64>) -> Result<(), FactoriseError> {
    let n = matrix.nrows();
    let params = Default::default();
    let mut memory = MemBuffer::new(factor::cholesky_in_place_scratch::<f64>(
        n,
        Par::Seq,
        params,
    ));
    factor::cholesky_in_place(
        matrix.as_mut(),
        Default::default(),
        Par::Seq,
        MemStack::new(&mut memory),
        params,
    )
    .map(|_| ())
    .map_err(
        |factor::LltError::NonPositivePivot { index }| FactoriseError::NotDefinite {
            index: n - 1 - index,
        },
    )
}

//! Quantisation with error feedback (GPTQ / LDLQ): later columns compensate for the output error of
//! earlier ones.
//!
//! With `E = W − Ŵ` and the second moment `C = N D Nᵀ` of the inputs, `N` unit upper triangular,
//!
//! `E‖(W − Ŵ) x‖² = tr(E C Eᵀ) = Σ_k D_k ‖(E N)_k‖²`,
//!
//! so the optimum for column `k`, given those before it, is the code nearest to `W_k + Σ_{j<k} E_j
//! N_jk` ("QuIP", Chee et al. 2023, equation 2; the same as GPTQ, Frantar et al. 2022). `D_k`
//! weights the column in the search for scales.
//!
//! Then sweeps of coordinate descent move each code towards the minimum of `tr(E C Eᵀ)`.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor;
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use std::ops::{Add, Mul, Sub};
use std::sync::OnceLock;

use htc_formats::bands::rotate;
use htc_formats::block::NearbyKind;

use super::gauge::SecondMoment;
use super::{FactoriseError, Weight, check_length, product_of_rows};

/// Block-quantised format whose scales are fixed before its codes.
pub trait BlockFormat {
    /// Scales of a block.
    type Scales: Clone;

    /// Returns the number of values in a block.
    fn block_len(&self) -> usize;

    /// Returns the scales of the least weighted squared error of a block; `None` if values exceed
    /// the range of the format.
    fn scales(&self, values: &[f32], importance: &[f32]) -> Option<Self::Scales>;

    /// Returns the nearest code at an index of a block, and its value.
    fn nearest(&self, scales: &Self::Scales, place: usize, value: f32) -> (u8, f32);

    /// Returns the length of a run, in which a code stands for `step · level + shift`.
    fn run_len(&self) -> usize;

    /// Returns the level of a code.
    fn level(&self, scales: &Self::Scales, code: u8) -> f32;

    /// Returns the step and the shift of a run.
    fn step_and_shift(&self, scales: &Self::Scales, run: usize) -> (f32, f32);

    /// Returns neighbouring scales of a block, which differ in one run.
    fn neighbouring_scales(
        &self,
        scales: &Self::Scales,
        run: usize,
        of: NearbyKind,
    ) -> impl Iterator<Item = Self::Scales>;
}

/// Kinds of neighbouring candidates, in search order.
const NEIGHBOUR_KINDS: [NearbyKind; 2] = [NearbyKind::Steps, NearbyKind::Offsets];

/// Quantised rows.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedRows<S> {
    /// Scales of every block, row by row.
    pub scales: Vec<S>,
    /// `[rows, n]`.
    pub codes: Vec<u8>,
    /// Dequantised values, `[rows, n]`.
    pub values: Vec<f32>,
}

/// Error feedback between columns, for one second moment.
#[derive(Clone, Debug)]
pub struct ErrorFeedback {
    pub(crate) order: usize,
    /// `N [n, n]`, row-major; read above the diagonal.
    pub(crate) factor: Vec<f32>,
    conditional: Vec<f32>,
    /// `C [n, n]`, row-major, in the units of `D`.
    pub(crate) moment: Vec<f32>,
    rotated: OnceLock<Result<Box<ErrorFeedback>, FactoriseError>>,
}

/// Columns whose errors are carried together.
const COLUMN_CHUNK: usize = 64;

/// Computes `H C H` in place for a symmetric `C [n, n]`, the second moment of
/// [rotated](htc_formats::bands::rotate) inputs.
pub fn rotate_moment<T>(n: usize, moment: &mut [T])
where
    T: Copy + From<f32> + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
{
    for _ in 0..2 {
        moment.chunks_exact_mut(n.max(1)).for_each(rotate);
        for row in 0..n {
            for col in 0..row {
                moment.swap(row * n + col, col * n + row);
            }
        }
    }
}

impl ErrorFeedback {
    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.order
    }

    /// Factorises `C + damping · mean(diag C) · 1` for the second moment `C`.
    pub fn new(moment: SecondMoment<'_>, damping: f64) -> Result<Self, FactoriseError> {
        moment.check()?;
        let added = check_damping(damping)?;
        let n = moment.order;
        let mean = (0..n).map(|i| moment.values[i * n + i]).sum::<f64>() / n as f64;
        let unit = if mean > 0.0 { mean } else { 1.0 };
        ErrorFeedback::from_entries(n, |row, col| {
            let (row, col) = (row.max(col), row.min(col));
            let own = if row == col { added } else { 0.0 };
            moment.values[row * n + col] / unit + own
        })
    }

    fn from_entries(n: usize, entry: impl Fn(usize, usize) -> f64) -> Result<Self, FactoriseError> {
        let (factor, conditional) = factorise_moment(n, &entry)?;
        let moment = (0..n * n).map(|at| entry(at / n, at % n) as f32).collect();
        Ok(ErrorFeedback {
            order: n,
            factor,
            conditional,
            moment,
            rotated: OnceLock::new(),
        })
    }

    /// Returns the feedback of [rotated](htc_formats::bands::rotate) inputs, computed on first use.
    pub fn rotated(&self) -> Result<&ErrorFeedback, FactoriseError> {
        let n = self.order;
        let feedback = self.rotated.get_or_init(|| {
            let mut moment = self.moment.clone();
            rotate_moment(n, &mut moment);
            for row in 0..n {
                for col in 0..row {
                    moment[col * n + row] = moment[row * n + col];
                }
            }
            ErrorFeedback::from_entries(n, |row, col| moment[row * n + col].into()).map(Box::new)
        });
        feedback.as_deref().map_err(Clone::clone)
    }

    /// Returns the variance of every column unexplained by later ones, in units of the mean of the
    /// diagonal.
    pub fn importance(&self) -> &[f32] {
        &self.conditional
    }

    /// Quantises rows, independently of each other, on the calling thread.
    pub fn quantise<C: BlockFormat>(
        &self,
        rows: Weight<'_>,
        code: &C,
        sweeps: usize,
    ) -> Result<QuantisedRows<C::Scales>, FactoriseError> {
        rows.check(0)?;
        let (n, block) = (self.order, code.block_len());
        check_length(n, rows.cols)?;
        if block == 0 || !n.is_multiple_of(block) {
            return Err(FactoriseError::Blocks { cols: n, block });
        }
        let run = code.run_len();
        if run == 0
            || !COLUMN_CHUNK.min(block).is_multiple_of(run)
            || !block.is_multiple_of(COLUMN_CHUNK.min(block))
        {
            return Err(FactoriseError::Blocks {
                cols: n,
                block: run,
            });
        }
        let mut coded = self.quantise_columns(rows, code)?;
        for _ in 0..sweeps {
            if self.sweep(rows, code, &mut coded) == 0 {
                break;
            }
        }
        Ok(coded)
    }

    fn quantise_columns<C: BlockFormat>(
        &self,
        rows: Weight<'_>,
        code: &C,
    ) -> Result<QuantisedRows<C::Scales>, FactoriseError> {
        let (m, n, block) = (rows.rows, self.order, code.block_len());
        let chunk = COLUMN_CHUNK.min(block);
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
                    scales[row]
                        .push(found.ok_or(FactoriseError::ValuesOutOfRange { row, col: start })?);
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
                    let before = &targets[..exact.len()];
                    let better =
                        self.improve_scales_with_feedback(code, of_block, column, exact, before);
                    if let Some(better) = better {
                        *of_block = better;
                    }
                    let nearest = |c: usize, target: f32| {
                        let (q, value) = code.nearest(of_block, column % block + c, target);
                        (codes[at + column + c], values[at + column + c]) = (q, value);
                        value
                    };
                    self.quantise_run(column, exact, targets, None, nearest);
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
        Ok(QuantisedRows {
            scales: scales.into_iter().flatten().collect(),
            codes,
            values,
        })
    }

    /// Carries each error to the later targets. Returns `Σ D_k (target - value)²`, or `None` once
    /// it reaches `most`.
    pub(crate) fn quantise_run(
        &self,
        start: usize,
        exact: &[f32],
        targets: &mut [f32],
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

    fn improve_scales_with_feedback<C: BlockFormat>(
        &self,
        code: &C,
        scales: &C::Scales,
        start: usize,
        exact: &[f32],
        targets: &[f32],
    ) -> Option<C::Scales> {
        let place = start % code.block_len();
        let mut scratch = [0.0; COLUMN_CHUNK];
        let scratch = &mut scratch[..targets.len()];
        let mut lost = |scales: &C::Scales, most| {
            scratch.copy_from_slice(targets);
            let nearest = |c, target| code.nearest(scales, place + c, target).1;
            self.quantise_run(start, exact, &mut *scratch, most, nearest)
        };
        let least = lost(scales, None)?;
        let run = place / code.run_len();
        best_neighbouring_scales(code, scales, run, least, |other, most| {
            lost(other, Some(most))
        })
    }

    /// `slopes` are half of the negative gradient.
    fn improve_scales_of_codes<C: BlockFormat>(
        &self,
        code: &C,
        scales: &C::Scales,
        start: usize,
        codes: &[u8],
        slopes: &[f32],
    ) -> Option<C::Scales> {
        let (n, run) = (self.order, start % code.block_len() / code.run_len());
        let levels: Vec<f32> = codes.iter().map(|&q| code.level(scales, q)).collect();
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
        best_neighbouring_scales(code, scales, run, 0.0, |other, most| {
            Some(lost(other)).filter(|&found| found < most)
        })
    }

    pub(crate) fn update_slopes(&self, column: usize, by: f32, slopes: &mut [f32]) {
        let of_column = &self.moment[column * self.order..][..self.order];
        let pairs = slopes.iter_mut().zip(of_column);
        pairs.for_each(|(slope, of)| *slope -= by * of);
    }

    /// Returns the number of changes.
    fn sweep<C: BlockFormat>(
        &self,
        rows: Weight<'_>,
        code: &C,
        coded: &mut QuantisedRows<C::Scales>,
    ) -> usize {
        let (m, n, block) = (rows.rows, self.order, code.block_len());
        let pairs = rows.values.iter().zip(&coded.values);
        let errors: Vec<f32> = pairs.map(|(w, value)| w - value).collect();
        let mut slopes = product_of_rows(&errors, &self.moment, n);
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
                    let (fixed, slopes_of_run) = (&codes[run.clone()], &slopes[run.clone()]);
                    let found =
                        self.improve_scales_of_codes(code, of_block, column, fixed, slopes_of_run);
                    if let Some(better) = found {
                        *of_block = better;
                        changed += 1;
                        let index = column % block / code.run_len();
                        let (step, shift) = code.step_and_shift(of_block, index);
                        for column in run {
                            let value = step * code.level(of_block, codes[column]) + shift;
                            let before = std::mem::replace(&mut values[column], value);
                            self.update_slopes(column, value - before, slopes);
                        }
                    }
                }
                let step = slopes[column] / self.moment[column * n + column];
                let before = values[column];
                let scales = &scales[column / block];
                let (q, value) = code.nearest(scales, column % block, before + step);
                if (value - before - step).abs() >= step.abs() {
                    continue;
                }
                (codes[column], values[column]) = (q, value);
                changed += 1;
                self.update_slopes(column, value - before, slopes);
            }
        }
        changed
    }
}

fn best_neighbouring_scales<C: BlockFormat>(
    code: &C,
    scales: &C::Scales,
    run: usize,
    mut least: f32,
    mut lost: impl FnMut(&C::Scales, f32) -> Option<f32>,
) -> Option<C::Scales> {
    let mut better = None;
    for of in NEIGHBOUR_KINDS {
        let from = better.clone().unwrap_or_else(|| scales.clone());
        for other in code.neighbouring_scales(&from, run, of) {
            if let Some(found) = lost(&other, least) {
                (better, least) = (Some(other), found);
            }
        }
    }
    better
}

/// Returns `N [n, n]`, row-major, and `D`; reads `entry` on and below the diagonal.
fn factorise_moment(
    n: usize,
    entry: impl Fn(usize, usize) -> f64,
) -> Result<(Vec<f32>, Vec<f32>), FactoriseError> {
    let reversed = reversed_cholesky(n, entry)?;
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

/// A rank-deficient second moment needs it for a Cholesky factor in float64.
const MIN_DAMPING: f64 = 1e-8;

/// Returns the damping that is applied.
pub(crate) fn check_damping(damping: f64) -> Result<f64, FactoriseError> {
    if !damping.is_finite() || damping < 0.0 {
        return Err(FactoriseError::Damping { found: damping });
    }
    Ok(damping.max(MIN_DAMPING))
}

/// Returns the Cholesky factor of a symmetric matrix in reverse order, so that it explains rows by
/// later rows; reads `entry` on and below the diagonal.
pub(crate) fn reversed_cholesky(
    n: usize,
    entry: impl Fn(usize, usize) -> f64,
) -> Result<Mat<f64>, FactoriseError> {
    let mut matrix = Mat::from_fn(n, n, |i, j| {
        if j <= i {
            entry(n - 1 - i, n - 1 - j)
        } else {
            0.0
        }
    });
    let (par, params) = (Par::Seq, Default::default());
    let scratch = factor::cholesky_in_place_scratch::<f64>(n, par, params);
    let mut memory = MemBuffer::new(scratch);
    let stack = MemStack::new(&mut memory);
    let done = factor::cholesky_in_place(matrix.as_mut(), Default::default(), par, stack, params);
    done.map_err(|factor::LltError::NonPositivePivot { index }| {
        let index = n - 1 - index;
        FactoriseError::NotDefinite { index }
    })?;
    Ok(matrix)
}

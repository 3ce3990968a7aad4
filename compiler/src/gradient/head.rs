//! Output head, forward and backward: last norm, logits and token choice.

use std::ops::Range;

use faer::{Accum, MatMut, MatRef};
use htc_kernels::Pool;
use htc_loader::Model;
use htc_math::vectorised;

use super::attention::capped;
use super::elementwise::{norm_weight_back, rms_norm, rms_norm_back};
use super::number::{Number, TASK_ROWS, product, resized, shifted_exponentials};
use crate::calibrate::PassError;

/// Vocabulary rows decoded at a time.
const PANEL: usize = 4096;

/// Logits in memory at a time, unless a task has more.
const LOGITS: usize = 1 << 26;

/// Source of matrix rows, decoded on demand.
pub(super) trait Rows<T>: Sync {
    /// Decodes to `out [rows, width]`.
    fn rows(&self, rows: Range<usize>, out: &mut [T]) -> Result<(), PassError>;

    fn on_all_threads(
        &self,
        pool: &Pool,
        rows: Range<usize>,
        out: &mut [T],
    ) -> Result<(), PassError>
    where
        T: Number,
    {
        let width = (out.len() / rows.len().max(1)).max(1);
        let parts = out.chunks_mut(TASK_ROWS * width);
        let mut parts: Vec<_> = parts.map(|part| (part, Ok(()))).collect();
        pool.chunks_mut(&mut parts, 1, |task, parts| {
            for (part, outcome) in parts {
                let first = rows.start + task * TASK_ROWS;
                *outcome = self.rows(first..first + part.len() / width, part);
            }
        });
        parts.into_iter().try_for_each(|(_, outcome)| outcome)
    }
}

pub(super) struct Head<'a, T, R> {
    pub vocabulary: usize,
    pub norm: &'a [T],
    pub epsilon: f64,
    /// Soft cap: logits `l` become `c tanh(l / c)`.
    pub cap: Option<f32>,
    pub matrix: &'a R,
}

#[derive(Debug, Default)]
pub(super) struct HeadWork<T> {
    normed: Vec<T>,
    inverse: Vec<T>,
    logits: Vec<T>,
    d_normed: Vec<T>,
    panel: Vec<T>,
    /// Rows in the buffer.
    held: Range<usize>,
    /// Summed gradients of the norm's weight, if requested.
    pub norm: Option<Vec<f64>>,
}

pub(super) fn batch(vocabulary: usize) -> usize {
    (LOGITS / vocabulary.max(1)).clamp(TASK_ROWS, 512)
}

/// Returns the bytes that the logits of a batch and their gradients take, with what they are
/// computed from.
pub(super) fn memory(vocabulary: usize, width: usize) -> u64 {
    let positions = batch(vocabulary);
    let tasks = positions.div_ceil(TASK_ROWS);
    // Sums and weights of every task, and the diagonal.
    let logits = 4 * positions + 12 * tasks + 8;
    let rows = 4 * (PANEL.min(vocabulary) + 2 * positions);
    let (vocabulary, width) = (vocabulary as u64, width as u64);
    vocabulary
        .saturating_mul(logits as u64)
        .saturating_add(width.saturating_mul(rows as u64))
}

impl<'a, T: Number, R: Rows<T>> Head<'a, T, R> {
    /// Returns the head of a model with this norm and matrix.
    pub fn new(model: &Model, norm: &'a [T], matrix: &'a R) -> Self {
        let hyper = model.hyper();
        Head {
            vocabulary: hyper.vocabulary,
            norm,
            epsilon: hyper.norm_epsilon.into(),
            cap: hyper.forward.logit_softcap,
            matrix,
        }
    }

    /// Computes logits `[n, vocabulary]` before the cap.
    pub fn logits<'w>(
        &self,
        pool: &Pool,
        x: &[T],
        work: &'w mut HeadWork<T>,
    ) -> Result<&'w mut [T], PassError> {
        let (width, vocabulary) = (self.norm.len().max(1), self.vocabulary);
        let n = x.len() / width;
        let normed = resized(&mut work.normed, x.len());
        let inverse = resized(&mut work.inverse, n);
        rms_norm(pool, x, self.norm, self.epsilon, normed, inverse);
        resized(&mut work.logits, n * vocabulary);
        for first in (0..vocabulary).step_by(PANEL) {
            let rows = first..vocabulary.min(first + PANEL);
            self.decode(pool, &rows, work)?;
            let panel = MatRef::from_row_major_slice(&work.panel, rows.len(), width);
            let normed = &work.normed;
            pool.chunks_mut(&mut work.logits, TASK_ROWS * vocabulary, |task, logits| {
                let n = logits.len() / vocabulary;
                let x = &normed[task * TASK_ROWS * width..][..n * width];
                let x = MatRef::from_row_major_slice(x, n, width);
                let to = MatMut::from_row_major_slice_mut(logits, n, vocabulary);
                let to = to.subcols_mut(rows.start, rows.len());
                product(to, Accum::Replace, x, panel.transpose(), T::from(1.0));
            });
        }
        Ok(&mut work.logits)
    }

    fn decode(
        &self,
        pool: &Pool,
        rows: &Range<usize>,
        work: &mut HeadWork<T>,
    ) -> Result<(), PassError> {
        if work.held != *rows {
            work.held = 0..0;
            let panel = resized(&mut work.panel, rows.len() * self.norm.len());
            self.matrix.on_all_threads(pool, rows.clone(), panel)?;
            work.held = rows.clone();
        }
        Ok(())
    }

    /// Draws a token for every row of `x [n, width]` by `draws [n]` in [0, 1), and writes the
    /// gradient of its negative log-likelihood to `dx`. Adds the second moments of the gradient at
    /// each logit before the cap to `diagonal [vocabulary]`, as the expectation over all tokens, `p
    /// (1 − p)`.
    pub fn back(
        &self,
        pool: &Pool,
        x: &[T],
        draws: &[f64],
        work: &mut HeadWork<T>,
        diagonal: &mut [f64],
        dx: &mut [T],
    ) -> Result<(), PassError> {
        let vocabulary = self.vocabulary;
        self.logits(pool, x, work)?;
        let mut parts: Vec<_> = work
            .logits
            .chunks_mut(TASK_ROWS * vocabulary)
            .map(|logits| (logits, vec![0.0; vocabulary]))
            .collect();
        pool.chunks_mut(&mut parts, 1, |task, parts| {
            let mut weights = Vec::new();
            for (logits, diagonal) in parts {
                let rows = logits.chunks_exact_mut(vocabulary);
                for (logits, &draw) in rows.zip(&draws[task * TASK_ROWS..]) {
                    choose(logits, self.cap, draw, diagonal, &mut weights);
                }
            }
        });
        for (_, part) in parts {
            let all = diagonal.iter_mut().zip(part);
            all.for_each(|(sum, part)| *sum += part);
        }
        self.through(pool, x, work, dx)
    }

    /// Returns the Kullback–Leibler divergence in nats of the predictions for `x [n, width]` from
    /// those of `teacher`, a head with its stream, summed over rows. Writes the gradient to `dx [n,
    /// width]` if given. `other` is the teacher's scratch space.
    pub fn divergence<S: Rows<T>>(
        &self,
        pool: &Pool,
        x: &[T],
        teacher: (&Head<T, S>, &[T]),
        [work, other]: [&mut HeadWork<T>; 2],
        dx: Option<&mut [T]>,
    ) -> Result<f64, PassError> {
        let (vocabulary, cap, of_teacher) = (self.vocabulary, self.cap, teacher.0.cap);
        self.logits(pool, x, work)?;
        let expected = &*teacher.0.logits(pool, teacher.1, other)?;
        let mut parts: Vec<_> = work
            .logits
            .chunks_mut(TASK_ROWS * vocabulary)
            .map(|logits| (logits, 0.0))
            .collect();
        pool.chunks_mut(&mut parts, 1, |task, parts| {
            let mut weights = [Vec::new(), Vec::new()];
            for (logits, sum) in parts {
                let expected = expected[task * TASK_ROWS * vocabulary..].chunks_exact(vocabulary);
                for (logits, expected) in logits.chunks_exact_mut(vocabulary).zip(expected) {
                    *sum += diverge(logits, expected, [cap, of_teacher], &mut weights);
                }
            }
        });
        let sum = parts.into_iter().map(|(_, sum)| sum).sum();
        match dx {
            Some(dx) => self.through(pool, x, work, dx).map(|()| sum),
            None => Ok(sum),
        }
    }

    /// Converts in-place logit gradients of `x` to those of `x`.
    fn through(
        &self,
        pool: &Pool,
        x: &[T],
        work: &mut HeadWork<T>,
        dx: &mut [T],
    ) -> Result<(), PassError> {
        let (width, vocabulary) = (self.norm.len().max(1), self.vocabulary);
        resized(&mut work.d_normed, x.len()).fill(T::default());
        for first in (0..vocabulary).step_by(PANEL) {
            let rows = first..vocabulary.min(first + PANEL);
            self.decode(pool, &rows, work)?;
            let panel = MatRef::from_row_major_slice(&work.panel, rows.len(), width);
            let d_logits = &work.logits;
            pool.chunks_mut(&mut work.d_normed, TASK_ROWS * width, |task, d| {
                let n = d.len() / width;
                let from = &d_logits[task * TASK_ROWS * vocabulary..][..n * vocabulary];
                let from = MatRef::from_row_major_slice(from, n, vocabulary);
                let from = from.subcols(rows.start, rows.len());
                let to = MatMut::from_row_major_slice_mut(d, n, width);
                product(to, Accum::Add, from, panel, T::from(1.0));
            });
        }
        dx.fill(T::default());
        let (inverse, d_normed) = (&work.inverse, &work.d_normed);
        rms_norm_back(pool, x, self.norm, inverse, d_normed, dx);
        if let Some(sums) = &mut work.norm {
            norm_weight_back(pool, x, inverse, d_normed, 1, sums);
        }
        Ok(())
    }
}

/// Replaces logits of a row by the gradient of the divergence from the expected ones. `weights` is
/// scratch space.
fn diverge<T: Number>(
    logits: &mut [T],
    expected: &[T],
    caps: [Option<f32>; 2],
    weights: &mut [Vec<T>; 2],
) -> f64 {
    let mut log_sums = [0.0; 2];
    let rows = [&*logits, expected];
    for (((weights, row), cap), log_sum) in
        weights.iter_mut().zip(rows).zip(caps).zip(&mut log_sums)
    {
        let (max, sum) = exponentials(row, cap, weights);
        *log_sum = max + sum.ln();
        let inverse = T::nearest(1.0 / sum);
        weights.iter_mut().for_each(|w| *w *= inverse);
    }
    let [found, of_teacher] = weights;
    let difference = log_sums[0] - log_sums[1];
    let mut divergence = 0.0;
    let rows = logits.iter_mut().zip(expected);
    for ((logit, &expected), (&q, &p)) in rows.zip(found.iter().zip(&*of_teacher)) {
        let ([log_q, slope], [log_p, _]) = (capped(*logit, caps[0]), capped(expected, caps[1]));
        let [log_q, log_p, p_wide]: [f64; 3] = [log_q.into(), log_p.into(), p.into()];
        divergence += p_wide * (log_p - log_q + difference);
        *logit = (q - p) * slope;
    }
    divergence
}

/// Replaces logits by the gradient of the loss of the token chosen by `draw`. `weights` is scratch
/// space.
fn choose<T: Number>(
    logits: &mut [T],
    cap: Option<f32>,
    draw: f64,
    diagonal: &mut [f64],
    weights: &mut Vec<T>,
) {
    let (_, sum) = exponentials(logits, cap, weights);
    // The last one if rounding leaves a remainder.
    let (mut chosen, mut below) = (weights.len().saturating_sub(1), 0.0);
    for (token, &weight) in weights.iter().enumerate() {
        below += Into::<f64>::into(weight);
        if below > draw * sum {
            chosen = token;
            break;
        }
    }
    let of_token = logits.iter_mut().zip(diagonal).zip(weights).enumerate();
    for (token, ((logit, diagonal), weight)) in of_token {
        let slope: f64 = capped(*logit, cap)[1].into();
        let probability = Into::<f64>::into(*weight) / sum;
        *diagonal += probability * (1.0 - probability) * slope * slope;
        let mut d = probability;
        if token == chosen {
            d -= 1.0;
        }
        *logit = T::nearest(d * slope);
    }
}

/// Fills `weights` with the exponentials of capped logits over their largest; returns the largest
/// and the sum.
fn exponentials<T: Number>(logits: &[T], cap: Option<f32>, weights: &mut Vec<T>) -> (f64, f64) {
    weights.clear();
    // No cap in the loop, so that it vectorises.
    match cap {
        None => weights.extend_from_slice(logits),
        Some(_) => weights.extend(logits.iter().map(|&logit| capped(logit, cap)[0])),
    }
    let (max, sum) = exponentials_of_row(weights);
    (max.into(), sum)
}

vectorised! {
    fn exponentials_of_row<T: Number>(numbers: &mut [T]) -> (T, f64) {
        shifted_exponentials(numbers)
    }
}

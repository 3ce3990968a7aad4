//! Causal grouped-query attention, forward and backward, in tiles of queries.
//!
//! The backward pass recomputes scores from queries, keys and each query's log-sum-exp, as
//! FlashAttention does (Dao et al. 2022).

use std::ops::Range;

use faer::{Accum, MatMut, MatRef};
use htc_kernels::Pool;
use htc_kernels::cpu::Attention;
use htc_math::{sum_of, vectorised};

use super::number::{Number, product, resized, shifted_exponentials};

/// Queries per tile.
const TILE: usize = 64;

#[derive(Clone, Copy)]
pub(super) struct Attend<'a> {
    /// Query heads per kv head.
    pub group: usize,
    pub size: usize,
    /// Positions of a window of text.
    pub context: usize,
    pub attention: &'a Attention,
}

/// Queries `[windows, heads, context, size]`, keys and values `[windows, kv_heads, context, size]`.
#[derive(Clone, Copy)]
pub(super) struct Qkv<'a, T> {
    pub q: &'a [T],
    pub k: &'a [T],
    pub v: &'a [T],
}

struct Task<'a, T> {
    qkv: Qkv<'a, T>,
    of_tile: Attend<'a>,
}

impl Attend<'_> {
    fn task<'a, T: Number>(&'a self, qkv: Qkv<'a, T>, index: usize) -> Task<'a, T> {
        let head = self.context * self.size;
        let shared = index * head..(index + 1) * head;
        let queries = shared.start * self.group..shared.end * self.group;
        Task {
            qkv: Qkv {
                q: &qkv.q[queries],
                k: &qkv.k[shared.clone()],
                v: &qkv.v[shared],
            },
            of_tile: *self,
        }
    }

    /// Yields head of the group, query rows and visible keys of each tile.
    fn tiles(&self) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
        let (context, window) = (self.context, self.attention.window);
        let tiles = move |head| {
            (0..context).step_by(TILE).map(move |first| {
                let last = context.min(first + TILE);
                let seen = window.map_or(0, |window| (first + 1).saturating_sub(window));
                (head, first..last, seen..last)
            })
        };
        (0..self.group).flat_map(tiles)
    }

    fn seen(&self, position: usize) -> Range<usize> {
        let window = self.attention.window;
        window.map_or(0, |window| (position + 1).saturating_sub(window))..position + 1
    }

    /// Computes `out`, in the shape of the queries, and log-sum-exps `[windows, heads, context]`.
    pub fn forward<T: Number>(&self, pool: &Pool, qkv: Qkv<T>, out: &mut [T], sums: &mut [T]) {
        let rows = (self.group * self.context).max(1);
        let parts = out
            .chunks_mut((rows * self.size).max(1))
            .zip(sums.chunks_mut(rows));
        let mut tasks: Vec<_> = parts.collect();
        pool.chunks_mut(&mut tasks, 1, |index, parts| {
            let task = self.task(qkv, index);
            for (out, sums) in parts {
                task.forward(out, sums);
            }
        });
    }

    /// Backward pass of [`forward`](Self::forward).
    pub fn back<T: Number>(
        &self,
        pool: &Pool,
        qkv: Qkv<T>,
        [out, sums, d_out]: [&[T]; 3],
        [dq, dk, dv]: [&mut [T]; 3],
    ) {
        let head = (self.context * self.size).max(1);
        let queries = dq.chunks_mut(head * self.group);
        let shared = dk.chunks_mut(head).zip(dv.chunks_mut(head));
        let mut tasks: Vec<_> = queries.zip(shared).collect();
        pool.chunks_mut(&mut tasks, 1, |index, parts| {
            let task = self.task(qkv, index);
            let rows = self.group * self.context;
            let sums = &sums[index * rows..][..rows];
            let of_heads = index * rows * self.size..(index + 1) * rows * self.size;
            let (out, d_out) = (&out[of_heads.clone()], &d_out[of_heads]);
            for (dq, (dk, dv)) in parts {
                task.back([out, sums, d_out], [dq, dk, dv]);
            }
        });
    }
}

impl<T: Number> Task<'_, T> {
    fn rows<'b>(&self, of: &'b [T], rows: Range<usize>) -> MatRef<'b, T> {
        let size = self.of_tile.size;
        let of = &of[rows.start * size..rows.end * size];
        MatRef::from_row_major_slice(of, rows.len(), size)
    }

    fn rows_mut<'b>(&self, of: &'b mut [T], rows: Range<usize>) -> MatMut<'b, T> {
        let size = self.of_tile.size;
        let of = &mut of[rows.start * size..rows.end * size];
        MatMut::from_row_major_slice_mut(of, rows.len(), size)
    }

    fn queries(&self, head: usize, rows: &Range<usize>) -> Range<usize> {
        let first = head * self.of_tile.context;
        first + rows.start..first + rows.end
    }

    fn scores<'s>(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
        scores: &'s mut Vec<T>,
    ) -> &'s mut [T] {
        let shape = [queries.len(), keys.len()];
        let scores = resized(scores, shape[0] * shape[1]);
        let to = MatMut::from_row_major_slice_mut(&mut *scores, shape[0], shape[1]);
        let q = self.rows(self.qkv.q, queries.clone());
        let k = self.rows(self.qkv.k, keys.clone());
        let scale = T::from(self.of_tile.attention.scale);
        product(to, Accum::Replace, q, k.transpose(), scale);
        scores
    }

    /// Returns `out · d_out` of a query, the weighted mean of the weights' gradients.
    fn product_of(&self, out: &[T], d_out: &[T], query: usize) -> T {
        let at = query * self.of_tile.size..(query + 1) * self.of_tile.size;
        T::nearest(sum_of(&out[at.clone()], &d_out[at], |a, b| a * b))
    }

    fn forward(&self, out: &mut [T], sums: &mut [T]) {
        let one = T::from(1.0);
        let mut scores = Vec::new();
        for (head, rows, keys) in self.of_tile.tiles() {
            let queries = self.queries(head, &rows);
            let weights = self.scores(&queries, &keys, &mut scores);
            for (index, weights) in weights.chunks_exact_mut(keys.len()).enumerate() {
                let seen = self.of_tile.seen(rows.start + index);
                let seen = seen.start - keys.start..seen.end - keys.start;
                weights[..seen.start].fill(T::default());
                weights[seen.end..].fill(T::default());
                let cap = self.of_tile.attention.softcap;
                sums[queries.start + index] = softmax(&mut weights[seen], cap);
            }
            let weights = MatRef::from_row_major_slice(weights, rows.len(), keys.len());
            let v = self.rows(self.qkv.v, keys);
            product(self.rows_mut(out, queries), Accum::Replace, weights, v, one);
        }
    }

    fn back(&self, [out, sums, d_out]: [&[T]; 3], [dq, dk, dv]: [&mut [T]; 3]) {
        let one = T::from(1.0);
        let scale = T::from(self.of_tile.attention.scale);
        let (mut scores, mut slopes) = (Vec::new(), Vec::new());
        dk.fill(T::default());
        dv.fill(T::default());
        for (head, rows, keys) in self.of_tile.tiles() {
            let queries = self.queries(head, &rows);
            let shape = [rows.len(), keys.len()];
            let weights = self.scores(&queries, &keys, &mut scores);
            let d = resized(&mut slopes, shape[0] * shape[1]);
            let d_rows = self.rows(d_out, queries.clone());
            let to = MatMut::from_row_major_slice_mut(&mut *d, shape[0], shape[1]);
            let v = self.rows(self.qkv.v, keys.clone());
            product(to, Accum::Replace, d_rows, v.transpose(), one);
            let pairs = weights.chunks_exact_mut(keys.len());
            for (index, (weights, d)) in pairs.zip(d.chunks_exact_mut(keys.len())).enumerate() {
                let seen = self.of_tile.seen(rows.start + index);
                let seen = seen.start - keys.start..seen.end - keys.start;
                for part in [&mut *weights, &mut *d] {
                    part[..seen.start].fill(T::default());
                    part[seen.end..].fill(T::default());
                }
                let query = queries.start + index;
                let mean = self.product_of(out, d_out, query);
                let cap = self.of_tile.attention.softcap;
                let weights = &mut weights[seen.clone()];
                softmax_back(weights, &mut d[seen], sums[query], mean, cap);
            }
            let weights = MatRef::from_row_major_slice(weights, shape[0], shape[1]);
            let d = MatRef::from_row_major_slice(d, shape[0], shape[1]);
            let (q, k) = (self.qkv.q, self.qkv.k);
            let (q, k) = (self.rows(q, queries.clone()), self.rows(k, keys.clone()));
            product(self.rows_mut(dq, queries), Accum::Replace, d, k, scale);
            let dk = self.rows_mut(dk, keys.clone());
            product(dk, Accum::Add, d.transpose(), q, scale);
            let dv = self.rows_mut(dv, keys);
            product(dv, Accum::Add, weights.transpose(), d_rows, one);
        }
    }
}

/// Returns `c tanh(s / c)` and its derivative.
#[inline(always)]
pub(super) fn capped<T: Number>(score: T, cap: Option<f32>) -> [T; 2] {
    match cap {
        None => [score, T::from(1.0)],
        Some(cap) => {
            let tanh = (score * T::nearest(1.0 / f64::from(cap))).tanh();
            [T::from(cap) * tanh, T::from(1.0) - tanh * tanh]
        }
    }
}

vectorised! {
    /// Replaces scores by weights; returns the log-sum-exp.
    fn softmax<T: Number>(scores: &mut [T], cap: Option<f32>) -> T {
        if cap.is_some() {
            scores.iter_mut().for_each(|s| *s = capped(*s, cap)[0]);
        }
        let (max, sum) = shifted_exponentials(scores);
        let inverse = T::nearest(1.0 / sum);
        scores.iter_mut().for_each(|weight| *weight *= inverse);
        T::nearest(max.into() + sum.ln())
    }
}

vectorised! {
    /// Replaces scores by weights, and gradients of weights by those of unscaled scores. `mean` is the
    /// weighted mean of the weights' gradients.
    fn softmax_back<T: Number>(
        scores: &mut [T],
        d: &mut [T],
        log_sum: T,
        mean: T,
        cap: Option<f32>,
    ) {
        let pairs = scores.iter_mut().zip(d);
        // No cap in the loop, so that it vectorises.
        match cap {
            None => pairs.for_each(|(score, d)| {
                *score = (*score - log_sum).exp();
                *d = *score * (*d - mean);
            }),
            Some(_) => pairs.for_each(|(score, d)| {
                let [value, slope] = capped(*score, cap);
                *score = (value - log_sum).exp();
                *d = *score * (*d - mean) * slope;
            }),
        }
    }
}

//! Attention heads of rows: their rotary embedding, and their layout for attention.

use std::sync::Arc;

use htc_formats::model::RopePairs;
use htc_formats::model::spec::Heads;
use htc_kernels::Pool;

use super::number::{Number, TASK_ROWS};

/// Rotary embedding of the positions of a window: cosines and sines `[context, pairs]`, times the
/// attention factor.
#[derive(Clone, Debug)]
pub(super) struct Rotation<T> {
    pairs: RopePairs,
    count: usize,
    context: usize,
    cos: Arc<[T]>,
    sin: Arc<[T]>,
}

impl<T: Number> Rotation<T> {
    /// Returns the rotation with these `frequencies`, in radians per position of every pair.
    pub fn new(pairs: RopePairs, context: usize, frequencies: &[f64], factor: f32) -> Self {
        let factor = f64::from(factor);
        let angles = (0..context).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
        Rotation {
            pairs,
            count: frequencies.len(),
            context: context.max(1),
            cos: angles
                .clone()
                .map(|a| T::nearest(a.cos() * factor))
                .collect(),
            sin: angles.map(|a| T::nearest(a.sin() * factor)).collect(),
        }
    }

    /// Rotates the heads of rows `x [windows · context, count · size]` to `y`.
    pub fn forward(&self, pool: &Pool, heads: HeadRows, x: &[T], y: &mut [T]) {
        self.rows(pool, heads, x, y, |sin| sin);
    }

    /// Passes the gradient `dy` back to `dx`: the rotation's transpose.
    pub fn back(&self, pool: &Pool, heads: HeadRows, dy: &[T], dx: &mut [T]) {
        self.rows(pool, heads, dy, dx, |sin| T::default() - sin);
    }

    fn rows(
        &self,
        pool: &Pool,
        heads: HeadRows,
        x: &[T],
        y: &mut [T],
        sine: impl Fn(T) -> T + Sync,
    ) {
        let width = heads.width();
        pool.chunks_mut(y, TASK_ROWS * width, |task, y| {
            y.copy_from_slice(&x[task * TASK_ROWS * width..][..y.len()]);
            for (index, row) in y.chunks_exact_mut(width).enumerate() {
                let position = (task * TASK_ROWS + index) % self.context;
                for head in row.chunks_exact_mut(heads.size.max(1)) {
                    self.turn(position, head, &sine);
                }
            }
        });
    }

    fn turn(&self, position: usize, head: &mut [T], sine: impl Fn(T) -> T) {
        for i in 0..self.count {
            let (first, second) = match self.pairs {
                RopePairs::Adjacent => (2 * i, 2 * i + 1),
                RopePairs::Halves => (i, i + self.count),
            };
            let at = position * self.count + i;
            let (a, b) = (head[first], head[second]);
            let (c, s) = (self.cos[at], sine(self.sin[at]));
            head[first] = a * c - b * s;
            head[second] = a * s + b * c;
        }
    }
}

/// Shape of the heads of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadRows {
    /// Heads of a row.
    pub count: usize,
    /// Numbers of a head.
    pub size: usize,
}

impl From<Heads> for HeadRows {
    fn from(heads: Heads) -> Self {
        HeadRows {
            count: heads.count,
            size: heads.size,
        }
    }
}

impl HeadRows {
    /// Returns the numbers of a row, at least one.
    fn width(self) -> usize {
        (self.count * self.size).max(1)
    }

    /// Copies rows `[windows · context, count · size]` to `out [windows, count, context, size]`.
    pub fn split<T: Number>(self, pool: &Pool, context: usize, rows: &[T], out: &mut [T]) {
        let (size, context) = (self.size.max(1), context.max(1));
        pool.chunks_mut(out, context * size, |index, out| {
            let (window, head) = (index / self.count, index % self.count);
            for (position, out) in out.chunks_exact_mut(size).enumerate() {
                let row = window * context + position;
                out.copy_from_slice(&rows[(row * self.count + head) * size..][..size]);
            }
        });
    }

    /// Copies `heads [windows, count, context, size]` to rows `[windows · context, count · size]`.
    pub fn merge<T: Number>(self, pool: &Pool, context: usize, heads: &[T], rows: &mut [T]) {
        let (size, context) = (self.size.max(1), context.max(1));
        pool.chunks_mut(rows, TASK_ROWS * self.width(), |task, rows| {
            for (index, out) in rows.chunks_exact_mut(size).enumerate() {
                let (row, head) = (task * TASK_ROWS + index / self.count, index % self.count);
                let (window, position) = (row / context, row % context);
                let at = (window * self.count + head) * context + position;
                out.copy_from_slice(&heads[at * size..][..size]);
            }
        });
    }
}

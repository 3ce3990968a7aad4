//! Heads: cut out of the rows of a projection, normed and rotated, and put back.

use htc_formats::model::RopePairs;
use htc_kernels::Pool;

use super::elementwise::{add_in_order, norm_row, norm_row_back, norm_weight_row_back};
use super::number::{Number, TASK_ROWS};

/// Cosines and sines `[context, pairs]`, times the factor of what is rotated.
#[derive(Clone, Debug)]
pub(super) struct Rotation<T> {
    pairs: RopePairs,
    count: usize,
    cos: Vec<T>,
    sin: Vec<T>,
}

impl<T: Number> Rotation<T> {
    /// By `frequencies`, radians per position of every pair.
    pub fn new(pairs: RopePairs, context: usize, frequencies: &[f64], factor: f32) -> Self {
        let factor = f64::from(factor);
        let angles = (0..context).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
        Rotation {
            pairs,
            count: frequencies.len(),
            cos: angles
                .clone()
                .map(|a| T::nearest(a.cos() * factor))
                .collect(),
            sin: angles.map(|a| T::nearest(a.sin() * factor)).collect(),
        }
    }

    /// Turns a head at a position; `back` by its transpose, which is what a gradient goes through.
    fn turn(&self, position: usize, head: &mut [T], back: bool) {
        for i in 0..self.count {
            let (first, second) = match self.pairs {
                RopePairs::Adjacent => (2 * i, 2 * i + 1),
                RopePairs::Halves => (i, i + self.count),
            };
            let at = position * self.count + i;
            let (a, b, c) = (head[first], head[second], self.cos[at]);
            let s = match back {
                true => T::default() - self.sin[at],
                false => self.sin[at],
            };
            head[first] = a * c - b * s;
            head[second] = a * s + b * c;
        }
    }
}

/// What happens to the heads of a projection.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, T> {
    /// How many.
    pub count: usize,
    /// Numbers of one.
    pub size: usize,
    /// Positions of a window.
    pub context: usize,
    /// The weight `[size]` of their norm.
    pub norm: Option<&'a [T]>,
    /// Of the norm.
    pub epsilon: f64,
    /// How they are rotated, behind the norm.
    pub rotation: Option<&'a Rotation<T>>,
}

impl<T: Number> Heads<'_, T> {
    /// From rows `y [windows · context, count · size]` to `out [windows, count, context, size]`; `inverse
    /// [windows, count, context]` keeps what the norm multiplied by.
    pub fn split(&self, pool: &Pool, y: &[T], out: &mut [T], inverse: &mut [T]) {
        let (size, context) = (self.size.max(1), self.context.max(1));
        let parts = out
            .chunks_mut(context * size)
            .zip(inverse.chunks_mut(context));
        let mut tasks: Vec<_> = parts.collect();
        pool.chunks_mut(&mut tasks, 1, |index, parts| {
            let (window, head) = (index / self.count, index % self.count);
            for (out, inverse) in parts {
                for (position, out) in out.chunks_exact_mut(size).enumerate() {
                    let row = window * context + position;
                    let y = &y[(row * self.count + head) * size..][..size];
                    match self.norm {
                        Some(weight) => inverse[position] = norm_row(y, weight, self.epsilon, out),
                        None => out.copy_from_slice(y),
                    }
                    if let Some(rotation) = self.rotation {
                        rotation.turn(position, out, false);
                    }
                }
            }
        });
    }

    /// The way back of [`split`](Self::split), from `d_out` to `dy`; `y` and `inverse` are those of the way
    /// there.
    pub fn merge_back(&self, pool: &Pool, [y, inverse, d_out]: [&[T]; 3], dy: &mut [T]) {
        let (size, context) = (self.size.max(1), self.context.max(1));
        let row_numbers = self.count * size;
        pool.chunks_mut(dy, TASK_ROWS * row_numbers, |task, dy| {
            let mut turned = vec![T::default(); size];
            for (index, dy) in dy.chunks_exact_mut(size).enumerate() {
                let (row, head) = (task * TASK_ROWS + index / self.count, index % self.count);
                let (window, position) = (row / context, row % context);
                let at = (window * self.count + head) * context + position;
                turned.copy_from_slice(&d_out[at * size..][..size]);
                if let Some(rotation) = self.rotation {
                    rotation.turn(position, &mut turned, true);
                }
                match self.norm {
                    Some(weight) => {
                        let y = &y[(row * self.count + head) * size..][..size];
                        dy.fill(T::default());
                        norm_row_back(y, weight, inverse[at], &turned, dy);
                    }
                    None => dy.copy_from_slice(&turned),
                }
            }
        });
    }

    /// The gradient with respect to the weight of the norm is added to `sums [size]`, of the same arguments as
    /// [`merge_back`](Self::merge_back).
    pub fn weight_back(&self, pool: &Pool, [y, inverse, d_out]: [&[T]; 3], sums: &mut [f64]) {
        let (size, context) = (self.size.max(1), self.context.max(1));
        let rows = y.len() / (self.count * size).max(1);
        add_in_order(pool, rows, sums, |rows, sums| {
            let mut turned = vec![T::default(); size];
            for (row, head) in rows.flat_map(|row| (0..self.count).map(move |head| (row, head))) {
                let (window, position) = (row / context, row % context);
                let at = (window * self.count + head) * context + position;
                turned.copy_from_slice(&d_out[at * size..][..size]);
                if let Some(rotation) = self.rotation {
                    rotation.turn(position, &mut turned, true);
                }
                let y = &y[(row * self.count + head) * size..][..size];
                norm_weight_row_back(y, inverse[at], &turned, sums);
            }
        });
    }

    /// From `[windows, count, context, size]` to rows, as they are.
    pub fn merge(&self, pool: &Pool, from: &[T], out: &mut [T]) {
        let plain = Heads {
            norm: None,
            rotation: None,
            ..*self
        };
        plain.merge_back(pool, [&[], &[], from], out);
    }
}

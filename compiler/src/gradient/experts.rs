//! A mixture of experts, forwards and backwards.
//!
//! The choice of experts is constant; gradients flow through the chosen experts and through the
//! weights of their outputs. The values of an expert have as many rows as the router sends there,
//! in the order of the positions.

use htc_kernels::Pool;
use htc_loader::exec::expert_weights;
use htc_math::sum_of;

use super::number::Number;
use super::steps::{Activate, Project};
use super::values::{Value, ValueGradients, Values};

/// A mixture of experts with its weights.
#[derive(Clone, Debug)]
pub(super) struct Experts<T> {
    pub x: Value,
    /// One projection, from `x` to the scores.
    pub router: Project<T>,
    /// The scores.
    pub scores: Value,
    pub experts: Vec<Expert<T>>,
    /// Experts applied to each position.
    pub used: usize,
    /// Whether the weights of the used experts are divided by their sum.
    pub normalised: bool,
    /// Width of `x` and `y`.
    pub width: usize,
    pub y: Value,
}

/// A network of a mixture of experts.
#[derive(Clone, Debug)]
pub(super) struct Expert<T> {
    /// The rows of the mixture's input that the expert reads.
    pub x: Value,
    pub gate_up: Project<T>,
    pub activate: Activate,
    pub down: Project<T>,
    pub y: Value,
}

/// The choice of experts for each position.
struct Routing<T> {
    /// `[n, count]`: the softmax of the scores over all experts or over the chosen ones, zero for
    /// others.
    probabilities: Vec<T>,
    /// Positions that each expert reads, ascending.
    rows: Vec<Vec<usize>>,
}

impl<T: Number> Routing<T> {
    fn new(scores: &[T], count: usize, used: usize, normalised: bool) -> Routing<T> {
        let mut probabilities = vec![T::default(); scores.len()];
        let mut rows = vec![Vec::new(); count];
        let mut order = Vec::with_capacity(count);
        let batch = scores.chunks_exact(count.max(1));
        let to = probabilities.chunks_exact_mut(count.max(1));
        for (row, (scores, to)) in batch.zip(to).enumerate() {
            let score = |expert: usize| -> f64 { scores[expert].into() };
            let weights = expert_weights(score, count, used, normalised, &mut order);
            for (place, (expert, weight)) in weights.enumerate() {
                to[expert] = T::nearest(weight);
                if place < used {
                    rows[expert].push(row);
                }
            }
        }
        Routing {
            probabilities,
            rows,
        }
    }
}

impl<T: Number> Experts<T> {
    fn routing(&self, values: &Values<T>) -> Routing<T> {
        let scores = values.get(self.scores);
        Routing::new(scores, self.experts.len(), self.used, self.normalised)
    }

    pub fn forward(&self, pool: &Pool, values: &mut Values<T>) {
        self.router.forward(pool, values);
        let (routing, width, count) = (self.routing(values), self.width, self.experts.len());
        for (expert, rows) in self.experts.iter().zip(&routing.rows) {
            values.write([expert.x], [rows.len() * width], |values, [to]| {
                let x = values.get(self.x);
                for (to, row) in to.chunks_exact_mut(width).zip(rows) {
                    to.copy_from_slice(&x[row * width..][..width]);
                }
            });
            expert.gate_up.forward(pool, values);
            expert.activate.forward(pool, values);
            expert.down.forward(pool, values);
        }
        let numbers = values.get(self.x).len();
        values.write([self.y], [numbers], |values, [y]| {
            y.fill(T::default());
            for (index, (expert, rows)) in self.experts.iter().zip(&routing.rows).enumerate() {
                for (row, out) in rows.iter().zip(values.get(expert.y).chunks_exact(width)) {
                    let weight = routing.probabilities[row * count + index];
                    let y = &mut y[row * width..][..width];
                    y.iter_mut().zip(out).for_each(|(y, &x)| *y += weight * x);
                }
            }
        });
    }

    pub fn backward(&self, pool: &Pool, values: &Values<T>, gradients: &mut ValueGradients<T>) {
        let (routing, width, count) = (self.routing(values), self.width, self.experts.len());
        gradients.pass(self.y, |dy, gradients| {
            let mut d_weights = vec![0.0; routing.probabilities.len()];
            for (index, (expert, rows)) in self.experts.iter().zip(&routing.rows).enumerate() {
                let of_row = |row: usize| &dy[row * width..][..width];
                for (&row, out) in rows.iter().zip(values.get(expert.y).chunks_exact(width)) {
                    d_weights[row * count + index] = sum_of(of_row(row), out, |a, b| a * b);
                }
                gradients.add([expert.y], [rows.len() * width], |[d]| {
                    for (d, &row) in d.chunks_exact_mut(width).zip(rows) {
                        let weight = routing.probabilities[row * count + index];
                        let pairs = d.iter_mut().zip(of_row(row));
                        pairs.for_each(|(d, &dy)| *d = weight * dy);
                    }
                });
                expert.down.backward(pool, values, gradients);
                expert.activate.backward(pool, values, gradients);
                expert.gate_up.backward(pool, values, gradients);
                gradients.pass(expert.x, |dx, gradients| {
                    let to = gradients.sum(self.x, dy.len());
                    for (&row, dx) in rows.iter().zip(dx.chunks_exact(width)) {
                        let to = to[row * width..][..width].iter_mut();
                        to.zip(dx).for_each(|(to, &dx)| *to += dx);
                    }
                });
            }
            let numbers = routing.probabilities.len();
            gradients.add([self.scores], [numbers], |[d]| {
                softmax_back(&routing.probabilities, &d_weights, count, d);
            });
        });
        self.router.backward(pool, values, gradients);
    }

    /// Returns the projections of each input, in the order of execution.
    pub fn projects(&self) -> impl Iterator<Item = &Project<T>> {
        let experts = self.experts.iter();
        let experts = experts.flat_map(|expert| [&expert.gate_up, &expert.down]);
        std::iter::once(&self.router).chain(experts)
    }

    /// Returns the projections of each input, to be changed.
    pub fn projects_mut(&mut self) -> impl Iterator<Item = &mut Project<T>> {
        let experts = self.experts.iter_mut();
        let experts = experts.flat_map(|expert| [&mut expert.gate_up, &mut expert.down]);
        std::iter::once(&mut self.router).chain(experts)
    }
}

/// Computes the gradients of scores from the `probabilities [n, count]` of a softmax over those
/// that are not zero, and the gradients of these.
fn softmax_back<T: Number>(
    probabilities: &[T],
    d_probabilities: &[f64],
    count: usize,
    d: &mut [T],
) {
    let rows = probabilities.chunks_exact(count.max(1));
    let rows = rows.zip(d_probabilities.chunks_exact(count.max(1)));
    for ((p, dp), d) in rows.zip(d.chunks_exact_mut(count.max(1))) {
        let pairs = p.iter().zip(dp);
        let mean: f64 = pairs.clone().map(|(&p, dp)| p.into() * dp).sum();
        for (d, (&p, dp)) in d.iter_mut().zip(pairs) {
            *d = T::nearest(p.into() * (dp - mean));
        }
    }
}

#[cfg(test)]
mod tests;

//! Mixtures of experts: routes the rows of a batch, and applies each expert to its rows.

use htc_formats::model::{ActivationPoint, Register};

use super::block::Execution;
use super::tap::Point;
use crate::backend::{Backend, Route};
use crate::error::ExecError;
use crate::model::{Experts, Projection};

impl<B: Backend> Execution<'_, '_, B> {
    /// Writes the weighted sum of the chosen experts' outputs to [`Register::Delta`]. A row's experts are added in
    /// the order of their indices, whatever the other rows of the batch are.
    pub(super) fn experts(&mut self, step: &Experts<B>) -> Result<(), ExecError> {
        let (n, width) = (self.n, self.width);
        self.observe(Point::Input(ActivationPoint::Ffn), width, Register::Normed)?;
        self.apply_to(n, Register::Normed, std::slice::from_ref(&step.router))?;
        let scores = &self.buffers[Register::Router];
        let count = step.experts.len();
        let scores = self.backend.read(scores, n * count, self.look.room)?;
        let routes = routes(scores, count, step.used, step.normalised);
        let delta = &mut self.buffers[Register::Delta];
        self.backend.upload(&vec![0.0; n * width], delta)?;
        for routes in routes.chunk_by(|a, b| a.expert == b.expert) {
            let rows = routes.len();
            let expert = &step.experts[routes[0].expert];
            let [x, gathered] = self.buffers.pair(Register::Normed, Register::ExpertInput);
            self.backend.gather_rows(width, routes, x, gathered)?;
            self.apply_to(rows, Register::ExpertInput, &expert.gate_up)?;
            let [gate, up] = self.buffers.pair(Register::Gate, Register::Up);
            let numbers = rows * step.hidden;
            self.backend.activate(step.activation, numbers, gate, up)?;
            self.apply_to(rows, Register::Gate, std::slice::from_ref(&expert.down))?;
            let [y, delta] = self.buffers.pair(Register::ExpertOutput, Register::Delta);
            self.backend.scatter_rows(width, routes, y, delta)?;
        }
        Ok(())
    }

    fn apply_to(
        &mut self,
        rows: usize,
        input: Register,
        projections: &[Projection<B>],
    ) -> Result<(), ExecError> {
        let maps = projections
            .iter()
            .map(|projection| (&projection.linear, projection));
        self.apply(rows, input, maps, None, self.setting)
    }
}

/// Chooses the `used` experts of the largest scores `[n, count]` for each row; equal scores by lower index.
/// Weights are the softmax of the scores, over all experts or over the used ones. Sorted by expert, then by row.
fn routes(scores: &[f32], count: usize, used: usize, normalised: bool) -> Vec<Route> {
    let mut routes = Vec::with_capacity(scores.len() / count.max(1) * used);
    let mut order: Vec<usize> = Vec::with_capacity(count);
    for (row, scores) in scores.chunks_exact(count).enumerate() {
        order.clear();
        order.extend(0..count);
        // A score that is not a number is chosen, so that it is seen in the logits.
        let score = |expert: usize| match scores[expert] {
            score if score.is_nan() => f32::INFINITY,
            score => score,
        };
        let descending = |a: &usize, b: &usize| score(*b).total_cmp(&score(*a)).then(a.cmp(b));
        order.sort_unstable_by(descending);
        let largest = f64::from(scores[order[0]]);
        let exponential = |expert: &usize| (f64::from(scores[*expert]) - largest).exp();
        let chosen = &order[..used.min(count)];
        let summed = if normalised { chosen } else { &order[..] };
        let sum: f64 = summed.iter().map(exponential).sum();
        routes.extend(chosen.iter().map(|expert| Route {
            expert: *expert,
            row,
            weight: (exponential(expert) / sum) as f32,
        }));
    }
    routes.sort_unstable_by_key(|route| (route.expert, route.row));
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_the_largest_scores_with_softmax_weights() {
        let scores = [
            0.0,
            3.0f32.ln(),
            2.0f32.ln(),
            f32::NEG_INFINITY,
            0.0,
            0.0,
            0.0,
            0.0,
        ];
        let expected = |weights: [f32; 4]| {
            let routed = [(0, 1), (1, 0), (1, 1), (2, 0)];
            let routes = routed.into_iter().zip(weights);
            routes.map(|((expert, row), weight)| Route {
                expert,
                row,
                weight,
            })
        };
        for (normalised, weights) in [
            (true, [0.5, 0.6, 0.5, 0.4]),
            (false, [0.25, 0.5, 0.25, 1.0 / 3.0]),
        ] {
            let found = routes(&scores, 4, 2, normalised);
            assert_eq!(found.len(), 4);
            for (found, expected) in found.iter().zip(expected(weights)) {
                assert_eq!((found.expert, found.row), (expected.expert, expected.row));
                assert!((found.weight - expected.weight).abs() < 1e-6, "{found:?}");
            }
        }
    }
}

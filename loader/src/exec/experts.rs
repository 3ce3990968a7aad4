//! Mixtures of experts: routes the rows of a batch, and applies each expert to its rows.

use htc_formats::model::{ActivationPoint, Register};

use super::block::Execution;
use super::tap::Point;
use crate::backend::Backend;
use crate::error::Result;
use crate::model::{Experts, Projection};

/// A row that a router sends to an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Route {
    expert: usize,
    row: usize,
    /// Factor of the expert's output.
    weight: f32,
}

impl<B: Backend> Execution<'_, '_, B> {
    /// Writes the weighted sum of the chosen experts' outputs to [`Register::Delta`]. Rows are
    /// routed and summed on the host, in float32. A row's experts are added in the order of their
    /// indices, whatever the other rows of the batch are.
    pub(super) fn experts(&mut self, step: &Experts<B>) -> Result<()> {
        let (n, width) = (self.n, self.width);
        let point = Point::Input(ActivationPoint::Ffn);
        self.observe(point, width, Register::Normed)?;
        self.apply_to(n, Register::Normed, std::slice::from_ref(&step.router))?;
        let count = step.experts.len();
        let scores = self.read(Register::Router, n * count)?;
        let routes = routes(scores, count, step.used, step.normalised);
        let x = self.read(Register::Normed, n * width)?.to_vec();
        let mut sums = vec![0.0; n * width];
        for routes in routes.chunk_by(|a, b| a.expert == b.expert) {
            let index = routes[0].expert;
            let expert = &step.experts[index];
            // Lossless: the number of experts is limited.
            let points = [
                ActivationPoint::ExpertInput(index as u16),
                ActivationPoint::ExpertHidden(index as u16),
            ];
            let rows = routes.iter().map(|route| &x[route.row * width..][..width]);
            let rows: Vec<f32> = rows.flatten().copied().collect();
            let input = &mut self.buffers[Register::ExpertInput];
            self.backend.upload(&rows, input)?;
            self.observe_rows(points[0], rows.len(), Register::ExpertInput)?;
            self.apply_to(routes.len(), Register::ExpertInput, &expert.gate_up)?;
            let [gate, up] = self.buffers.pair(Register::Gate, Register::Up);
            let numbers = routes.len() * step.hidden;
            self.backend.activate(step.activation, numbers, gate, up)?;
            self.observe_rows(points[1], numbers, Register::Gate)?;
            let down = std::slice::from_ref(&expert.down);
            self.apply_to(routes.len(), Register::Gate, down)?;
            let outputs = self.read(Register::ExpertOutput, routes.len() * width)?;
            for (route, output) in routes.iter().zip(outputs.chunks_exact(width)) {
                let sums = &mut sums[route.row * width..][..width];
                for (sum, output) in sums.iter_mut().zip(output) {
                    *sum += route.weight * output;
                }
            }
        }
        self.backend
            .upload(&sums, &mut self.buffers[Register::Delta])
    }

    /// Shows the first `numbers` of a register to the tap.
    fn observe_rows(
        &mut self,
        point: ActivationPoint,
        numbers: usize,
        register: Register,
    ) -> Result<()> {
        let (point, x) = (Point::Input(point), &self.buffers[register]);
        self.look.numbers(self.backend, point, numbers, x)
    }

    fn read(&mut self, register: Register, numbers: usize) -> Result<&[f32]> {
        self.backend
            .read(&self.buffers[register], numbers, self.look.host_buffer)
    }

    fn apply_to(
        &mut self,
        rows: usize,
        input: Register,
        projections: &[Projection<B>],
    ) -> Result<()> {
        let maps = projections
            .iter()
            .map(|projection| (&projection.linear, projection));
        self.apply(rows, input, maps, None, self.setting)
    }
}

/// Returns the experts of a row with the weights of their outputs, by decreasing score; equal
/// scores by lower index. NaN counts as infinity, so that it is chosen and seen in the logits. The first `used` are
/// chosen. Weights are the softmax of the scores, over all experts, or with `normalised` over the
/// chosen ones, which are then the only ones returned. `order` is scratch space.
pub fn expert_weights(
    score: impl Fn(usize) -> f64,
    count: usize,
    used: usize,
    normalised: bool,
    order: &mut Vec<usize>,
) -> impl Iterator<Item = (usize, f64)> {
    order.clear();
    order.extend(0..count);
    let key = |expert: usize| match score(expert) {
        score if score.is_nan() => f64::INFINITY,
        score => score,
    };
    order.sort_unstable_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    let largest = order.first().map_or(0.0, |&expert| score(expert));
    if normalised {
        order.truncate(used);
    }
    let exponential = move |expert: usize| (score(expert) - largest).exp();
    let sum: f64 = order.iter().map(|&expert| exponential(expert)).sum();
    order
        .iter()
        .map(move |&expert| (expert, exponential(expert) / sum))
}

/// Routes each row of scores `[n, count]` to the experts that [`expert_weights`] chooses. Sorted by
/// expert, then by row.
fn routes(scores: &[f32], count: usize, used: usize, normalised: bool) -> Vec<Route> {
    let mut routes = Vec::with_capacity(scores.len() / count.max(1) * used);
    let mut order = Vec::with_capacity(count);
    for (row, scores) in scores.chunks_exact(count).enumerate() {
        let score = |expert: usize| f64::from(scores[expert]);
        let weights = expert_weights(score, count, used, normalised, &mut order);
        routes.extend(weights.take(used).map(|(expert, weight)| Route {
            expert,
            row,
            weight: weight as f32,
        }));
    }
    routes.sort_unstable_by_key(|route| (route.expert, route.row));
    routes
}

#[cfg(test)]
mod tests;

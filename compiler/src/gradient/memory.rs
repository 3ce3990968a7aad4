//! Memory of a backward pass and of a distillation, from the description of a model.

use htc_formats::model::spec::Projection;
use htc_formats::model::{BlockSpec, HyperParameters, ModelSpec, Step};

use super::head;
use super::pass::windows_at_a_time;
use super::sums::OutputSums;

/// Largest bytes of all layers that a distillation keeps for the backward pass.
const MAX_KEPT_BYTES: u64 = 1 << 28;

/// Numbers that a pass through a block keeps at one position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NumbersPerPosition {
    /// Numbers of the values, with those that only the backward pass reads.
    pub values: usize,
    /// Numbers of the gradients.
    pub gradients: usize,
}

impl NumbersPerPosition {
    /// Returns the numbers of a block in a residual stream of `width`.
    pub fn count(block: &BlockSpec, width: usize) -> NumbersPerPosition {
        // The stream before the block.
        let (mut passed, mut factors) = (width, 0);
        for step in &block.steps {
            passed += match step {
                // Each position is a row of the experts that it uses: input, output, gate, up and
                // their product.
                Step::Experts(step) => {
                    let row = 2 * width + 3 * step.hidden;
                    width + step.experts.len() + step.used.min(step.experts.len()) * row
                }
                _ => step.writes(width).iter().map(|(_, row)| row).sum(),
            };
            match step {
                Step::Norm { .. } => factors += 1,
                Step::HeadNorm { heads, .. } => factors += heads.count,
                // Queries, keys, values and outputs once more, in another layout.
                Step::Attention(step) => {
                    passed += 2 * (step.queries.width() + step.keys.width());
                    factors += step.queries.count;
                }
                _ => {}
            }
        }
        NumbersPerPosition {
            values: passed + factors,
            gradients: passed,
        }
    }
}

/// Largest bytes of any block, by kind.
struct BlockBytes {
    /// Values at the positions of a call.
    values: u64,
    gradients: u64,
    /// Decoded weights.
    weights: u64,
    /// Second moments of the gradients.
    sums: u64,
    /// Residual stream at the positions of a call.
    stream: u64,
}

impl BlockBytes {
    fn estimate(spec: &ModelSpec, context: usize) -> BlockBytes {
        let positions = windows_at_a_time(spec, context).saturating_mul(context);
        let most = |of: &dyn Fn(&BlockSpec) -> u64| spec.blocks.iter().map(of).max().unwrap_or(0);
        let numbers = |block: &BlockSpec| NumbersPerPosition::count(block, spec.width);
        let of_projections = |block: &BlockSpec, of: fn(&Projection) -> u64| {
            block.projections().map(of).fold(0, u64::saturating_add)
        };
        let weights = |p: &Projection| floats(p.rows, p.cols);
        BlockBytes {
            values: most(&|block| floats(positions, numbers(block).values)),
            gradients: most(&|block| floats(positions, numbers(block).gradients)),
            weights: most(&|block| of_projections(block, weights)),
            sums: most(&|block| of_projections(block, |p| OutputSums::bytes(p.rows))),
            stream: floats(positions, spec.width),
        }
    }

    /// Returns the bytes of a layer between its forward and its backward pass.
    fn layer(&self) -> u64 {
        self.values.saturating_add(self.weights)
    }
}

/// Returns the bytes of a matrix in float32.
fn floats(rows: usize, cols: usize) -> u64 {
    4 * (rows as u64).saturating_mul(cols as u64)
}

/// Returns the bytes that [`gradients`](super::gradients) takes: the values and the streams before
/// and after a block all the time, and either a layer's gradients, weights and sums or the head.
pub(crate) fn needed_memory(hyper: &HyperParameters, spec: &ModelSpec, context: usize) -> u64 {
    let kept = BlockBytes::estimate(spec, context);
    // With the rows being written to a file.
    let layer = [kept.gradients, kept.weights, kept.sums, kept.stream];
    let layer = layer.into_iter().fold(0, u64::saturating_add);
    let head = head::memory(hyper.vocabulary, hyper.width);
    let constant = kept.values.saturating_add(2 * kept.stream);
    constant.saturating_add(layer.max(head))
}

/// Returns the bytes that a [`Distillation`](super::distil::Distillation) takes without the streams
/// of its windows: the values, the gradients and the kept layers all the time, and either a layer's
/// weights or the heads of both models.
pub(crate) fn distillation_memory(
    hyper: &HyperParameters,
    spec: &ModelSpec,
    context: usize,
) -> u64 {
    let kept = BlockBytes::estimate(spec, context);
    let heads = head::memory(hyper.vocabulary, hyper.width).saturating_mul(2);
    let passes = kept.values.saturating_add(kept.gradients);
    let layers = kept_layers(spec, context) as u64 * kept.layer();
    passes
        .saturating_add(layers)
        .saturating_add(kept.weights.max(heads))
}

/// Returns the number of layers that a distillation keeps from the forward pass for the backward
/// pass. None with experts, whose numbers vary from text to text.
pub(crate) fn kept_layers(spec: &ModelSpec, context: usize) -> usize {
    let mut steps = spec.blocks.iter().flat_map(|block| &block.steps);
    if steps.any(|step| matches!(step, Step::Experts(_))) {
        return 0;
    }
    let layer = BlockBytes::estimate(spec, context).layer().max(1);
    spec.blocks.len().min((MAX_KEPT_BYTES / layer) as usize)
}

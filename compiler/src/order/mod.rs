//! Channel permutation of a stored model, which leaves its function unchanged: of the residual
//! stream, the hidden units and the value channels of a head.
//!
//! Later columns compensate the errors of earlier ones, so the most important come first;
//! neighbours that share a scale or a bit width are similar. Queries and keys are unchanged, since
//! the rotary embedding distinguishes their channels.

mod error;
mod find;
mod ordered;

use htc_formats::htz::Digest;
use htc_formats::model::{ActivationPoint, MatrixId, Part, ProjectionKind, Role};

use crate::calibrate::{CalibratedInput, StoredMoment};

pub use error::MakeError;
pub use ordered::PermutedSource;

/// Permutation of a model's channels and units: lists of source indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelPermutation {
    /// `[width]`
    stream: Vec<u32>,
    layers: Vec<LayerPermutation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LayerPermutation {
    /// `[ffn]`; of experts instead, one after the other, in a mixture.
    hidden: Vec<Vec<u32>>,
    /// `[kv_heads · head_size]`, each within its head.
    values: Vec<u32>,
    /// `[heads · head_size]`: inputs of O.
    heads: Vec<u32>,
}

/// Permutations of a tensor's rows and columns; `None` for the identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AxisPermutations<'a> {
    /// Rows.
    pub rows: Option<&'a [u32]>,
    /// Columns.
    pub cols: Option<&'a [u32]>,
}

impl ChannelPermutation {
    /// Returns the permutation of an input.
    pub fn inputs(&self, place: CalibratedInput) -> &[u32] {
        match place {
            CalibratedInput::Head => &self.stream,
            CalibratedInput::Site { layer, site } => match site {
                ActivationPoint::Attention
                | ActivationPoint::Ffn
                | ActivationPoint::ExpertInput(_) => &self.stream,
                ActivationPoint::AttentionOutput => &self.layers[layer].heads,
                ActivationPoint::FfnHidden => self.hidden(layer, 0),
                ActivationPoint::ExpertHidden(expert) => self.hidden(layer, expert),
            },
        }
    }

    fn hidden(&self, layer: usize, network: u16) -> &[u32] {
        &self.layers[layer].hidden[usize::from(network)]
    }

    /// Returns the permutation of a matrix' outputs (of an embedding, its rows' elements).
    pub fn outputs(&self, matrix: MatrixId) -> Option<&[u32]> {
        match matrix {
            MatrixId::Head => None,
            MatrixId::Embedding => Some(&self.stream),
            MatrixId::Projection { layer, projection } => match projection {
                ProjectionKind::Q | ProjectionKind::K | ProjectionKind::Router => None,
                ProjectionKind::V => Some(&self.layers[layer].values),
                ProjectionKind::O | ProjectionKind::Down | ProjectionKind::ExpertDown(_) => {
                    Some(&self.stream)
                }
                ProjectionKind::Gate | ProjectionKind::Up => Some(self.hidden(layer, 0)),
                ProjectionKind::ExpertGate(expert) | ProjectionKind::ExpertUp(expert) => {
                    Some(self.hidden(layer, expert))
                }
            },
        }
    }

    /// Returns the permutations of the rows and columns of a source tensor.
    pub fn axes(&self, role: Role) -> AxisPermutations<'_> {
        let cols = |cols| AxisPermutations { rows: None, cols };
        let stream = || cols(Some(&self.stream[..]));
        match role {
            Role::TokenEmbedding
            | Role::Output
            | Role::OutputNorm
            | Role::AttentionNorm { .. }
            | Role::PostAttentionNorm { .. }
            | Role::FfnNorm { .. }
            | Role::PostFfnNorm { .. } => stream(),
            Role::Linear {
                layer,
                projection,
                part,
            } => {
                let site = projection.input();
                let read = Some(self.inputs(CalibratedInput::Site { layer, site }));
                let given = self.outputs(MatrixId::Projection { layer, projection });
                match part {
                    Part::Weight => AxisPermutations {
                        rows: given,
                        cols: read,
                    },
                    Part::Bias => cols(given),
                    Part::A | Part::B | Part::Projected | Part::ResidualA | Part::ResidualB => {
                        AxisPermutations::default()
                    }
                }
            }
            Role::Refinement { matrix } => self.axes(matrix.weight()),
            Role::QueryNorm { .. }
            | Role::KeyNorm { .. }
            | Role::RopeFactors
            | Role::LongRopeFactors
            | Role::Basis { .. }
            | Role::KvBasis { .. }
            | Role::KvEnergies { .. }
            | Role::OutputFactor { .. } => AxisPermutations::default(),
        }
    }

    /// Returns the digest of all indices, each as four little-endian bytes.
    pub fn digest(&self) -> Digest {
        let of_layers = self.layers.iter();
        let of_layers = of_layers.flat_map(|of| of.hidden.iter().chain([&of.values, &of.heads]));
        let all = [&self.stream].into_iter().chain(of_layers).flatten();
        let bytes: Vec<u8> = all.flat_map(|place| place.to_le_bytes()).collect();
        Digest::of_bytes(&bytes)
    }
}

/// Permutes numbers.
pub fn permuted<T: Copy>(values: &[T], order: &[u32]) -> Vec<T> {
    order.iter().map(|&from| values[from as usize]).collect()
}

/// Permutes a moment.
pub fn permuted_moment(moment: &StoredMoment, order: &[u32]) -> StoredMoment {
    StoredMoment {
        count: moment.count,
        mean: permuted(&moment.mean, order),
        second: permuted_triangle(&moment.second, order),
    }
}

/// Permutes a symmetric matrix `[n, n]`, lower triangle.
pub fn permuted_lower(values: &[f64], order: &[u32]) -> Vec<f64> {
    let n = order.len();
    let mut found = vec![0.0; n * n];
    for (row, (to, &a)) in found.chunks_exact_mut(n.max(1)).zip(order).enumerate() {
        for (to, &b) in to.iter_mut().zip(&order[..=row]) {
            *to = values[a.max(b) as usize * n + a.min(b) as usize];
        }
    }
    found
}

/// Permutes rows and columns of a symmetric matrix, given as its packed lower triangle.
pub(crate) fn permuted_triangle<T: Copy>(lower: &[T], order: &[u32]) -> Vec<T> {
    let mut found = Vec::with_capacity(lower.len());
    for (row, &a) in order.iter().enumerate() {
        found.extend(order[..=row].iter().map(|&b| {
            let (high, low) = (a.max(b) as usize, a.min(b) as usize);
            lower[high * (high + 1) / 2 + low]
        }));
    }
    found
}

#[cfg(test)]
mod tests;

//! Channel permutation of a stored model, which leaves its function unchanged.
//!
//! The channels of the residual stream, the hidden units of a feed-forward network and the value
//! channels of a head can be permuted if all writers and readers agree. Later columns compensate
//! the errors of earlier ones, so the most important come first; neighbours that share a scale or a
//! bit width are similar.
//!
//! [`Order::of`] computes the permutation, [`Ordered`] permutes the tensors of a source,
//! [`Order::inputs`] and [`Order::outputs`] are for statistics. Queries and keys are unchanged,
//! since the rotary embedding distinguishes their channels.

mod find;
mod ordered;

use htc_formats::htz::Digest;
use htc_formats::model::{MatrixId, Part, Role, Site, Slot};

use crate::calibrate::{Moment, Place};

pub use find::FindError;
pub use ordered::{DecodeError, OrderError, Ordered};

/// Permutation of a model's channels and units: lists of source indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// `[width]`: channels of the residual stream.
    stream: Vec<u32>,
    layers: Vec<OfLayer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OfLayer {
    /// `[ffn]`: hidden units.
    hidden: Vec<u32>,
    /// `[kv_heads · head_size]`: value channels, each within its head.
    values: Vec<u32>,
    /// `[heads · head_size]`: inputs of O, equal for all query heads of a value head.
    heads: Vec<u32>,
}

/// Permutations of a tensor's rows and columns; `None` for the identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Axes<'a> {
    /// Rows.
    pub rows: Option<&'a [u32]>,
    /// Columns.
    pub cols: Option<&'a [u32]>,
}

impl Order {
    /// Returns the permutation of an input.
    pub fn inputs(&self, place: Place) -> &[u32] {
        match place {
            Place::Head => &self.stream,
            Place::Site { layer, site } => match site {
                Site::Attention | Site::Ffn => &self.stream,
                Site::AttentionOutput => &self.layers[layer].heads,
                Site::FfnHidden => &self.layers[layer].hidden,
            },
        }
    }

    /// Returns the permutation of a matrix' outputs (of an embedding, its rows' elements); `None`
    /// for the identity.
    pub fn outputs(&self, matrix: MatrixId) -> Option<&[u32]> {
        match matrix {
            MatrixId::Head => None,
            MatrixId::Embedding => Some(&self.stream),
            MatrixId::Slot { layer, slot } => match slot {
                Slot::Q | Slot::K => None,
                Slot::V => Some(&self.layers[layer].values),
                Slot::O | Slot::Down => Some(&self.stream),
                Slot::Gate | Slot::Up => Some(&self.layers[layer].hidden),
            },
        }
    }

    /// Returns the permutations of the rows and columns of a source tensor.
    pub fn axes(&self, role: Role) -> Axes<'_> {
        let cols = |cols| Axes { rows: None, cols };
        let stream = || cols(Some(&self.stream[..]));
        match role {
            Role::TokenEmbedding
            | Role::Output
            | Role::OutputNorm
            | Role::AttentionNorm { .. }
            | Role::PostAttentionNorm { .. }
            | Role::FfnNorm { .. }
            | Role::PostFfnNorm { .. } => stream(),
            Role::Linear { layer, slot, part } => {
                let site = slot.site();
                let read = Some(self.inputs(Place::Site { layer, site }));
                let given = self.outputs(MatrixId::Slot { layer, slot });
                match part {
                    Part::Weight => Axes {
                        rows: given,
                        cols: read,
                    },
                    Part::Bias => cols(given),
                    Part::A | Part::B | Part::Projected | Part::ResidualA | Part::ResidualB => {
                        Axes::default()
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
            | Role::OutputFactor { .. } => Axes::default(),
        }
    }

    /// Returns the digest of all indices, each as four little-endian bytes.
    pub fn digest(&self) -> Digest {
        let of_layers = self.layers.iter();
        let of_layers = of_layers.flat_map(|of| [&of.hidden, &of.values, &of.heads]);
        let all = [&self.stream].into_iter().chain(of_layers).flatten();
        let bytes: Vec<u8> = all.flat_map(|place| place.to_le_bytes()).collect();
        Digest::of(&bytes)
    }
}

/// Permutes numbers.
pub fn reordered<T: Copy>(values: &[T], order: &[u32]) -> Vec<T> {
    order.iter().map(|&from| values[from as usize]).collect()
}

/// Permutes a moment.
pub fn reordered_moment(moment: &Moment, order: &[u32]) -> Moment {
    Moment {
        count: moment.count,
        mean: reordered(&moment.mean, order),
        second: reordered_triangle(&moment.second, order),
    }
}

/// Permutes rows and columns of a symmetric matrix `[n, n]`, lower triangle.
pub fn reordered_lower(values: &[f64], order: &[u32]) -> Vec<f64> {
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
pub(crate) fn reordered_triangle<T: Copy>(lower: &[T], order: &[u32]) -> Vec<T> {
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

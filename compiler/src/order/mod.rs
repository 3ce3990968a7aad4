//! The order in which a model is stored: a permutation of it that computes the same.
//!
//! Nothing tells the channels of the residual stream from each other, nor the hidden units of a feed-forward
//! network, nor the channels that a head reads of its values. So each of these may be stored in any order, as long as
//! everything that writes them and everything that reads them agree. Codes with feedback gain by one: a column
//! can make up for the errors of those before it, so the columns that matter most come first, and neighbours that
//! share a scale or a number of bits matter alike.
//!
//! [`Order::of`] finds the order in the weights and in what calibration saw. It is folded into what is stored: [`Ordered`] gives the tensors
//! of a source as they are stored, [`Order::inputs`] and [`Order::outputs`] the order of statistics of
//! what a matrix reads and gives. Nothing is left of it when the model is executed. Queries and keys stay as
//! they are: the rotary embedding tells their channels from each other.

mod find;
mod ordered;

use htc_formats::htz::Digest;
use htc_formats::model::{MatrixId, Part, Role, Site, Slot};

use crate::calibrate::{Moment, Place};

pub use find::FindError;
pub use ordered::{DecodeError, OrderError, Ordered};

/// Where a model's channels and units are stored. Of every list, the entry at a place is the place that what is stored
/// there has in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// `[width]`: the channels of the residual stream.
    stream: Vec<u32>,
    layers: Vec<OfLayer>,
}

/// What differs from layer to layer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OfLayer {
    /// `[ffn]`: the hidden units.
    hidden: Vec<u32>,
    /// `[kv_heads · head_size]`: the channels of values, each within its head.
    values: Vec<u32>,
    /// `[heads · head_size]`: what O reads, the same for every query head of a value head.
    heads: Vec<u32>,
}

/// The order of a tensor's rows and columns; `None` where they are as in the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Axes<'a> {
    /// Of rows.
    pub rows: Option<&'a [u32]>,
    /// Of columns.
    pub cols: Option<&'a [u32]>,
}

impl Order {
    /// The order of what is read in a place.
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

    /// The order of what a matrix gives, of an embedding the row that is looked up; `None` where that is as in the source.
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

    /// The order of the rows and columns of a tensor of a source.
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
                    // A source has no factors; they are made of weights that are in order.
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

    /// What names it: the digest of all places, each as four bytes, little-endian, the stream first, then layer by
    /// layer hidden units, values, and what O reads.
    pub fn digest(&self) -> Digest {
        let of_layers = self.layers.iter();
        let of_layers = of_layers.flat_map(|of| [&of.hidden, &of.values, &of.heads]);
        let all = [&self.stream].into_iter().chain(of_layers).flatten();
        let bytes: Vec<u8> = all.flat_map(|place| place.to_le_bytes()).collect();
        Digest::of(&bytes)
    }
}

/// Numbers in another order.
pub fn reordered<T: Copy>(values: &[T], order: &[u32]) -> Vec<T> {
    order.iter().map(|&from| values[from as usize]).collect()
}

/// The moment of vectors in another order.
pub fn reordered_moment(moment: &Moment, order: &[u32]) -> Moment {
    Moment {
        count: moment.count,
        mean: reordered(&moment.mean, order),
        second: reordered_triangle(&moment.second, order),
    }
}

/// A symmetric matrix `[n, n]`, of which the lower triangle is read, with rows and columns in another order; above the
/// diagonal zero.
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

/// A symmetric matrix, its lower triangle row by row, with rows and columns in another order.
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

//! Input columns that stay exact: each is a row of the identity times the column itself, before
//! the components of the other columns.

use super::sink::Sink;
use super::{FactoriseError, Weight};

/// Exempt columns of a factorisation, and the others.
pub(super) struct ExemptColumns<'a> {
    exempt: &'a [usize],
    /// The columns that are factorised.
    pub others: Vec<usize>,
    /// Rank of their factors.
    pub rank: usize,
    inputs: usize,
}

impl<'a> ExemptColumns<'a> {
    /// Checks the columns for factors of rank `rank`.
    pub fn new(exempt: &'a [usize], inputs: usize, rank: usize) -> Result<Self, FactoriseError> {
        let mut next = 0;
        for &channel in exempt {
            if channel < next || channel >= inputs {
                return Err(FactoriseError::ExemptChannel { channel, inputs });
            }
            next = channel + 1;
        }
        let requested = exempt.len();
        let of_others = rank.checked_sub(requested).ok_or(FactoriseError::Rank {
            requested,
            largest: rank,
        })?;
        let others = (0..inputs).filter(|c| exempt.binary_search(c).is_err());
        Ok(ExemptColumns {
            exempt,
            others: others.collect(),
            rank: of_others,
            inputs,
        })
    }

    /// Returns the other columns of a weight, row-major.
    pub fn others_of(&self, weight: Weight<'_>) -> Vec<f32> {
        let rows = weight.values.chunks_exact(self.inputs);
        rows.flat_map(|row| self.others.iter().map(|&c| row[c]))
            .collect()
    }

    /// Returns the direction of a sink in the other columns, unless it is zero there.
    pub fn direction(&self, sink: Option<Sink<'_>>) -> Option<Vec<f64>> {
        let direction = sink?.direction;
        let direction: Vec<f64> = self.others.iter().map(|&c| direction[c]).collect();
        direction.iter().any(|v| *v != 0.0).then_some(direction)
    }

    /// Returns the factor `[r, in]` from that of the other columns.
    pub fn input_factor(&self, rest: &[f32]) -> Vec<f32> {
        let (t, n) = (self.exempt.len(), self.inputs);
        let mut factor = vec![0.0; (t + self.rank) * n];
        for (row, &channel) in self.exempt.iter().enumerate() {
            factor[row * n + channel] = 1.0;
        }
        let rows = rest.chunks_exact(self.others.len().max(1));
        for (to, row) in factor[t * n..].chunks_exact_mut(n).zip(rows) {
            for (&channel, &value) in self.others.iter().zip(row) {
                to[channel] = value;
            }
        }
        factor
    }

    /// Returns the factor `[out, r]` of a weight from that of the other columns.
    pub fn output_factor(&self, weight: Weight<'_>, rest: &[f32]) -> Vec<f32> {
        let mut factor = Vec::with_capacity(weight.rows * (self.exempt.len() + self.rank));
        for (o, row) in weight.values.chunks_exact(self.inputs).enumerate() {
            factor.extend(self.exempt.iter().map(|&c| row[c]));
            factor.extend(&rest[o * self.rank..][..self.rank]);
        }
        factor
    }
}

//! Moments of the inputs of experts, which read only the rows that a router sends them.
//!
//! The second moment of `n` rows with `n` below the number of inputs is singular, and an expert may
//! see no row at all. The moments of experts are therefore shrunk, `(n C + k P) / (n + k)`, towards
//! a prior `P` that counts as `k` rows, an eighth of the number of inputs:
//!
//! - for the input of gate and up, `P` is the moment of the rows of all experts. That is the moment
//!   at all positions, since every position is sent to the same number of experts;
//! - hidden units of different experts have nothing in common, so that for the input of down `P`
//!   is the mean energy of the hidden units of all experts, alike and uncorrelated.

use htc_formats::model::ActivationPoint;

use super::moments::{MomentSums, diagonal_index};
use super::statistics::SiteSums;

/// Mean and second moment, in float64.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// Number of vectors.
    pub count: u64,
    /// `E[x]`.
    pub mean: Vec<f64>,
    /// Lower triangle of `E[x xᵀ]`, row by row.
    pub second: Vec<f64>,
}

impl Moment {
    fn new(sums: &MomentSums) -> Moment {
        Moment {
            count: sums.count(),
            mean: sums.mean(),
            second: sums.second_moment(),
        }
    }

    fn uncorrelated(energy: f64, order: usize) -> Moment {
        let mut second = vec![0.0; order * (order + 1) / 2];
        for i in 0..order {
            second[diagonal_index(i)] = energy;
        }
        Moment {
            count: 0,
            mean: vec![0.0; order],
            second,
        }
    }

    /// Returns the moment shrunk towards a prior that counts as `rows` vectors.
    fn shrunk(mut self, prior: &Moment, rows: u64) -> Moment {
        let share = rows as f64 / (self.count + rows) as f64;
        let mix = |own: &mut [f64], prior: &[f64]| {
            for (own, prior) in own.iter_mut().zip(prior) {
                *own += share * (prior - *own);
            }
        };
        mix(&mut self.mean, &prior.mean);
        mix(&mut self.second, &prior.second);
        self
    }
}

/// Returns the number of rows that the prior of a moment of `order` inputs counts as.
pub fn prior_rows(order: usize) -> u64 {
    (order as u64 / 8).max(1)
}

/// Calls `store` with the moments of all inputs of a layer, those of experts shrunk.
///
/// # Errors
/// Those of `store`.
pub fn for_each_moment<E>(
    sites: &[SiteSums],
    mut store: impl FnMut(&Moment) -> Result<(), E>,
) -> Result<(), E> {
    let mut of_inputs = None;
    let mut of_hidden = None;
    for SiteSums { point, moments } in sites {
        let own = Moment::new(moments);
        let order = own.mean.len();
        let own = match point {
            ActivationPoint::ExpertInput(_) => {
                match of_inputs.get_or_insert_with(|| prior_of_inputs(sites)) {
                    Some(prior) => own.shrunk(prior, prior_rows(order)),
                    None => own,
                }
            }
            ActivationPoint::ExpertHidden(_) => {
                let prior = of_hidden.get_or_insert_with(|| prior_of_hidden(sites, order));
                own.shrunk(prior, prior_rows(order))
            }
            _ => own,
        };
        store(&own)?;
    }
    Ok(())
}

fn prior_of_inputs(sites: &[SiteSums]) -> Option<Moment> {
    let pooled = sites.iter().find(|site| site.point == ActivationPoint::Ffn);
    pooled.map(|pooled| Moment::new(&pooled.moments))
}

fn prior_of_hidden(sites: &[SiteSums], order: usize) -> Moment {
    let (mut energy, mut weight) = (0.0, 0.0);
    for SiteSums { point, moments } in sites {
        if matches!(point, ActivationPoint::ExpertHidden(_)) && moments.count() > 0 {
            energy += moments.weight() * moments.trace();
            weight += moments.weight();
        }
    }
    let mean = if weight > 0.0 {
        energy / weight / order.max(1) as f64
    } else {
        0.0
    };
    Moment::uncorrelated(mean, order)
}

#[cfg(test)]
mod tests;

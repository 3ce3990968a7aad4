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

use super::moments::MomentSums;
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
            second[i * (i + 3) / 2] = energy;
        }
        Moment {
            count: 0,
            mean: vec![0.0; order],
            second,
        }
    }

    fn trace(&self) -> f64 {
        let diagonal = (0..self.mean.len()).map(|i| self.second[i * (i + 3) / 2]);
        diagonal.sum()
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
                let prior = of_inputs.get_or_insert_with(|| prior_of_inputs(sites, order));
                own.shrunk(prior, prior_rows(order))
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

fn prior_of_inputs(sites: &[SiteSums], order: usize) -> Moment {
    let pooled = sites.iter().find(|site| site.point == ActivationPoint::Ffn);
    pooled.map_or_else(
        || Moment::uncorrelated(0.0, order),
        |pooled| Moment::new(&pooled.moments),
    )
}

fn prior_of_hidden(sites: &[SiteSums], order: usize) -> Moment {
    let (mut energy, mut weight) = (0.0, 0.0);
    for SiteSums { point, moments } in sites {
        if matches!(point, ActivationPoint::ExpertHidden(_)) && moments.count() > 0 {
            energy += moments.weight() * Moment::new(moments).trace();
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
mod tests {
    use htc_kernels::cpu::Cpu;

    use super::*;
    use crate::system::random::Rng;

    fn site(point: ActivationPoint, x: &[f32], order: usize) -> SiteSums {
        let mut moments = MomentSums::new(order);
        moments.add(&Cpu::with_threads(1).unwrap(), x);
        SiteSums { point, moments }
    }

    fn moments(sites: &[SiteSums]) -> Vec<Moment> {
        let mut found = Vec::new();
        let stored = for_each_moment(sites, |moment| {
            found.push(moment.clone());
            Ok::<(), ()>(())
        });
        assert_eq!(stored, Ok(()));
        found
    }

    /// Direct sums over the rows, with `k` rows of the prior.
    #[test]
    fn moments_of_experts_include_rows_of_the_prior() {
        let (order, hidden) = (24, 16);
        let mut random = Rng(4);
        let mut normal =
            |n: usize| -> Vec<f32> { (0..n).map(|_| random.normal() as f32).collect() };
        let (all, rows) = (normal(40 * order), normal(30 * hidden));
        let sites = [
            site(ActivationPoint::Ffn, &all, order),
            site(ActivationPoint::ExpertInput(0), &all[..9 * order], order),
            site(
                ActivationPoint::ExpertHidden(0),
                &rows[..20 * hidden],
                hidden,
            ),
            site(ActivationPoint::ExpertInput(1), &[], order),
            site(
                ActivationPoint::ExpertHidden(1),
                &rows[20 * hidden..],
                hidden,
            ),
        ];
        let found = moments(&sites);
        let second = |x: &[f32], order: usize, i: usize, j: usize| -> f64 {
            let products = x.chunks_exact(order);
            products.map(|x| f64::from(x[i]) * f64::from(x[j])).sum()
        };
        let energy: f64 = rows.iter().map(|x| f64::from(x * x)).sum();
        let energy = energy / rows.len() as f64;
        assert_eq!(prior_rows(order), 3);
        assert_eq!(prior_rows(hidden), 2);
        let counts: Vec<u64> = found.iter().map(|moment| moment.count).collect();
        assert_eq!(counts, [40, 9, 20, 0, 10]);
        for i in 0..order {
            for j in 0..=i {
                let at = i * (i + 1) / 2 + j;
                let pooled = second(&all, order, i, j) / 40.0;
                let own = second(&all[..9 * order], order, i, j);
                let expected = (own + 3.0 * pooled) / 12.0;
                assert!((found[0].second[at] - pooled).abs() < 1e-6);
                assert!((found[1].second[at] - expected).abs() < 1e-6);
                // An expert without rows has the moment of all.
                assert!((found[3].second[at] - pooled).abs() < 1e-6);
            }
        }
        for i in 0..hidden {
            for j in 0..=i {
                let at = i * (i + 1) / 2 + j;
                let prior = if i == j { energy } else { 0.0 };
                let own = second(&rows[..20 * hidden], hidden, i, j);
                let expected = (own + 2.0 * prior) / 22.0;
                assert!((found[2].second[at] - expected).abs() < 1e-6);
            }
        }
        let mean: f64 = all[..9 * order]
            .iter()
            .step_by(order)
            .map(|x| f64::from(*x))
            .sum();
        let pooled: f64 = all.iter().step_by(order).map(|x| f64::from(*x)).sum();
        let expected = (mean + 3.0 * pooled / 40.0) / 12.0;
        assert!((found[1].mean[0] - expected).abs() < 1e-6);
    }

    #[test]
    fn dense_moments_are_not_shrunk() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let sites = [site(ActivationPoint::FfnHidden, &x, 2)];
        let found = moments(&sites);
        assert_eq!(found[0].mean, [2.0, 3.0]);
        assert_eq!(found[0].second, [5.0, 7.0, 10.0]);
    }
}

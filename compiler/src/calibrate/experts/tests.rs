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
    let mut normal = |n: usize| -> Vec<f32> { (0..n).map(|_| random.normal() as f32).collect() };
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

#[test]
fn experts_without_a_pooled_moment_are_not_shrunk() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let found = moments(&[site(ActivationPoint::ExpertInput(0), &x, 2)]);
    assert_eq!(found[0].mean, [2.0, 3.0]);
    assert_eq!(found[0].second, [5.0, 7.0, 10.0]);
}

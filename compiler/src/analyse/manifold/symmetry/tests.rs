use super::*;
use crate::system::random::Rng;

fn axes(n: usize, axes: &[usize]) -> Mat<f64> {
    Mat::from_fn(n, axes.len(), |i, j| f64::from(u8::from(i == axes[j])))
}

#[test]
fn equal_heads_are_found_in_any_basis() {
    let turned = {
        let (cos, sin) = (30f64.to_radians().cos(), 30f64.to_radians().sin());
        let mut turned = Mat::zeros(16, 2);
        (turned[(0, 0)], turned[(1, 0)]) = (cos, sin);
        (turned[(0, 1)], turned[(1, 1)]) = (-sin, cos);
        turned
    };
    let heads = [
        axes(16, &[0, 1]),
        axes(16, &[2, 3]),
        turned,
        axes(16, &[1, 2]),
    ];
    let found = compare("keys", &heads).unwrap();
    assert_eq!((found.pairs, found.near_equal, found.undecided), (6, 1, 0));
    let pair = found.closest[0];
    assert_eq!((pair.a, pair.b, pair.cosine), (0, 2, 1.0));
    assert!((pair.chance - (2.0f64 / 16.0).sqrt()).abs() < 1e-5);
    assert_eq!(found.dimensions, [2, 2, 2, 2]);
    let half = mean_cosine(&heads[1], &heads[3]).unwrap();
    assert!((half - 0.5).abs() < 1e-12);
}

#[test]
fn subspaces_that_fill_the_head_are_undecided() {
    let heads = [axes(8, &[0, 1, 2, 3, 4, 5, 6, 7]), axes(8, &[0])];
    let found = compare("values", &heads).unwrap();
    assert_eq!((found.pairs, found.near_equal, found.undecided), (1, 0, 1));
    assert_eq!(mean_cosine(&Mat::zeros(8, 0), &heads[0]).unwrap(), 0.0);
}

#[test]
fn a_subspace_holds_nine_tenths_of_the_energy() {
    let mut second = Vec::new();
    for (row, energy) in [5.0, 4.2, 0.5, 0.3].into_iter().enumerate() {
        second.extend((0..row).map(|_| 0.0));
        second.push(energy);
    }
    let moment = StoredMoment {
        count: 9,
        mean: vec![0.0; 4],
        second,
    };
    assert_eq!(subspace(&moment).unwrap().ncols(), 2);
}

#[test]
fn random_subspaces_stay_below_the_chance_bound() {
    let mut random = Rng(2);
    let mut random_subspace = |k: usize| {
        let normal = Mat::from_fn(64, k, |_, _| random.normal());
        normal.qr().compute_thin_Q()
    };
    let mut mean = 0.0;
    for _ in 0..20 {
        let (a, b) = (random_subspace(8), random_subspace(16));
        mean += mean_cosine(&a, &b).unwrap() / 20.0;
    }
    let chance = (16.0f64 / 64.0).sqrt();
    assert!(mean < chance && mean > 0.9 * chance, "{mean} {chance}");
}

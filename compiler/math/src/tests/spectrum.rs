use super::super::{
    Gauge, Host, LowRankOptions, SvdMethod, Weight, gauged_singular_values, low_rank_with,
    singular_values, weighted_energies,
};
use super::gauge::Moment;
use super::{Dense, close};

fn problem(rows: usize, cols: usize, seed: u64) -> (Dense, Moment) {
    let falls = |i: usize| 10f64.powf(-(i as f64) / 8.0);
    let spectrum: Vec<f64> = (0..rows.min(cols)).map(falls).collect();
    let weight = Dense::with_spectrum(rows, cols, &spectrum, seed);
    (weight, Moment::new(cols, seed + 1))
}

#[test]
fn values_are_those_of_the_decomposition() {
    for (rows, cols) in [(30, 40), (40, 30), (20, 20)] {
        let (weight, moment) = problem(rows, cols, 5);
        let gauge = Gauge::whiten(moment.as_second_moment(), 0.0).unwrap();
        let options = LowRankOptions {
            method: SvdMethod::Svd,
            input: &gauge,
            ..LowRankOptions::default()
        };
        let exact = low_rank_with(weight.weight(), 1, &options).unwrap();
        let found = gauged_singular_values(weight.weight(), &gauge, &Host).unwrap();
        assert_eq!(found.len(), rows.min(cols));
        let largest = exact.singular_values[0];
        for (found, exact) in found.iter().zip(&exact.singular_values) {
            close(*found, *exact, 1e-6 * largest);
        }
        let plain = singular_values(weight.weight(), &Host).unwrap();
        assert!(plain.windows(2).all(|pair| pair[0] >= pair[1]));
    }
}

#[test]
fn spectrum_of_some_rows_bounds_their_loss_in_any_approximation() {
    let (rows, cols, seen) = (48, 36, 14);
    let (weight, moment) = problem(rows, cols, 9);
    let gauge = Gauge::whiten(moment.as_second_moment(), 0.0).unwrap();
    let options = LowRankOptions {
        method: SvdMethod::Svd,
        input: &gauge,
        ..LowRankOptions::default()
    };
    let largest = rows.min(cols);
    let whole = low_rank_with(weight.weight(), largest, &options).unwrap();
    let indices: Vec<usize> = (0..seen).map(|i| 3 * i).collect();
    let counts = |i: usize| (1.0 + 0.3 * i as f32).sqrt();
    let some: Vec<f32> = indices
        .iter()
        .enumerate()
        .flat_map(|(i, &row)| {
            let row = &weight.values[row * cols..(row + 1) * cols];
            row.iter().map(move |w| w * counts(i))
        })
        .collect();
    let some = Weight {
        rows: seen,
        cols,
        values: &some,
    };
    let values = gauged_singular_values(some, &gauge, &Host).unwrap();
    let energy: f64 = values.iter().map(|v| v * v).sum();
    for k in 1..seen {
        let a = &whole.a[..k * cols];
        let b: Vec<f32> = indices
            .iter()
            .enumerate()
            .flat_map(|(i, &row)| {
                let row = &whole.b[row * largest..][..k];
                row.iter().map(move |w| w * counts(i))
            })
            .collect();
        let lost = weighted_energies(some, a, &b, k, moment.as_second_moment()).error;
        let bound: f64 = values[k..].iter().map(|v| v * v).sum();
        assert!(bound <= lost + 1e-6 * energy, "{k}: {bound} {lost}");
    }
}

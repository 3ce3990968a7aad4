use std::collections::HashMap;
use std::path::PathBuf;

use super::super::{
    ErrorEnergies, SecondMoment, Weight, dense_energies, low_rank_error, relative_tail,
    shared_error, weighted_dense_energies, weighted_row_errors,
};
use super::gauge::Moment;
use super::{Dense, close, matrix, norm, weighted_relative_error};

#[test]
fn error_of_a_product_of_small_integers_is_exact() {
    // W = B A + E with ‖E‖ = 5 and every number representable.
    let b = [1.0f32, 0.0, 2.0, 1.0, 0.0, -1.0];
    let a = [1.0f32, 2.0, 0.0, 1.0];
    let product = [1.0f32, 2.0, 2.0, 5.0, 0.0, -1.0];
    let mut w = Dense {
        rows: 3,
        cols: 2,
        values: product.to_vec(),
    };
    assert_eq!(low_rank_error(w.weight(), &a, &b, 2), 0.0);
    w.values[1] += 3.0;
    w.values[4] -= 4.0;
    let norm_squared: f32 = w.values.iter().map(|v| v * v).sum();
    assert_eq!(
        low_rank_error(w.weight(), &a, &b, 2),
        5.0 / f64::from(norm_squared).sqrt()
    );
    assert_eq!(
        shared_error(w.weight(), &a, &b, 2),
        5.0 / f64::from(norm_squared).sqrt()
    );
}

#[test]
fn error_across_tiles_equals_the_plain_computation() {
    for (m, n, r) in [(600, 530, 3), (513, 20, 40), (5, 1100, 2), (1, 1, 1)] {
        let w = Dense::normal(m, n, 1);
        let (a, b) = (Dense::normal(r, n, 2), Dense::normal(m, r, 3));
        let expected = norm(&(w.f64() - b.f64() * a.f64())) / norm(&w.f64());
        let found = low_rank_error(w.weight(), &a.values, &b.values, r);
        close(found, expected, 1e-13 * expected);
    }
}

#[test]
fn error_without_a_norm_or_with_wrong_lengths() {
    let zero = Dense::from_fn(2, 2, |_, _| 0.0);
    assert_eq!(low_rank_error(zero.weight(), &[0.0; 2], &[1.0; 2], 1), 0.0);
    assert_eq!(
        low_rank_error(zero.weight(), &[1.0; 2], &[1.0; 2], 1),
        f64::INFINITY
    );
    assert!(low_rank_error(zero.weight(), &[1.0; 3], &[1.0; 2], 1).is_nan());
    assert!(low_rank_error(zero.weight(), &[1.0; 2], &[1.0; 2], usize::MAX).is_nan());
}

#[test]
fn weighted_error_across_tiles_equals_the_plain_computation() {
    for (m, n, r) in [(600, 530, 3), (513, 20, 40), (5, 1100, 2), (1, 1, 1)] {
        let w = Dense::normal(m, n, 1);
        let (a, b) = (Dense::normal(r, n, 2), Dense::normal(m, r, 3));
        let moment = Moment::new(n, 4);
        let root = moment.power(0.5, 0.0);
        let expected = norm(&((w.f64() - b.f64() * a.f64()) * &root)) / norm(&(w.f64() * &root));
        let found = weighted_relative_error(
            w.weight(),
            &a.values,
            &b.values,
            r,
            moment.as_second_moment(),
        );
        close(found, expected, 1e-12 * expected);
    }
}

#[test]
fn weighted_error_under_the_identity_is_that_of_the_weight() {
    let (m, n, r) = (40, 30, 6);
    let w = Dense::normal(m, n, 5);
    let (a, b) = (Dense::normal(r, n, 6), Dense::normal(m, r, 7));
    let identity: Vec<f64> = (0..n * n)
        .map(|i| if i / n == i % n { 4.0 } else { 0.0 })
        .collect();
    let moment = SecondMoment {
        order: n,
        values: &identity,
    };
    let expected = low_rank_error(w.weight(), &a.values, &b.values, r);
    let found = weighted_relative_error(w.weight(), &a.values, &b.values, r, moment);
    close(found, expected, 1e-14 * expected);

    assert!(weighted_relative_error(w.weight(), &a.values, &b.values, 7, moment).is_nan());
    let narrow = SecondMoment {
        order: n - 1,
        values: &identity[..(n - 1) * (n - 1)],
    };
    assert!(weighted_relative_error(w.weight(), &a.values, &b.values, r, narrow).is_nan());
    let zero = Dense::from_fn(m, n, |_, _| 0.0);
    let none = vec![0.0; r * n];
    let find = |a: &[f32]| weighted_relative_error(zero.weight(), a, &b.values, r, moment);
    assert_eq!(find(&none), 0.0);
    assert_eq!(find(&a.values), f64::INFINITY);
}

#[test]
fn energies_of_a_dense_matrix_are_those_of_the_plain_computation_part_by_part() {
    for (m, n) in [(600, 53), (1030, 20), (1, 1)] {
        let (w, stored) = (Dense::normal(m, n, 1), Dense::normal(m, n, 2));
        let moment = Moment::new(n, 4);
        let root = moment.power(0.5, 0.0);
        let lost = w.f64() - stored.f64();
        let plain = dense_energies(w.weight(), &stored.values);
        close(plain.relative_error(), norm(&lost) / norm(&w.f64()), 1e-12);
        let output = weighted_dense_energies(w.weight(), &stored.values, moment.as_second_moment());
        close(
            output.error,
            norm(&(&lost * &root)).powi(2),
            1e-9 * output.error,
        );
        close(
            output.weight,
            norm(&(w.f64() * &root)).powi(2),
            1e-9 * output.weight,
        );
        let mut sum = ErrorEnergies::default();
        for start in (0..m).step_by(97) {
            let rows = 97.min(m - start);
            let at = start * n..(start + rows) * n;
            let values = &w.values[at.clone()];
            let part = Weight {
                rows,
                cols: n,
                values,
            };
            sum += weighted_dense_energies(part, &stored.values[at], moment.as_second_moment());
        }
        close(sum.relative_error(), output.relative_error(), 1e-12);
        let short =
            weighted_dense_energies(w.weight(), &stored.values[1..], moment.as_second_moment());
        assert!(short.relative_error().is_nan());
        let rows =
            weighted_row_errors(w.weight(), &stored.values, moment.as_second_moment()).unwrap();
        let plain = (&lost * &root)
            .as_ref()
            .row_iter()
            .map(|row| row.squared_norm_l2())
            .collect::<Vec<_>>();
        assert_eq!(rows.len(), m);
        for (found, expected) in rows.iter().zip(plain) {
            close(*found, expected, 1e-9 * output.error);
        }
        assert!(
            weighted_row_errors(w.weight(), &stored.values[1..], moment.as_second_moment())
                .is_none()
        );
    }
    let same = Dense::normal(3, 4, 5);
    assert_eq!(
        dense_energies(same.weight(), &same.values).relative_error(),
        0.0
    );
    let zero = Dense::from_fn(2, 2, |_, _| 0.0);
    assert_eq!(
        dense_energies(zero.weight(), &[0.0; 4]).relative_error(),
        0.0
    );
    assert_eq!(
        dense_energies(zero.weight(), &[1.0; 4]).relative_error(),
        f64::INFINITY
    );
}

#[test]
fn tail_of_a_pythagorean_triple() {
    let s = [12.0, 4.0, 3.0];
    close(relative_tail(&s, 0), 1.0, 0.0);
    close(relative_tail(&s, 1), 5.0 / 13.0, 1e-16);
    close(relative_tail(&s, 2), 3.0 / 13.0, 1e-16);
    assert_eq!(relative_tail(&s, 3), 0.0);
    assert_eq!(relative_tail(&s, 4), 0.0);
    assert_eq!(relative_tail(&[0.0, 0.0], 1), 0.0);
    assert_eq!(relative_tail(&[], 0), 0.0);
}

#[test]
fn tail_of_published_spectra_is_the_published_one() {
    let shared = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let read = |name: &str| std::fs::read(shared.join("targets").join(name));
    let (Ok(spectra), Ok(table)) = (read("spectra.safetensors"), read("ey_per_layer.csv")) else {
        println!("skipped: no published spectra in {}", shared.display());
        return;
    };
    let header = 8 + u64::from_le_bytes(spectra[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&spectra[8..header]).unwrap();
    let singular_values = |name: &str| -> Vec<f64> {
        let offsets: Vec<usize> =
            serde_json::from_value(json[name]["data_offsets"].clone()).unwrap();
        spectra[header + offsets[0]..header + offsets[1]]
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
            .collect()
    };
    let table = String::from_utf8(table).unwrap();
    let mut lines = table.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut compared = 0;
    for line in lines {
        let row: HashMap<&str, f64> = columns
            .iter()
            .copied()
            .zip(line.split(',').map(|v| v.parse().unwrap()))
            .collect();
        for projection in ["Q", "K", "V"] {
            let s = singular_values(&format!("layer{}.{projection}", row["layer"]));
            let found = relative_tail(&s, row["k"] as usize).powi(2);
            close(found, row[format!("{projection}_ey").as_str()], 2e-6);
            compared += 1;
        }
    }
    assert!(compared >= 36);
}

#[test]
fn helpers_agree() {
    let w = Dense::normal(3, 4, 5);
    assert_eq!(matrix(&w.values, 3, 4), w.f64());
    assert_eq!(w.transpose().f64(), w.f64().transpose().to_owned());
}

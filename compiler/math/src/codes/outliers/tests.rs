use htc_formats::bands::{Code, Codes, ColumnGroups};

use super::*;
use crate::codes::{QuantisationGuide, encode_column_groups};
use crate::random::Rng;

fn factors(rows: &[&[f32]]) -> Vec<f32> {
    let values: Vec<f32> = rows.concat();
    outlier_factors(Weight {
        rows: rows.len(),
        cols: rows[0].len(),
        values: &values,
    })
}

#[test]
fn only_a_row_beyond_the_limit_is_reduced_to_it() {
    let ordinary: &[f32] = &[1.0, -1.0];
    let far: &[f32] = &[6400.0, -6400.0];
    let at: &[f32] = &[32.0, -32.0];
    let mut rows = [ordinary; 10];
    (rows[1], rows[4]) = (far, at);
    let mut expected = [1.0; 10];
    expected[1] = 0.005;
    assert_eq!(factors(&rows), expected);
}

#[test]
fn rows_that_are_a_quarter_of_all_are_no_outliers() {
    let (ordinary, far): (&[f32], &[f32]) = (&[1.0], &[1e5]);
    assert_eq!(factors(&[ordinary, ordinary, ordinary, far]), [1.0; 4]);
    assert_eq!(factors(&[far]), [1.0]);
}

/// Reserved tokens have rows of zeros.
#[test]
fn rows_of_zeros_do_not_count() {
    let (zero, ordinary): (&[f32], &[f32]) = (&[0.0], &[1.0]);
    assert_eq!(factors(&[zero, zero, zero, zero, ordinary]), [1.0; 5]);
}

#[test]
fn outliers_are_cleared() {
    let mut values = [1.0, 2.0, 3.0, 4.0];
    clear_outliers(&[1.0, 0.5], 2, &mut values);
    assert_eq!(values, [1.0, 2.0, 0.0, 0.0]);
}

/// Root mean square error of the first `rows` rows of 256 in a trellis.
fn error(values: &[f32], rows: usize) -> f64 {
    let cols = 32;
    let codes = Codes::uniform(Code::trellis(4).unwrap(), cols).unwrap();
    let weight = Weight {
        rows: values.len() / cols,
        cols,
        values,
    };
    let bytes = encode_column_groups(&codes, weight, QuantisationGuide::default()).unwrap();
    let stored = ColumnGroups::new(&codes, weight.rows, &bytes).unwrap();
    let mut row = vec![0.0; cols];
    let mut sum = 0.0;
    for (r, exact) in values.chunks(cols).take(rows).enumerate() {
        stored.decode_row(r, &mut row).unwrap();
        let errors = exact
            .iter()
            .zip(&row)
            .map(|(w, v)| f64::from(w - v).powi(2));
        sum += errors.sum::<f64>();
    }
    (sum / (rows * cols) as f64).sqrt()
}

#[test]
fn outlier_leaves_the_codes_of_its_tile_as_good_as_without_it() {
    let mut random = Rng(7);
    let normal = |_| random.normal() as f32;
    let mut values: Vec<f32> = (0..256 * 32).map(normal).collect();
    let clean = error(&values, 255);
    // A row scale is stored in f16.
    for far in [50.0, 8.0] {
        values[255 * 32..].iter_mut().for_each(|w| *w *= far);
        let found = error(&values, 255);
        assert!(found < 1.1 * clean, "{found} against {clean} at {far}");
    }
}

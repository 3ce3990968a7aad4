use super::*;

fn vocabulary(rows: usize) -> ErrorCost {
    let h = |row: usize| 1.0 / (1.0 + (row * 7919 % rows) as f32).powf(1.3);
    ErrorCost {
        of_logits: false,
        rows: (0..rows).map(h).collect(),
        order: 1,
        moment: vec![2.0],
    }
}

#[test]
fn few_sampled_rows_estimate_the_total_cost() {
    let rows = 10_007;
    let cost = vocabulary(rows);
    let all: f64 = cost.rows.iter().map(|&h| f64::from(h)).sum();
    let every: Vec<u32> = (0..rows as u32).collect();
    let told = |chances: &[f64]| {
        let (rows, told) = systematic_sample(chances).fold((0, 0.0), |(count, sum), (row, of)| {
            (count + 1, sum + of * f64::from(cost.rows[row]))
        });
        (rows, told / all)
    };
    let even = told(&inclusion_probabilities(&[], &every, 64));
    let found = told(&inclusion_probabilities(
        std::slice::from_ref(&cost),
        &every,
        64,
    ));
    println!("of what they cost: {found:?}, rows at equal distances {even:?}");
    assert!((63..=65).contains(&found.0) && even.0 == 64);
    assert!((0.9..1.1).contains(&found.1), "{found:?}");
}

#[test]
fn full_sample_takes_each_row_once() {
    let cost = vocabulary(100);
    let every: Vec<u32> = (0..100).collect();
    let taken: Vec<(usize, f64)> =
        systematic_sample(&inclusion_probabilities(&[cost], &every, 100)).collect();
    assert_eq!(taken.len(), 100);
    assert!(taken.iter().all(|(_, of)| (0.999..1.001).contains(of)));
    assert_eq!(
        systematic_sample(&inclusion_probabilities(&[], &every[..3], 3)).count(),
        3
    );
    assert_eq!(systematic_sample(&[]).count(), 0);
}

#[test]
fn logit_errors_cost_exponentially_and_others_quadratically() {
    let sample = RowSample {
        rows: 2,
        cols: 1,
        values: vec![1.0, 3.0],
        indices: vec![4, 1],
        represented_rows: vec![1.0, 10.0],
        outliers: Vec::new(),
        sweeps: 0,
    };
    let mut cost = ErrorCost {
        of_logits: false,
        rows: vec![0.0, 0.25, 0.0, 0.0, 2.0],
        order: 1,
        moment: vec![2.0],
    };
    let stored = [0.5, 2.0];
    let plain = 2.0 * 0.25 + 10.0 * 0.25 * 1.0;
    assert!((sample.cost(&stored, &cost) - plain).abs() < 1e-6);
    cost.of_logits = true;
    let likelier = 2.0 * (0.25_f64.exp() - 1.0) + 10.0 * 0.25 * (1.0_f64.exp() - 1.0);
    assert!((sample.cost(&stored, &cost) - likelier).abs() < 1e-12);
    let far = sample.cost(&[1e6, 3.0], &cost);
    assert!(far.is_finite() && far > 1e12, "{far}");
}

/// Rotation moves errors from a column of large weights to one of large inputs.
#[test]
fn rotation_loses_where_few_columns_have_large_weights_and_small_inputs() {
    let sample = |large: f32| {
        let mut values = vec![1.0; 64];
        values[5] = large;
        RowSample {
            rows: 1,
            cols: 64,
            values,
            indices: vec![0],
            represented_rows: vec![1.0],
            outliers: Vec::new(),
            sweeps: 0,
        }
    };
    let cost = |small: f64| {
        let mut moment = vec![0.0; 64 * 64];
        (0..64).for_each(|i| moment[i * 65] = 1.0);
        moment[5 * 65] = small;
        ErrorCost {
            of_logits: false,
            rows: vec![1.0],
            order: 64,
            moment,
        }
    };
    let close = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    };
    close(sample(1.0).relative_loss_of_rotation(&[cost(1.0)]), 1.0);
    close(sample(1e3).relative_loss_of_rotation(&[cost(1.0)]), 1.0);
    let rotated = (1e6 + 31.0) / 32.0 * (31.0 + 1e-6) + 32.0;
    let plain = 1e6 * 1e-6 + 31.0 + 32.0;
    let expected = rotated / plain;
    close(
        sample(1e3).relative_loss_of_rotation(&[cost(1e-6)]),
        expected,
    );
    close(sample(1.0).relative_loss_of_rotation(&[]), 1.0);
}

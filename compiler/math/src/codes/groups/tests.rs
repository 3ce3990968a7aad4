use super::*;
use crate::SecondMoment;
use crate::random::Rng;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Rng(seed);
    (0..count).map(|_| random.normal() as f32).collect()
}

fn within(feedback: &ErrorFeedback) -> Option<GroupFeedback<'_>> {
    Some(GroupFeedback { feedback, start: 0 })
}

fn feedback() -> ErrorFeedback {
    let of = numbers(1, GROUP_COLS * 4);
    let entry = |at: usize| {
        let (i, j) = (at / GROUP_COLS, at % GROUP_COLS);
        let pairs = of[4 * i..][..4].iter().zip(&of[4 * j..]);
        let own = if i == j { 0.1 } else { 0.0 };
        pairs.map(|(a, b)| f64::from(a * b)).sum::<f64>() + own
    };
    let moment: Vec<f64> = (0..GROUP_COLS * GROUP_COLS).map(entry).collect();
    let moment = SecondMoment {
        order: GROUP_COLS,
        values: &moment,
    };
    ErrorFeedback::new(moment, 0.01).unwrap()
}

#[test]
fn best_scale_with_feedback_beats_the_scale_without() {
    let feedback = feedback();
    let within = within(&feedback);
    for bits in 2..=4 {
        let levels = CodebookEncoder::new(bits).unwrap();
        let (mut alone, mut fed) = (0.0, 0.0);
        for seed in 0..40 {
            let row: Vec<f32> = numbers(seed, GROUP_COLS)
                .iter()
                .map(|x| x * 1500.0)
                .collect();
            let group = ScaledGroup::new(1.0, &row, &row);
            let lost = |scale: u8| {
                let (codes, lost) = group.quantise(&levels, scale, within, None).unwrap();
                let errors: Vec<f64> = row
                    .iter()
                    .zip(codes)
                    .map(|(w, code)| f64::from(*w) - f64::from(scale) * f64::from(code.value))
                    .collect();
                let exact: f64 = (0..GROUP_COLS * GROUP_COLS)
                    .map(|at| {
                        let entry = f64::from(feedback.moment[at]);
                        errors[at / GROUP_COLS] * entry * errors[at % GROUP_COLS]
                    })
                    .sum();
                assert!(
                    (exact / f64::from(lost) - 1.0).abs() < 1e-2,
                    "{exact} {lost}"
                );
                exact
            };
            let (best, codes) = group.quantise_best(&levels, within);
            assert_eq!(
                codes,
                group.quantise(&levels, best, within, None).unwrap().0
            );
            let found = lost(best);
            let plain = levels.best_scale(group.targets(), Some(feedback.importance()));
            assert!(found <= lost(plain) * 1.001);
            (alone, fed) = (alone + lost(plain), fed + found);
        }
        assert!(fed < 0.9 * alone, "{bits} bits: {fed} of {alone}");
    }
}

fn slopes(feedback: &ErrorFeedback, errors: &[f64]) -> Vec<f64> {
    let column = |col: usize| {
        let entries = errors.iter().enumerate();
        let products = entries.map(|(k, e)| e * f64::from(feedback.moment[k * GROUP_COLS + col]));
        products.sum::<f64>()
    };
    (0..GROUP_COLS).map(column).collect()
}

#[test]
fn fitted_scale_is_optimal_and_updates_the_slopes() {
    let feedback = feedback();
    let mut fitted = 0;
    for seed in 0..40 {
        let row = numbers(seed, GROUP_COLS);
        let codes: Vec<f64> = row.iter().map(|w| f64::from((w * 3.0).round())).collect();
        let errors = |scale: f64| -> Vec<f64> {
            let pairs = row.iter().zip(&codes);
            pairs
                .map(|(w, code)| f64::from(*w) - code * scale / 100.0)
                .collect()
        };
        let lost = |scale: u8| -> f64 {
            let errors = errors(scale.into());
            let slopes = slopes(&feedback, &errors);
            errors.iter().zip(slopes).map(|(e, slope)| e * slope).sum()
        };
        let mut scale = 20 + (seed % 30) as u8;
        let before = scale;
        let of = |scale: u8| {
            codes
                .iter()
                .map(move |code| (code * f64::from(scale) / 100.0) as f32)
        };
        let mut values: Vec<f32> = of(scale).collect();
        let initial = slopes(&feedback, &errors(scale.into()));
        let mut found: Vec<f32> = initial.iter().map(|&slope| slope as f32).collect();
        let changed = refit_scale(
            &feedback,
            0..GROUP_COLS,
            &mut scale,
            &mut values,
            &mut found,
        );
        assert_eq!(changed, scale != before);
        fitted += usize::from(changed);
        let least = (1..=MAX_CODEBOOK_SCALE)
            .map(lost)
            .fold(f64::INFINITY, f64::min);
        assert!(lost(scale) <= least * 1.0001, "{seed}: {scale}");
        assert!(
            values
                .iter()
                .zip(of(scale))
                .all(|(a, b)| (a - b).abs() < 1e-5)
        );
        let expected = slopes(&feedback, &errors(scale.into()));
        let size = initial
            .iter()
            .fold(1e-3, |most: f64, slope| most.max(slope.abs()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-4 * size, "{seed}");
        }
    }
    assert!(fitted > 20, "{fitted}");
}

#[test]
fn a_group_of_zeros_has_no_scale() {
    let feedback = feedback();
    let within = within(&feedback);
    let levels = CodebookEncoder::new(2).unwrap();
    let zeros = [0.0; GROUP_COLS];
    for group in [
        ScaledGroup::new(1.0, &zeros, &zeros),
        ScaledGroup::new(0.0, &zeros, &[1.0; GROUP_COLS]),
    ] {
        let (scale, codes) = group.quantise_best(&levels, within);
        assert_eq!(scale, 0);
        assert!(codes.iter().all(|code| code.code == 0));
    }
}

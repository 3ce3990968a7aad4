use super::*;

#[test]
fn unseen_rows_get_the_share_of_singletons() {
    // Ten tokens: one occurs six times, four once; three are unseen, of which the model
    // predicts one.
    let shares = vec![0.6, 0.1, 0.0, 0.1, 0.1, 0.0, 0.1, 0.0];
    let logits = vec![0.2, 0.1, 0.0, 0.1, 0.1, 0.04, 0.1, 0.0];
    let found = expected(logits.clone(), shares.clone());
    let close = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-6;
    assert!(close(found.lookups[0], 0.36) && close(found.lookups[1], 0.06));
    assert!(close(found.lookups[2], 0.4 / 6.0), "{:?}", found.lookups);
    assert!(close(found.lookups[5], 0.2 + 0.4 / 6.0));
    assert!(close(found.lookups.iter().sum(), 1.0));
    // Smoothing preserves the sum of the logit costs.
    let sum = |all: &[f32]| all.iter().sum::<f32>();
    assert!(close(sum(&found.logits), f64::from(sum(&logits))));
    assert!(close(found.logits[2], 0.02 / 3.0) && close(found.logits[0], 0.2));
}

#[test]
fn complete_coverage_is_not_smoothed() {
    let (logits, shares) = (vec![0.1, 0.3], vec![0.5, 0.5]);
    let found = expected(logits.clone(), shares.clone());
    assert_eq!((found.logits, found.lookups), (logits, shares));
}

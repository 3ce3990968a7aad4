use super::*;

fn phase_initials(profile: &[f64]) -> String {
    let phases = Phases::detect(Some(profile)).phases.unwrap();
    phases.iter().map(|p| &p.name()[..1]).collect()
}

#[test]
fn smoothing_repeats_the_edges() {
    let phases = Phases::detect(Some(&[3.0, 6.0, 0.0, 9.0]));
    for (found, expected) in phases.smoothed.iter().zip([4.0, 3.0, 5.0, 6.0]) {
        assert!((found - expected).abs() < 1e-12, "{phases:?}");
    }
}

#[test]
fn valley_separates_mix_from_refine() {
    // Smoothed: 7.33, 5, 2.33, 1.33, 1, 3.67, 6.33, 9.
    assert_eq!(
        phase_initials(&[9.0, 4.0, 2.0, 1.0, 1.0, 1.0, 9.0, 9.0]),
        "mmmccrrr"
    );
}

#[test]
fn deepest_valley_wins_and_ties_take_the_first() {
    let deeper = [8.0, 8.0, 3.0, 3.0, 3.0, 8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0];
    // The first valley is also within 1.5 of the smallest value, but not contiguous.
    assert_eq!(phase_initials(&deeper), "mmmmmmmmcrrr");
    let equal = [8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0];
    assert_eq!(phase_initials(&equal), "mmmcrrrrrrrr");
}

#[test]
fn valley_at_an_edge_omits_a_phase() {
    assert_eq!(phase_initials(&[1.0, 1.0, 1.0, 9.0, 9.0]), "ccrrr");
    assert_eq!(phase_initials(&[9.0, 9.0, 1.0, 1.0, 1.0]), "mmmcc");
    assert_eq!(phase_initials(&[0.0, 0.0, 0.0, 5.0]), "ccrr");
}

#[test]
fn thresholds_match_the_constants() {
    let flat = |top: f64| Phases::detect(Some(&[1.0, 1.0, 1.0, top, top, top]));
    assert!(flat(1.149).phases.is_err() && flat(1.151).phases.is_ok());
    assert_eq!(
        phase_initials(&[1.0, 1.0, 1.0, 1.0, 1.499, 1.499, 1.499]),
        "ccccccc"
    );
    assert_eq!(
        phase_initials(&[1.0, 1.0, 1.0, 1.0, 1.501, 1.501, 1.501]),
        "cccccrr"
    );
}

#[test]
fn absence_of_phases_has_a_reason() {
    let reason = |profile| Phases::detect(profile).phases.unwrap_err();
    assert_eq!(reason(None), NoPhasesReason::NoCalibration);
    assert_eq!(reason(Some(&[][..])), NoPhasesReason::NoCalibration);
    assert_eq!(reason(Some(&[2.0][..])), NoPhasesReason::OneLayer);
    assert_eq!(
        reason(Some(&[0.0, 0.0][..])),
        NoPhasesReason::Flat { ratio: 1.0 }
    );
    assert_eq!(
        reason(Some(&[2.0, 2.0][..])),
        NoPhasesReason::Flat { ratio: 1.0 }
    );
    let text = reason(Some(&[3.0, 3.1, 3.0][..])).to_string();
    assert!(text.contains("flat"), "{text}");
}

#[test]
fn invalid_variance_names_its_layer() {
    for wrong in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(invalid_variance(&[1.0, 2.0, wrong, wrong]), Some(2));
    }
    let largest = Phases::detect(Some(&[1e308, 1e308, 1.0, 1.0, 1.0]));
    assert!(largest.smoothed.iter().all(|v| v.is_finite()));
}

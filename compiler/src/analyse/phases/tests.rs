use super::*;

#[test]
fn a_profile_has_phases_or_a_reason() {
    let found = profile(&[9.0, 9.0, 1.0, 1.0, 1.0, 9.0, 9.0]).unwrap();
    assert_eq!(found.phases.unwrap()[3], "compress");
    assert!(found.reason.is_none());
    let flat = profile(&[2.0, 2.0]).unwrap();
    assert!(flat.phases.is_none() && flat.reason.unwrap().contains("flat"));
}

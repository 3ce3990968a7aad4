use super::*;

#[test]
fn rank_fraction_keeps_between_one_and_all_components() {
    assert_eq!(RankFraction::FULL.active_rank(96), 96);
    let quarter = RankFraction::new(0.25).unwrap();
    assert_eq!(quarter.active_rank(96), 24);
    assert_eq!(quarter.active_rank(1), 1);
    assert_eq!(quarter.active_rank(0), 0);
    for fraction in [0.0, -1.0, 1.01, f32::NAN] {
        assert!(RankFraction::new(fraction).is_err());
    }
}

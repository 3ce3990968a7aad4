use super::*;

#[test]
fn score_that_is_not_a_number_is_chosen() {
    for nan in [f32::NAN, -f32::NAN] {
        let routing = Routing::new(&[0.0, nan, 1.0], 3, 1, true);
        assert_eq!(routing.rows, [vec![], vec![0], vec![]]);
        assert!(routing.probabilities[1].is_nan());
    }
}

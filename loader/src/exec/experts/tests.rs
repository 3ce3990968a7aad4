use super::*;

#[test]
fn routes_are_the_largest_scores_with_softmax_weights() {
    let scores = [
        0.0,
        3.0f32.ln(),
        2.0f32.ln(),
        f32::NEG_INFINITY,
        0.0,
        0.0,
        0.0,
        0.0,
    ];
    let expected = |weights: [f32; 4]| {
        let routed = [(0, 1), (1, 0), (1, 1), (2, 0)];
        let routes = routed.into_iter().zip(weights);
        routes.map(|((expert, row), weight)| Route {
            expert,
            row,
            weight,
        })
    };
    for (normalised, weights) in [
        (true, [0.5, 0.6, 0.5, 0.4]),
        (false, [0.25, 0.5, 0.25, 1.0 / 3.0]),
    ] {
        let found = routes(&scores, 4, 2, normalised);
        assert_eq!(found.len(), 4);
        for (found, expected) in found.iter().zip(expected(weights)) {
            assert_eq!((found.expert, found.row), (expected.expert, expected.row));
            assert!((found.weight - expected.weight).abs() < 1e-6, "{found:?}");
        }
    }
}

#[test]
fn score_that_is_not_a_number_reaches_the_output() {
    for nan in [f32::NAN, -f32::NAN] {
        let [found] = routes(&[0.0, nan, 1.0], 3, 1, true)[..] else {
            panic!("one expert is used");
        };
        assert!(found.expert == 1 && found.weight.is_nan());
    }
}

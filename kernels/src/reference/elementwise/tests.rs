use super::*;

#[test]
fn rope_by_a_right_angle_swaps_the_halves() {
    let mut x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
    rope(RopePairs::Halves, &mut x, 5, &[0.0, 1.0], &[1.0, 0.0]).unwrap();
    assert_eq!(x, [-3.0, 2.0, 1.0, 4.0, 5.0, -8.0, 7.0, 6.0, 9.0, 10.0]);
}

#[test]
fn gelu_matches_pytorch() {
    // torch.nn.functional.gelu(x, approximate="tanh") in float64.
    let mut gate = [-3.0f32, -1.0, 0.0, 0.5, 1.0, 3.0];
    gelu_mul(&mut gate, &[1.0; 6]).unwrap();
    let expected = [
        -0.003_637_392,
        -0.158_808,
        0.0,
        0.345_714,
        0.841_192,
        2.996_362_6,
    ];
    for (found, expected) in gate.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
    }
}

#[test]
fn softcap_saturates_and_preserves_small_numbers() {
    let mut x = [1e-3f32, 1e9, -1e9, 30.0];
    softcap(&mut x, 30.0);
    assert!((x[0] - 1e-3).abs() < 1e-9);
    assert_eq!(x[1..3], [30.0, -30.0]);
    assert!((x[3] - 30.0 * 0.761_594_2).abs() < 1e-4);
}

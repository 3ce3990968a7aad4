use htc_formats::model::RopePairs;

use super::*;

#[test]
fn rms_norm_of_a_constant_row_is_the_weight() {
    let mut out = [0.0; 4];
    rms_norm(&[3.0f32, 3.0, -5.0, 5.0], &[2.0, 4.0], 0.0, &mut out).unwrap();
    assert_eq!(out, [2.0, 4.0, -2.0, 4.0]);
}

#[test]
fn rope_by_a_right_angle_swaps_the_pair() {
    let mut x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    rope(RopePairs::Adjacent, &mut x, 4, &[0.0], &[1.0]).unwrap();
    assert_eq!(x, [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
}

#[test]
fn silu_matches_the_closed_form() {
    let mut gate = [0.0, 3.0f32.ln(), -100.0];
    silu_mul(&mut gate, &[5.0, 2.0, 1.0]).unwrap();
    assert_eq!(gate[0], 0.0);
    assert!((gate[1] - 1.5 * 3.0f32.ln()).abs() < 1e-6);
    assert!(gate[2].abs() < 1e-30);
}

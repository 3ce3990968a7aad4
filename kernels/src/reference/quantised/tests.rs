use htc_formats::DType;

use super::*;

#[test]
fn numbers_are_multiples_of_the_block_maximum_over_127() {
    let mut x = [0.0f32; 34];
    x[..6].copy_from_slice(&[254.0, 1.0, -1.0, 0.999, 3.1, -253.1]);
    x[32..].copy_from_slice(&[127.0, 0.6]);
    let out = quantised_vector(&x);
    assert_eq!(out[..6], [254.0, 2.0, -2.0, 0.0, 4.0, -254.0]);
    assert_eq!(out[32..], [127.0, 1.0]);
    x[33] = f32::INFINITY;
    let out = quantised_vector(&x);
    assert!(out[32..].iter().all(|x| x.is_nan()) && out[31] == 0.0);
    assert_eq!(quantised_vector(&[1e-38]), [0.0]);
}

#[test]
fn product_with_ones_is_the_sum_of_the_quantised_numbers() {
    let ones: Vec<u8> = [1.0f32; 64].iter().flat_map(|v| v.to_le_bytes()).collect();
    let w = Matrix::new(DType::F32, 2, 32, &ones).unwrap();
    let mut x = [0.0; 64];
    (x[0], x[1], x[40]) = (127.0, 5.4, -2.0);
    let mut y = [0.0; 4];
    quantised_matmul(w, 2, &x, &mut y).unwrap();
    assert_eq!(y, [132.0, 132.0, -2.0, -2.0]);
}

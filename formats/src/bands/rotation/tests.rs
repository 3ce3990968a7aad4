use super::*;

/// Sign of entry `i, j`: the parity of their common bits.
fn entry(i: usize, j: usize) -> f64 {
    let sign = if (i & j).count_ones().is_multiple_of(2) {
        1.0
    } else {
        -1.0
    };
    sign / (GROUP_COLS as f64).sqrt()
}

#[test]
fn rotation_equals_matrix_product_and_is_self_inverse() {
    let numbers: Vec<f32> = (0..75)
        .map(|i| ((i * i * 37) % 101) as f32 - 50.0)
        .collect();
    let mut rotated = numbers.clone();
    rotate(&mut rotated);
    for (band, (x, y)) in numbers
        .chunks(GROUP_COLS)
        .zip(rotated.chunks(GROUP_COLS))
        .enumerate()
    {
        for (i, &y) in y.iter().enumerate() {
            let expected = match x.len() {
                GROUP_COLS => (0..GROUP_COLS).map(|j| entry(i, j) * f64::from(x[j])).sum(),
                _ => f64::from(x[i]),
            };
            assert!((f64::from(y) - expected).abs() < 1e-4, "band {band}, {i}");
        }
    }
    rotate(&mut rotated);
    for (back, number) in rotated.iter().zip(&numbers) {
        assert!((back - number).abs() < 1e-4);
    }
    let mut one = [0.0_f32; GROUP_COLS];
    one[7] = 32.0;
    rotate(&mut one);
    assert!(
        one.iter()
            .all(|x| (x.abs() - 32.0 * ROTATION_UNIT).abs() < 1e-6)
    );
}

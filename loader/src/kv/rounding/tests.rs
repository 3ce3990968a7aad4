use super::*;

fn normal(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state) / 4_294_967_296.0
    };
    let mut number = || (0..12).map(|_| uniform()).sum::<f64>() as f32 - 6.0;
    (0..count).map(|_| number()).collect()
}

fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * BLOCK_LEN];
    block::decode(dtype, bytes, &mut out).unwrap();
    out
}

fn rounded(dtype: DType, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; values.len() / BLOCK_LEN * dtype.block_bytes()];
    encode(dtype, values, &mut bytes).unwrap();
    decoded(dtype, &bytes)
}

fn squares(a: &[f32], b: &[f32]) -> f64 {
    let off = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    off.sum()
}

#[test]
fn numbers_round_to_the_nearest_code() {
    let values = normal(64 * BLOCK_LEN);
    let found = rounded(DType::Q8_0, &values);
    for (values, found) in values.chunks(BLOCK_LEN).zip(found.chunks(BLOCK_LEN)) {
        let most = values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        // Half a step, and the rounding of the scale.
        for (x, y) in values.iter().zip(found) {
            assert!((x - y).abs() <= most / 127.0 * (0.5 + 127.0 / 2048.0));
        }
    }
    let whole: Vec<f32> = (0..BLOCK_LEN)
        .map(|i| 0.25 * (i as f32 * 8.0 - 127.0))
        .collect();
    assert_eq!(rounded(DType::Q8_0, &whole), whole);
    assert_eq!(rounded(DType::Q4_0, &[0.0; BLOCK_LEN]), [0.0; BLOCK_LEN]);
}

#[test]
fn four_bit_error_is_within_6_percent_of_a_search() {
    let values = normal(2048 * BLOCK_LEN);
    let error = squares(&values, &rounded(DType::Q4_0, &values));
    let mut bytes = vec![0; 2048 * DType::Q4_0.block_bytes()];
    block::encode(DType::Q4_0, &values, &mut bytes).unwrap();
    let searched = squares(&values, &decoded(DType::Q4_0, &bytes));
    assert!(
        searched < error && error < 1.06 * searched,
        "{error} {searched}"
    );
    let usual: f64 = values
        .as_chunks()
        .0
        .iter()
        .map(|block| {
            let scale = largest_magnitude(block) / -8.0;
            let levels = nearest_levels(block, scale, [-8.0, 7.0]);
            squares(block, &levels.map(|level| scale * level as f32))
        })
        .sum();
    assert!(error < 0.95 * usual, "{error} {usual}");
}

#[test]
fn unencodable_numbers_are_refused() {
    for dtype in [DType::Q8_0, DType::Q4_0] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9, -f32::MAX] {
            let mut values = [1.0; 2 * BLOCK_LEN];
            values[40] = bad;
            let mut bytes = vec![0; 2 * dtype.block_bytes()];
            let found = encode(dtype, &values, &mut bytes).unwrap_err();
            assert_eq!(found.to_bits(), bad.to_bits());
        }
        let tiny = rounded(dtype, &[1e-12; BLOCK_LEN]);
        assert!(tiny.iter().all(|x| *x == 0.0), "{tiny:?}");
        let large = rounded(dtype, &[5e5; BLOCK_LEN]);
        assert!(
            large.iter().all(|x| (x / 5e5 - 1.0).abs() < 0.06),
            "{large:?}"
        );
        let subnormal = rounded(dtype, &[3e-7; BLOCK_LEN]);
        assert!(subnormal.iter().all(|x| x.abs() < 1e-5), "{subnormal:?}");
    }
}

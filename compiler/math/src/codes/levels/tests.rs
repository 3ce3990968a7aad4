use super::*;
use htc_formats::bands::codebook_value;

#[test]
fn nearest_returns_the_closest_level_and_its_code() {
    for bits in 2..=8 {
        let levels = CodebookEncoder::new(bits).unwrap();
        let all: Vec<i8> = (0..=(1_u16 << bits) as u8 as u16 + if bits == 8 { 255 } else { 0 })
            .take(1 << bits)
            .map(|code| codebook_value(bits, code as u8))
            .collect();
        for x in (-5200..=5200).map(|i| i as f32 / 40.0) {
            let found = levels.nearest(x);
            assert_eq!(codebook_value(bits, found.code), found.value, "{bits} {x}");
            let distance = |v: i8| (x - f32::from(v)).abs();
            let least = all.iter().map(|&v| distance(v)).fold(f32::MAX, f32::min);
            assert_eq!(distance(found.value), least, "{bits} {x}");
        }
    }
    assert!(CodebookEncoder::new(9).is_err() && CodebookEncoder::new(1).is_err());
}

#[test]
fn scale_error_is_within_3_percent_of_the_best() {
    let mut rng = crate::random::Rng(7);
    for bits in 2..=8 {
        let levels = CodebookEncoder::new(bits).unwrap();
        for size in [3.0, 300.0, 2500.0, 9000.0] {
            let x: Vec<f32> = (0..32).map(|_| (rng.normal() * size) as f32).collect();
            let weights: Vec<f32> = (0..32).map(|_| rng.unit() as f32).collect();
            for weights in [None, Some(&weights[..])] {
                let found = levels.best_scale(&x, weights);
                let error = |s: u8| levels.error(&x, weights, s.into());
                let least = (1..=63).map(error).fold(f32::MAX, f32::min);
                assert!(error(found) <= 1.03 * least, "{bits} {size}: {found}");
            }
        }
        assert_eq!(levels.best_scale(&[0.0; 32], None), 0);
    }
}

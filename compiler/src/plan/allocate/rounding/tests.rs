use htc_formats::bands::{Code, Codes, ColumnGroups};
use htc_formats::block;

use super::*;
use crate::math::Weight;
use crate::math::codes::{QuantisationGuide, encode_column_groups};
use crate::system::random::Rng;

#[test]
fn every_type_that_rounds_has_a_loss() {
    for dtype in block::writable_types() {
        let is_known = ROUNDING_LOSS.iter().any(|(of, _)| of == dtype);
        assert!(is_known || *dtype == DType::F32, "{dtype}");
    }
}

#[test]
fn rounding_table_matches_the_encoders() {
    let mut random = Rng(11);
    let mut normal = || (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
    let numbers: Vec<f32> = (0..64 * 256).map(|_| normal() as f32).collect();
    let found = ROUNDING_LOSS.map(|(dtype, expected)| {
        let mut bytes = vec![0; dtype.matrix_bytes(64, 256).unwrap()];
        block::encode(dtype, &numbers, &mut bytes).unwrap();
        let mut stored = vec![0.0; numbers.len()];
        block::decode(dtype, &bytes, &mut stored).unwrap();
        let pairs = numbers.iter().zip(&stored);
        let missing = pairs.map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
        let whole = numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        (dtype.to_string(), missing / whole, expected)
    });
    let weight = Weight {
        rows: 64,
        cols: 256,
        values: &numbers,
    };
    let codes = Code::all().map(|code| {
        let codes = Codes::uniform(code, 256).unwrap();
        let bytes = encode_column_groups(&codes, weight, QuantisationGuide::default()).unwrap();
        let bands = ColumnGroups::new(&codes, 64, &bytes).unwrap();
        let mut row = [0.0; 256];
        let (mut missing, mut whole) = (0.0, 0.0);
        for (i, numbers) in numbers.chunks(256).enumerate() {
            bands.decode_row(i, &mut row).unwrap();
            let pairs = numbers.iter().zip(&row);
            missing += pairs.map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
            whole += numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        }
        (
            code.to_string(),
            missing / whole,
            gaussian_relative_error(code),
        )
    });
    let found: Vec<_> = found.into_iter().chain(codes).collect();
    let differs = |(_, found, expected): &(String, f64, f64)| (found / expected - 1.0).abs() > 0.1;
    let wrong: Vec<_> = found.into_iter().filter(differs).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

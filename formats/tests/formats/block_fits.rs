//! Block fits, compared with the decoder and with exhaustive searches.

use crate::block_common::{Random, error, rounded, weighted};
use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block::{BlockFit, decode, encode};
use proptest::prelude::*;

fn packed(fit: &BlockFit, codes: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x55; fit.dtype().block_bytes()];
    fit.pack(codes, &mut bytes).unwrap();
    bytes
}

fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; dtype.block_len()];
    decode(dtype, bytes, &mut values).unwrap();
    values
}

#[test]
fn decoder_agrees_with_the_fit_for_every_code() {
    let mut random = Random(1);
    for &dtype in BlockFit::TYPES {
        for scale in [1.0, -1.0, 1e-3, 3e-8, 1e4, 0.0] {
            for shift in [0.0, 2.0, -2.0] {
                let values: Vec<f32> = random
                    .block(dtype)
                    .iter()
                    .map(|x| (x + shift) * scale)
                    .collect();
                let fit = BlockFit::search(dtype, &values, None).unwrap();
                assert_eq!(fit.dtype(), dtype);
                let codes: Vec<u8> = fit.codes().collect();
                for first in 0..codes.len() {
                    let at = |place: usize| codes[(first + 7 * place) % codes.len()];
                    let block: Vec<u8> = (0..values.len()).map(at).collect();
                    let back = decoded(dtype, &packed(&fit, &block));
                    for (place, (&code, back)) in block.iter().zip(&back).enumerate() {
                        let value = fit.value(place, code);
                        assert_eq!(
                            value.to_bits(),
                            back.to_bits(),
                            "{dtype} {scale} {code}: {value} {back}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn no_code_is_nearer_than_the_nearest() {
    let mut random = Random(2);
    for &dtype in BlockFit::TYPES {
        for scale in [1.0, -1e-3, 3e-8, 1e4] {
            let values: Vec<f32> = random.block(dtype).iter().map(|x| x * scale).collect();
            let fit = BlockFit::search(dtype, &values, None).unwrap();
            let codes = rounded(&fit, &values);
            for (place, value) in values.iter().enumerate() {
                assert_eq!(fit.nearest(place, *value).0, codes[place], "{dtype}");
                for value in [
                    *value,
                    3.0 * value,
                    1e30 * value,
                    0.0,
                    f32::MAX,
                    f32::NEG_INFINITY,
                ] {
                    let (code, level) = fit.nearest(place, value);
                    assert_eq!(level.to_bits(), fit.value(place, code).to_bits());
                    let distance =
                        |code| (f64::from(fit.value(place, code)) - f64::from(value)).abs();
                    let least = fit.codes().map(distance).fold(f64::INFINITY, f64::min);
                    let found = distance(code);
                    assert!(
                        found <= least * (1.0 + 1e-4),
                        "{dtype} {value}: {found} {least}"
                    );
                }
            }
        }
        let fit = BlockFit::search(dtype, &random.block(dtype), None).unwrap();
        assert_eq!(fit.nearest(3, f32::NAN).0, 0, "{dtype}");
    }
}

#[test]
fn codes_are_in_order_of_their_values() {
    let mut random = Random(3);
    for &dtype in BlockFit::TYPES {
        let fit = BlockFit::search(dtype, &random.block(dtype), None).unwrap();
        for place in 0..dtype.block_len() {
            let values: Vec<f32> = fit.codes().map(|code| fit.value(place, code)).collect();
            let up = values.is_sorted_by(|a, b| a < b);
            let down = values.is_sorted_by(|a, b| a > b);
            assert!(up || down, "{dtype} {place}: {values:?}");
        }
    }
}

#[test]
fn encode_equals_block_fits() {
    let mut random = Random(4);
    for &dtype in BlockFit::TYPES {
        let blocks = [
            random.block(dtype),
            random.block(dtype),
            random.block(dtype),
        ];
        let row = blocks.concat();
        let mut bytes = vec![0; dtype.row_bytes(row.len()).unwrap()];
        encode(dtype, &row, &mut bytes).unwrap();
        let of_blocks = blocks.iter().flat_map(|values| {
            let fit = BlockFit::search(dtype, values, None).unwrap();
            packed(&fit, &rounded(&fit, values))
        });
        assert_eq!(bytes, of_blocks.collect::<Vec<u8>>(), "{dtype}");
        let equal = vec![0.25; blocks[0].len()];
        let with = BlockFit::search(dtype, &blocks[0], Some(&equal)).unwrap();
        let without = BlockFit::search(dtype, &blocks[0], None).unwrap();
        assert_eq!(with, without, "{dtype}");
    }
}

/// Over many blocks the search with importances must have a clearly lower weighted error than
/// without. In a single block it is hardly ever higher, because both end in minima near their
/// starts.
#[test]
fn importances_lower_the_error_under_them() {
    for &dtype in BlockFit::TYPES {
        let mut random = Random(5);
        let (mut with, mut without, mut worst) = (0.0, 0.0, 0.0_f64);
        for _ in 0..2048 / dtype.block_len() {
            let (values, weights) = (random.block(dtype), random.importance(dtype));
            let of = |importance| BlockFit::search(dtype, &values, importance).unwrap();
            let (a, b) = (
                error(&of(Some(&weights)), &values, &weights),
                error(&of(None), &values, &weights),
            );
            (with, without, worst) = (with + a, without + b, worst.max(a / b));
        }
        println!(
            "{dtype}: {:.4} of the error without importances, worst block {worst:.4}",
            with / without
        );
        assert!(with < 0.75 * without, "{dtype}: {with} {without}");
        assert!(worst < 1.02, "{dtype}: {worst}");
    }
}

#[test]
fn importances_are_ratios() {
    let mut random = Random(6);
    for &dtype in BlockFit::TYPES {
        let (values, weights) = (random.block(dtype), random.importance(dtype));
        let expected = BlockFit::search(dtype, &values, Some(&weights)).unwrap();
        for exponent in [-120, -60, 90, 110] {
            let scaled: Vec<f32> = weights.iter().map(|w| w * 2f32.powi(exponent)).collect();
            let found = BlockFit::search(dtype, &values, Some(&scaled)).unwrap();
            assert_eq!(found, expected, "{dtype} {exponent}");
        }
        let zeros = vec![0.0; values.len()];
        assert_eq!(
            BlockFit::search(dtype, &values, Some(&zeros)).unwrap(),
            BlockFit::search(dtype, &values, None).unwrap(),
        );
        let mut one = zeros;
        one[17] = 1e-3;
        let fit = BlockFit::search(dtype, &values, Some(&one)).unwrap();
        let codes = rounded(&fit, &values);
        let missing = (fit.value(17, codes[17]) - values[17]).abs();
        assert!(
            missing < 2e-3 * values[17].abs(),
            "{dtype}: {missing} of {}",
            values[17]
        );
        let all = error(&fit, &values, &vec![1.0; values.len()]);
        let energy: f64 = values.iter().map(|x| f64::from(x * x)).sum();
        assert!(all < energy, "{dtype}: {all} {energy}");
    }
}

#[test]
fn scales_fitted_to_codes_are_better_and_never_worse() {
    let mut random = Random(7);
    for &dtype in BlockFit::TYPES {
        let (mut before, mut after) = (0.0, 0.0);
        for _ in 0..4096 / dtype.block_len() {
            let (values, weights) = (random.block(dtype), random.importance(dtype));
            let fit = BlockFit::search(dtype, &values, None).unwrap();
            let moved: Vec<f32> = values
                .iter()
                .map(|x| 1.1 * x + 0.1 * random.normal())
                .collect();
            let codes = rounded(&fit, &moved);
            let of =
                |fit: &BlockFit| weighted(&values, &weights, &decoded(dtype, &packed(fit, &codes)));
            let refitted = fit.refit(&values, Some(&weights), &codes).unwrap();
            let (old, new) = (of(&fit), of(&refitted));
            assert!(new <= old, "{dtype}: {new} {old}");
            let again = refitted.refit(&values, Some(&weights), &codes).unwrap();
            assert!(of(&again) <= new);
            (before, after) = (before + old, after + new);
        }
        println!("{dtype}: {:.4} of the error before", after / before);
        assert!(after < 0.9 * before, "{dtype}: {after} {before}");
    }
}

#[test]
fn scales_of_exact_numbers_are_found_again() {
    let mut random = Random(8);
    for &dtype in BlockFit::TYPES {
        let values = random.block(dtype);
        let fit = BlockFit::search(dtype, &values, None).unwrap();
        let codes = rounded(&fit, &values);
        let exact = decoded(dtype, &packed(&fit, &codes));
        assert_eq!(fit.refit(&exact, None, &codes).unwrap(), fit, "{dtype}");
        let larger: Vec<f32> = values.iter().map(|x| 1.3 * x).collect();
        let other = BlockFit::search(dtype, &larger, None).unwrap();
        let found = other.refit(&exact, None, &codes).unwrap();
        let ones = vec![1.0; values.len()];
        let energy = weighted(&exact, &ones, &vec![0.0; values.len()]);
        let left = weighted(&exact, &ones, &decoded(dtype, &packed(&found, &codes)));
        assert!(left < 1e-2 * energy, "{dtype}: {left} of {energy}");
    }
}

#[test]
fn wrong_block_lengths_are_refused() {
    for &dtype in BlockFit::TYPES {
        let len = dtype.block_len();
        let (values, codes) = (vec![0.5; len], vec![0; len]);
        let fit = BlockFit::search(dtype, &values, None).unwrap();
        let last = *fit.codes().end();
        let refused = |what, expected, found| CodecError::Block {
            dtype,
            array_name: what,
            expected,
            found,
        };
        let error = BlockFit::search(dtype, &values[1..], None).unwrap_err();
        assert_eq!(error, refused("values", len, len - 1));
        assert_eq!(
            error.to_string(),
            format!("{dtype}: {} values for a block of {len}", len - 1)
        );
        let error = BlockFit::search(dtype, &values, Some(&[1.0])).unwrap_err();
        assert_eq!(error, refused("importances", len, 1));
        assert_eq!(
            fit.refit(&values, None, &codes[2..]).unwrap_err(),
            refused("codes", len, len - 2)
        );
        assert_eq!(
            fit.quantise(&values[..3], &mut codes.clone()).unwrap_err(),
            refused("values", len, 3)
        );
        let size = dtype.block_bytes();
        let error = fit.pack(&codes, &mut vec![0; size + 1]).unwrap_err();
        assert_eq!(error, refused("bytes", size, size + 1));
        if last < u8::MAX {
            let mut codes = codes.clone();
            codes[9] = last + 1;
            let expected = CodecError::Code {
                dtype,
                place: 9,
                code: last + 1,
                last,
            };
            assert_eq!(fit.pack(&codes, &mut vec![0; size]).unwrap_err(), expected);
            assert_eq!(fit.refit(&values, None, &codes).unwrap_err(), expected);
        }
        for bad in [-1.0, f32::NAN, f32::INFINITY, -f32::MIN_POSITIVE] {
            let mut importance = vec![1.0; len];
            importance[5] = bad;
            let error = BlockFit::search(dtype, &values, Some(&importance)).unwrap_err();
            assert!(
                matches!(error, CodecError::Importance { index: 5, .. }),
                "{error}"
            );
            assert!(error.to_string().contains(&bad.to_string()), "{error}");
        }
        let mut values = values;
        values[11] = f32::NAN;
        let error = BlockFit::search(dtype, &values, None).unwrap_err();
        assert!(
            matches!(error, CodecError::NoCode { index: 11, .. }),
            "{error}"
        );
    }
    let error = BlockFit::search(DType::F16, &[1.0], None).unwrap_err();
    assert_eq!(error, CodecError::ReadOnlyType { dtype: DType::F16 });
}

proptest! {
    #[test]
    fn any_bits_are_fitted_or_refused(
        bits in prop::collection::vec((any::<u32>(), any::<u32>()), 256),
        mask in prop_oneof![1 => Just(u32::MAX), 4 => Just(!(1 << 30))],
    ) {
        let values: Vec<f32> = bits.iter().map(|(b, _)| f32::from_bits(b & mask)).collect();
        let weights: Vec<f32> = bits.iter().map(|(_, b)| f32::from_bits(b & mask & !(1 << 31))).collect();
        for &dtype in BlockFit::TYPES {
            let len = dtype.block_len();
            let (values, weights) = (&values[..len], &weights[..len]);
            let Ok(fit) = BlockFit::search(dtype, values, Some(weights)) else {
                prop_assert!(mask == u32::MAX);
                continue;
            };
            let codes = rounded(&fit, values);
            let back = decoded(dtype, &packed(&fit, &codes));
            for (place, (&code, back)) in codes.iter().zip(&back).enumerate() {
                prop_assert!(back.is_finite());
                prop_assert_eq!(fit.value(place, code).to_bits(), back.to_bits());
            }
            let refitted = fit.refit(values, Some(weights), &codes).unwrap();
            prop_assert!(decoded(dtype, &packed(&refitted, &codes)).iter().all(|y| y.is_finite()));
        }
    }
}

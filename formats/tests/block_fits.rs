//! Scales first, codes afterwards: what a fit says of its codes against what the decoder makes of
//! them, the search against exhaustive ones, and scales fitted to codes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and so do its helpers"
)]

use htc_formats::DType;
use htc_formats::block::{BlockError, BlockFit, decode, encode};
use proptest::prelude::*;

/// Deterministic numbers (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        let (factor, term) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(term);
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }

    /// Twelve uniform numbers are nearly a normal one.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    fn block(&mut self, dtype: DType) -> Vec<f32> {
        (0..dtype.block_len()).map(|_| self.normal()).collect()
    }

    /// Importances over four orders of magnitude.
    fn importance(&mut self, dtype: DType) -> Vec<f32> {
        let one = |_| (1.5 * self.normal()).exp();
        (0..dtype.block_len()).map(one).collect()
    }
}

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

fn rounded(fit: &BlockFit, values: &[f32]) -> Vec<u8> {
    let mut codes = vec![0; values.len()];
    fit.round(values, &mut codes).unwrap();
    codes
}

/// `Σ w (x - y)²` in float64.
fn weighted(values: &[f32], weights: &[f32], back: &[f32]) -> f64 {
    let pairs = values.iter().zip(back).zip(weights);
    pairs
        .map(|((&x, &y), &w)| f64::from(w) * (f64::from(x) - f64::from(y)).powi(2))
        .sum()
}

/// The error of a fit with the nearest codes.
fn error(fit: &BlockFit, values: &[f32], weights: &[f32]) -> f64 {
    let codes = rounded(fit, values);
    let places = codes.iter().enumerate();
    let back: Vec<f32> = places
        .map(|(place, &code)| fit.value(place, code))
        .collect();
    weighted(values, weights, &back)
}

#[test]
fn every_code_decodes_to_what_the_fit_says() {
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
                // Every code at every place.
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
            // Beside the block's own numbers some far outside of its codes.
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

/// Values ascend or descend with codes, so that a neighbour in code is one in value.
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
fn a_row_is_encoded_as_its_blocks_are_fitted() {
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
        // Equal importances are none.
        let equal = vec![0.25; blocks[0].len()];
        let with = BlockFit::search(dtype, &blocks[0], Some(&equal)).unwrap();
        let without = BlockFit::search(dtype, &blocks[0], None).unwrap();
        assert_eq!(with, without, "{dtype}");
    }
}

/// The search knows what counts: in the sum over many blocks its error under the importances is well
/// below that of the search without them, and in a single block it is hardly ever above, because both
/// end in minima near their starts.
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
        assert!(with < 0.95 * without, "{dtype}: {with} {without}");
        assert!(worst < 1.1, "{dtype}: {worst}");
    }
}

/// Only ratios count, whatever the magnitude, and zeros are allowed everywhere.
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
        // A single number that counts is met as well as its type can, and the others still have codes.
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
            // Codes as a feedback leaves them: nearest to something else.
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
            // Fitted once more it stays or gets better still.
            let again = refitted.refit(&values, Some(&weights), &codes).unwrap();
            assert!(of(&again) <= new);
            (before, after) = (before + old, after + new);
        }
        println!("{dtype}: {:.4} of the error before", after / before);
        assert!(after < 0.9 * before, "{dtype}: {after} {before}");
    }
}

/// Codes of a known fit, and the numbers that they stand for: the scales are found again.
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
        // The integers of the runs are those of another fit.
        assert!(left < 1e-2 * energy, "{dtype}: {left} of {energy}");
    }
}

#[test]
fn what_is_no_block_is_refused() {
    for &dtype in BlockFit::TYPES {
        let len = dtype.block_len();
        let (values, codes) = (vec![0.5; len], vec![0; len]);
        let fit = BlockFit::search(dtype, &values, None).unwrap();
        let last = *fit.codes().end();
        let refused = |what, expected, found| BlockError::Block {
            dtype,
            what,
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
            fit.round(&values[..3], &mut codes.clone()).unwrap_err(),
            refused("values", len, 3)
        );
        let size = dtype.block_bytes();
        let error = fit.pack(&codes, &mut vec![0; size + 1]).unwrap_err();
        assert_eq!(error, refused("bytes", size, size + 1));
        if last < u8::MAX {
            let mut codes = codes.clone();
            codes[9] = last + 1;
            let expected = BlockError::Code {
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
                matches!(error, BlockError::Importance { place: 5, .. }),
                "{error}"
            );
            assert!(error.to_string().contains(&bad.to_string()), "{error}");
        }
        let mut values = values;
        values[11] = f32::NAN;
        let error = BlockFit::search(dtype, &values, None).unwrap_err();
        assert!(
            matches!(error, BlockError::NoCode { index: 11, .. }),
            "{error}"
        );
    }
    let error = BlockFit::search(DType::F16, &[1.0], None).unwrap_err();
    assert_eq!(error, BlockError::NotWritten { dtype: DType::F16 });
}

/// The least weighted squared error that any real scale leaves with given levels: between two scales where
/// a number changes its level the levels are the same, and their best scale has a closed form.
fn least_error(x: &[f32], w: &[f32], levels: &[f64]) -> f64 {
    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let w: Vec<f64> = w.iter().map(|&w| f64::from(w)).collect();
    let mut bounds: Vec<f64> = Vec::new();
    for x in &x {
        bounds.extend(levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0 / x));
    }
    bounds.sort_by(f64::total_cmp);
    let nearest = |x: f64| {
        let at = levels
            .partition_point(|level| *level < x)
            .clamp(1, levels.len() - 1);
        let (below, above) = (levels[at - 1], levels[at]);
        if x - below < above - x { below } else { above }
    };
    let between = bounds.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let gain = between.map(|inverse| {
        let (mut xq, mut qq) = (0.0, 0.0);
        for (x, w) in x.iter().zip(&w) {
            let q = nearest(x * inverse);
            xq += w * x * q;
            qq += w * q * q;
        }
        if qq > 0.0 { xq * xq / qq } else { 0.0 }
    });
    let energy: f64 = x.iter().zip(&w).map(|(x, w)| w * x * x).sum();
    energy - gain.fold(0.0, f64::max)
}

/// The types of one scale, against every scale that there is.
#[test]
fn a_scale_is_near_the_optimum() {
    const IQ4: [f64; 16] = [
        -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0,
        69.0, 89.0, 113.0,
    ];
    let whole = |low: i32, high: i32| (low..=high).map(f64::from).collect::<Vec<f64>>();
    // How far above the optimum in the sum and in a single block, without importances and with them.
    for (dtype, levels, within) in [
        (DType::Q4_0, whole(-8, 7), [1.003, 1.1, 1.02, 1.6]),
        (DType::Q5_0, whole(-16, 15), [1.02, 1.2, 1.06, 1.6]),
        (DType::Q8_0, whole(-127, 127), [1.15, 1.7, 1.3, 3.0]),
        (DType::IQ4NL, IQ4.to_vec(), [1.01, 1.1, 1.02, 1.9]),
    ] {
        let mut random = Random(9);
        for importances in [false, true] {
            let (mut found, mut least, mut worst) = (0.0, 0.0, 0.0_f64);
            for _ in 0..60 {
                let (values, weights) = (random.block(dtype), random.importance(dtype));
                let weights = if importances {
                    weights
                } else {
                    vec![1.0; values.len()]
                };
                let fit = BlockFit::search(dtype, &values, Some(&weights)).unwrap();
                let optimum = least_error(&values, &weights, &levels);
                let of_fit = error(&fit, &values, &weights);
                // A scale of f16 instead of a real one.
                assert!(of_fit > 0.99 * optimum, "{dtype}: {of_fit} {optimum}");
                (found, least) = (found + of_fit, least + optimum);
                worst = worst.max(of_fit / optimum);
            }
            println!(
                "{dtype} {importances}: {:.4} of the optimum, worst block {worst:.4}",
                found / least
            );
            let [all, one] = if importances {
                [within[2], within[3]]
            } else {
                [within[0], within[1]]
            };
            assert!(
                found < all * least,
                "{dtype} {importances}: {}",
                found / least
            );
            assert!(worst < one, "{dtype} {importances}: {worst}");
        }
    }
}

proptest! {
    /// Any bits for values and importances: a refusal, or a fit whose codes decode to what it says.
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

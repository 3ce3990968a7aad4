//! Block formats compared with gguf-py (`scripts/make_block_fixtures.py`).

use std::path::Path;

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block::{decode, encode, writable_types};
use htc_formats::htz::Digest;
use proptest::prelude::*;

fn every_type() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied()
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn floats(name: &str) -> Vec<f32> {
    let bytes = fixture(name);
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "{name}");
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn decoders_give_the_bits_of_gguf_py() {
    let digests = String::from_utf8(fixture("decode.sha256")).unwrap();
    for dtype in every_type().filter(|d| *d != DType::F32) {
        let blocks = fixture(&format!("decode_{dtype}.bin"));
        let expected = floats(&format!("decode_{dtype}.f32"));
        assert!(expected.len() >= 256, "{dtype}");
        let mut found = vec![0.0; blocks.len() / dtype.block_bytes() * dtype.block_len()];
        decode(dtype, &blocks, &mut found).unwrap();
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{dtype} number {i}");
        }
        let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
        let line = format!("{}  {dtype}", Digest::of_bytes(&bytes));
        assert!(digests.lines().any(|l| l == line), "{line} not found");
    }
}

#[test]
fn encoders_give_the_bits_of_gguf_py() {
    for dtype in [DType::F16, DType::BF16] {
        let values = floats(&format!("encode_{dtype}.f32"));
        let expected = fixture(&format!("encode_{dtype}.bin"));
        let mut found = vec![0; expected.len()];
        encode(dtype, &values, &mut found).unwrap();
        let size = dtype.block_bytes();
        let pairs = found.chunks(size).zip(expected.chunks(size));
        for (i, (found, expected)) in pairs.enumerate() {
            let start = i * dtype.block_len();
            assert_eq!(found, expected, "{dtype} from {:?}", &values[start..][..1]);
        }
    }
}

#[test]
fn q8_0_is_no_worse_than_gguf_py() {
    let values = floats("encode_q8_0.f32");
    let theirs = fixture("encode_q8_0.bin");
    let mut ours = vec![0; theirs.len()];
    encode(DType::Q8_0, &values, &mut ours).unwrap();
    let error = |values: &[f32], block: &[u8]| {
        let mut back = [0.0; 32];
        decode(DType::Q8_0, block, &mut back).unwrap();
        let pairs = values.iter().zip(back);
        pairs
            .map(|(x, y)| (f64::from(*x) - f64::from(y)).powi(2))
            .sum::<f64>()
    };
    let blocks = values
        .chunks(32)
        .zip(ours.chunks(34).zip(theirs.chunks(34)));
    for (i, (values, (ours, theirs))) in blocks.enumerate() {
        let (ours, theirs) = (error(values, ours), error(values, theirs));
        assert!(ours <= 1.02 * theirs, "block {i}: {ours} {theirs}");
    }
}

#[test]
fn f16_is_ieee_binary16() {
    // The least subnormal, the largest number below one, ties, the least number that rounds to
    // infinity and its predecessor.
    for (value, bits) in [
        (2f32.powi(-24), 0x0001),
        (2f32.powi(-25), 0x0000),
        (1.5 * 2f32.powi(-24), 0x0002),
        (1.0 - 2f32.powi(-11), 0x3bff),
        (1.0 + 2f32.powi(-11), 0x3c00),
        (1.0 + 3.0 * 2f32.powi(-11), 0x3c02),
        (65519.996, 0x7bff),
        (65520.0, 0x7c00),
        (-0.0, 0x8000),
        (f32::NEG_INFINITY, 0xfc00),
    ] {
        let mut found = [0; 2];
        encode(DType::F16, &[value], &mut found).unwrap();
        assert_eq!(u16::from_le_bytes(found), bits, "{value}");
    }
}

#[test]
fn nan_stays_nan() {
    for bits in [0x7fc0_0000, 0x7f80_0001, 0xffff_ffff, 0xff80_0100] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let mut bytes = vec![0; dtype.block_bytes()];
            encode(dtype, &[f32::from_bits(bits)], &mut bytes).unwrap();
            let mut back = [0.0];
            decode(dtype, &bytes, &mut back).unwrap();
            assert!(back[0].is_nan(), "{dtype} {bits:#x}");
        }
    }
}

#[test]
fn q8_0_of_numbers_without_a_reciprocal_is_zero() {
    let mut bytes = [9; 34];
    encode(DType::Q8_0, &[1e-44; 32], &mut bytes).unwrap();
    assert_eq!(bytes, [0; 34]);
}

#[test]
fn encoding_read_only_formats_is_refused() {
    for dtype in every_type() {
        let values = vec![0.0; dtype.block_len()];
        let done = encode(dtype, &values, &mut vec![0; dtype.block_bytes()]);
        if writable_types().contains(&dtype) {
            assert_eq!(done, Ok(()));
            continue;
        }
        let error = done.unwrap_err();
        assert_eq!(error, CodecError::ReadOnlyType { dtype });
        assert_eq!(
            error.to_string(),
            format!(
                "{dtype} cannot be written; formats to write are \
                 f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl, \
                 iq4_xs, q3_k and q2_k"
            )
        );
    }
}

#[test]
fn mismatched_lengths_are_refused() {
    for dtype in every_type() {
        let (len, size) = (dtype.block_len(), dtype.block_bytes());
        for (numbers, bytes) in [(len, 2 * size), (2 * len, size), (len, size - 1), (0, 1)] {
            let mut values = vec![0.0; numbers];
            let mut blocks = vec![0; bytes];
            let expected = CodecError::Length {
                dtype,
                bytes,
                numbers,
            };
            assert_eq!(decode(dtype, &blocks, &mut values).unwrap_err(), expected);
            assert_eq!(encode(dtype, &values, &mut blocks).unwrap_err(), expected);
        }
        if len > 1 {
            let (bytes, numbers) = (size, len - 1);
            let expected = CodecError::Length {
                dtype,
                bytes,
                numbers,
            };
            assert_eq!(
                decode(dtype, &vec![0; bytes], &mut vec![0.0; numbers]).unwrap_err(),
                expected
            );
        }
        decode(dtype, &[], &mut []).unwrap();
    }
}

proptest! {
    #[test]
    fn float_formats_are_within_half_a_step(values in prop::collection::vec(-1e4f32..1e4, 0..200)) {
        for (dtype, step) in [(DType::F32, 0.0), (DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
            let mut bytes = vec![0; values.len() * dtype.block_bytes()];
            encode(dtype, &values, &mut bytes).unwrap();
            let mut back = vec![0.0; values.len()];
            decode(dtype, &bytes, &mut back).unwrap();
            for (&x, &y) in values.iter().zip(&back) {
                let (x, y) = (f64::from(x), f64::from(y));
                let bound = (step * x.abs()).max(if dtype == DType::F16 { 2f64.powi(-25) } else { 0.0 });
                prop_assert!((x - y).abs() <= bound, "{dtype}: {x} became {y}");
            }
        }
    }

    #[test]
    fn q8_0_is_no_worse_than_rounding_and_keeps_its_codes(
        values in prop::collection::vec(-1e3f32..1e3, 32),
    ) {
        let round_trip = |values: &[f32]| {
            let mut bytes = [0; 34];
            encode(DType::Q8_0, values, &mut bytes).unwrap();
            let mut back = vec![0.0; 32];
            decode(DType::Q8_0, &bytes, &mut back).unwrap();
            back
        };
        let error = |back: &[f32]| {
            let pairs = values.iter().zip(back);
            pairs.map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum::<f64>()
        };
        let back = round_trip(&values);
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let step = largest / 127.0;
        let plain: Vec<f32> = values.iter().map(|x| (x / step).round() * step).collect();
        let rounding = 32.0 * f64::from(largest * 2f32.powi(-11)).powi(2);
        prop_assert!(error(&back) <= 1.01 * error(&plain) + rounding);
        prop_assert_eq!(round_trip(&back), back);
    }

    #[test]
    fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        for dtype in every_type() {
            let blocks = bytes.len() / dtype.block_bytes();
            let bytes = &bytes[..blocks * dtype.block_bytes()];
            decode(dtype, bytes, &mut vec![0.0; blocks * dtype.block_len()]).unwrap();
        }
    }
}

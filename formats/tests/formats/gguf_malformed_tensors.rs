//! Errors of malformed tensor tables.

use crate::gguf_common::{Raw, error};
use htc_formats::gguf::{Contents, GgmlType, GgufError};

fn one_tensor() -> Raw {
    let mut raw = Raw::new(3, 1, 0);
    raw.tensor("t", &[32], GgmlType::F32.id(), 0);
    raw
}

#[test]
fn duplicate_tensor_name_is_refused() {
    let mut raw = Raw::new(3, 2, 0);
    raw.tensor("t", &[8], 0, 0)
        .tensor("t", &[8], 0, 32)
        .data(64);
    assert_eq!(
        error(&raw.bytes),
        GgufError::DuplicateTensor {
            tensor: "t".to_owned()
        }
    );
}

#[test]
fn zero_or_too_many_dimensions_are_refused() {
    for found in [0, 5, u32::MAX] {
        let mut raw = Raw::new(3, 1, 0);
        raw.text("t").u32(found).raw(&[1; 64]);
        let tensor = "t".to_owned();
        assert_eq!(error(&raw.bytes), GgufError::Dimensions { tensor, found });
    }
}

#[test]
fn impossible_shapes_are_refused() {
    for dims in [
        &[0][..],
        &[32, 0],
        &[u64::MAX, 2],
        &[1 << 32, 1 << 32],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
        &[1 << 62, 2],
    ] {
        let mut raw = Raw::new(3, 1, 0);
        raw.tensor("t", dims, 0, 0).data(128);
        let expected = GgufError::Shape {
            tensor: "t".to_owned(),
            dims: dims.to_vec(),
        };
        assert_eq!(error(&raw.bytes), expected);
    }
}

#[test]
fn unknown_tensor_type_is_refused() {
    for found in [4, 5, 42, 1000, u32::MAX] {
        let mut raw = Raw::new(3, 1, 0);
        raw.tensor("t", &[32], found, 0).data(128);
        let tensor = "t".to_owned();
        assert_eq!(error(&raw.bytes), GgufError::UnknownType { tensor, found });
    }
}

#[test]
fn known_unsupported_type_is_listed() {
    for &kind in GgmlType::ALL {
        let mut raw = Raw::new(3, 1, 0);
        raw.tensor("t", &[kind.block_len(), 3], kind.id(), 0);
        raw.data(3 * kind.block_bytes() as usize);
        let contents = Contents::parse(&raw.bytes).unwrap();
        let tensor = contents.tensor("t").unwrap();
        assert_eq!(tensor.range.len(), 3 * kind.block_bytes() as usize);
        match kind.dtype() {
            Some(dtype) => assert_eq!(tensor.dtype(), Ok(dtype)),
            None => {
                let error = tensor.dtype().unwrap_err();
                let text = error.to_string();
                assert!(
                    text.contains(kind.name()) && text.contains("\"t\""),
                    "{text}"
                );
                let tensor = "t".to_owned();
                assert_eq!(
                    error,
                    GgufError::UnsupportedType {
                        tensor,
                        found: kind
                    }
                );
            }
        }
    }
}

#[test]
fn partial_block_in_a_row_is_refused() {
    for (kind, row) in [
        (GgmlType::Q8_0, 33),
        (GgmlType::Q4_K, 128),
        (GgmlType::MXFP4, 16),
    ] {
        let mut raw = Raw::new(3, 1, 0);
        raw.tensor("t", &[row, 256], kind.id(), 0).data(1 << 16);
        let expected = GgufError::Row {
            tensor: "t".to_owned(),
            ggml_type: kind,
            row,
            block: kind.block_len(),
        };
        assert_eq!(error(&raw.bytes), expected);
    }
}

#[test]
fn misaligned_offset_is_refused() {
    let mut raw = Raw::new(3, 1, 0);
    raw.tensor("t", &[8], 0, 16).data(64);
    let expected = GgufError::Misaligned {
        tensor: "t".to_owned(),
        offset: 16,
        alignment: 32,
    };
    assert_eq!(error(&raw.bytes), expected);
}

#[test]
fn data_beyond_the_end_are_refused() {
    let start = one_tensor().data(0).bytes.len() as u64;
    let mut short = one_tensor();
    short.data(127);
    let (tensor, length) = ("t".to_owned(), start + 127);
    let expected = GgufError::BeyondEnd {
        tensor,
        end: start + 128,
        length,
    };
    assert_eq!(error(&short.bytes), expected);
    for offset in [64, 1 << 40, u64::MAX - 31] {
        let mut raw = Raw::new(3, 1, 0);
        raw.tensor("t", &[32], 0, offset).data(128);
        let (tensor, length) = ("t".to_owned(), start + 128);
        let end = offset.saturating_add(start).saturating_add(128);
        assert_eq!(
            error(&raw.bytes),
            GgufError::BeyondEnd {
                tensor,
                end,
                length
            }
        );
    }
    one_tensor().data(128);
}

#[test]
fn overlapping_tensors_are_refused() {
    for (a, b, overlap) in [(0, 0, true), (0, 96, true), (96, 0, true), (0, 128, false)] {
        let mut raw = Raw::new(3, 2, 0);
        raw.tensor("a", &[32], 0, a)
            .tensor("b", &[32], 0, b)
            .data(256);
        match Contents::parse(&raw.bytes) {
            Ok(_) => assert!(!overlap, "{a} {b}"),
            Err(GgufError::Overlap { first, second }) => {
                let expected = if a <= b { ("a", "b") } else { ("b", "a") };
                assert_eq!((first.as_str(), second.as_str()), expected);
                assert!(overlap);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

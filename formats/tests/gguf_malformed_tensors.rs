//! What is wrong with the table of tensors is found, and named.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and so do its helpers"
)]

mod gguf_common;

use gguf_common::{Raw, error};
use htc_formats::gguf::{Contents, GgmlType, GgufError};

/// A file with one 32-number tensor, for changes to its table.
fn one_tensor() -> Raw {
    let mut raw = Raw::new(3, 1, 0);
    raw.tensor("t", &[32], GgmlType::F32.id(), 0);
    raw
}

#[test]
fn a_tensor_name_twice() {
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
fn too_many_dimensions_or_none() {
    for found in [0, 5, u32::MAX] {
        let mut raw = Raw::new(3, 1, 0);
        raw.text("t").u32(found).raw(&[1; 64]);
        let tensor = "t".to_owned();
        assert_eq!(error(&raw.bytes), GgufError::Dimensions { tensor, found });
    }
}

#[test]
fn impossible_shapes() {
    for dims in [
        &[0][..],
        &[32, 0],
        &[u64::MAX, 2],
        &[1 << 32, 1 << 32],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
        // The numbers fit and their bytes do not.
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
fn an_unknown_type_of_tensor() {
    for found in [4, 5, 42, 1000, u32::MAX] {
        let mut raw = Raw::new(3, 1, 0);
        raw.tensor("t", &[32], found, 0).data(128);
        let tensor = "t".to_owned();
        assert_eq!(error(&raw.bytes), GgufError::UnknownType { tensor, found });
    }
}

#[test]
fn a_type_that_is_known_and_not_decoded_is_listed() {
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
fn a_row_of_part_of_a_block() {
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
fn an_offset_that_is_not_aligned() {
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
fn data_beyond_the_end() {
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
fn tensors_that_overlap() {
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

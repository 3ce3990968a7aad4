//! Valid and invalid headers of safetensors files.

use std::slice;

use crate::safetensors_common::file;
use htc_formats::DType;
use htc_formats::limits;
use htc_formats::safetensors::{Contents, Element, SafetensorsError};

fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

fn parse(entries: &[String], data: usize) -> Result<Contents, SafetensorsError> {
    Contents::parse(&file(&format!("{{{}}}", entries.join(",")), &vec![0; data]))
}

fn refused(entries: &[String], data: usize) -> SafetensorsError {
    one_line(parse(entries, data).unwrap_err())
}

fn one_line(error: SafetensorsError) -> SafetensorsError {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 1000, "{text}");
    error
}

#[test]
fn tensors_are_located() {
    let header = format!(
        "{{{},\"__metadata__\":{{\"format\":\"pt\"}},{},{},{}}}   ",
        entry("b", "BF16", "[2,3]", 8, 20),
        entry("a", "F32", "[2]", 0, 8),
        entry("empty", "F16", "[0,7]", 20, 20),
        entry("one", "F64", "[]", 20, 28),
    );
    let contents = Contents::parse(&file(&header, &[0; 28])).unwrap();
    let start = 8 + header.len();
    let found: Vec<_> = contents
        .tensors()
        .iter()
        .map(|t| {
            let range = t.range.start - start..t.range.end - start;
            (t.name.as_str(), t.element, t.shape.clone(), range)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("a", Element::F32, vec![2], 0..8),
            ("b", Element::BF16, vec![2, 3], 8..20),
            ("empty", Element::F16, vec![0, 7], 20..20),
            ("one", Element::F64, vec![], 20..28),
        ]
    );
    assert_eq!(contents.tensor("b").unwrap().dtype(), Ok(DType::BF16));
    assert_eq!(contents.tensor("c"), None);
    assert_eq!(parse(&[], 0).unwrap().tensors(), []);
}

#[test]
fn unsupported_element_types_are_named() {
    for &element in Element::ALL {
        let bytes = element.bits();
        let one = entry("a", element.name(), "[8]", 0, bytes);
        let contents = parse(&[one], bytes as usize).unwrap();
        let tensor = contents.tensor("a").unwrap();
        assert_eq!(tensor.element, element);
        match tensor.dtype() {
            Ok(dtype) => assert_eq!(8 * dtype.block_bytes() as u64, element.bits()),
            Err(error) => {
                let text = one_line(error).to_string();
                assert!(text.contains(element.name()) && text.contains("\"a\""));
                assert!(
                    text.ends_with("supported are F64, F32, F16, BF16"),
                    "{text}"
                );
            }
        }
    }
    assert_eq!(
        refused(&[entry("a", "F8_X", "[4]", 0, 4)], 4),
        SafetensorsError::UnknownType {
            tensor: "a".to_owned(),
            found: "F8_X".to_owned()
        }
    );
}

#[test]
fn header_must_fit_the_file_and_its_limit() {
    for length in 0..8 {
        let error = one_line(Contents::parse(&vec![0; length]).unwrap_err());
        assert_eq!(error, SafetensorsError::TooShort { length });
    }
    for stated in [3, u64::MAX, limits::MAX_HEADER_BYTES + 1] {
        let mut bytes = stated.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        let error = one_line(Contents::parse(&bytes).unwrap_err());
        assert_eq!(error, SafetensorsError::HeaderLength { stated, left: 2 });
    }
    let mut bytes = (limits::MAX_HEADER_BYTES + 1).to_le_bytes().to_vec();
    bytes.resize(limits::MAX_HEADER_BYTES as usize + 64, b' ');
    assert!(matches!(
        one_line(Contents::parse(&bytes).unwrap_err()),
        SafetensorsError::Limit { .. }
    ));
}

#[test]
fn malformed_headers_are_refused() {
    for header in ["", " {}", "[]", "PK\u{3}\u{4}", "null"] {
        let error = one_line(Contents::parse(&file(header, &[])).unwrap_err());
        assert!(matches!(error, SafetensorsError::NotSafetensors { .. }));
    }
    let nested = format!("{{\"a\":{}", "[".repeat(1 << 20));
    let texts = format!("{{\"__metadata__\":{}", "{\"a\":".repeat(1 << 20));
    for header in [
        "{",
        "{} {}",
        r#"{"a":1}"#,
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"new\nkey":0}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"shape":[1]}}"#,
        r#"{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}}"#,
        r#"{"__metadata__":{"a":1}}"#,
        r#"{"__metadata__":["a"]}"#,
        &nested,
        &texts,
    ] {
        let error = one_line(Contents::parse(&file(header, &[0; 4])).unwrap_err());
        let start: String = header.chars().take(60).collect();
        assert!(matches!(error, SafetensorsError::Json { .. }), "{start}");
        assert!(!header.starts_with("{\"a\"") || error.to_string().contains("tensor \"a\""));
    }
    let mut bytes = file(r#"{"a":0}"#, &[]);
    bytes[10] = 0xff;
    assert!(matches!(
        one_line(Contents::parse(&bytes).unwrap_err()),
        SafetensorsError::Json { .. }
    ));
}

#[test]
fn duplicate_names_are_refused() {
    for second in [
        entry("a", "F32", "[1]", 0, 4),
        entry("a", "F32", "[0]", 4, 4),
        entry("a", "F32", "[1]", 4, 8),
        entry("\\u0061", "F32", "[1]", 4, 8),
    ] {
        let entries = [entry("a", "F32", "[1]", 0, 4), second];
        let error = refused(&entries, 8);
        let overlap = matches!(
            error,
            SafetensorsError::Overlap { .. } | SafetensorsError::Gap { .. }
        );
        assert!(
            overlap
                || error
                    == SafetensorsError::DuplicateTensor {
                        tensor: "a".to_owned()
                    },
            "{error}"
        );
    }
    let entries = [
        entry("a", "F32", "[1]", 0, 4),
        entry("a", "I32", "[1]", 4, 8),
    ];
    assert!(matches!(
        refused(&entries, 8),
        SafetensorsError::DuplicateTensor { .. }
    ));
    let long = "a".repeat(limits::MAX_TENSOR_NAME_BYTES as usize);
    parse(&[entry(&long, "F32", "[1]", 0, 4)], 4).unwrap();
    let error = refused(&[entry(&format!("{long}a"), "F32", "[1]", 0, 4)], 4);
    assert!(error.to_string().contains("256 bytes"), "{error}");
}

#[test]
fn offsets_must_match_type_and_shape() {
    for (dtype, shape, start, end, expected) in [
        ("F32", "[2,3]", 0, 20, Some(24)),
        ("F32", "[2,3]", 0, 25, Some(24)),
        ("F16", "[1]", 4, 2, Some(2)),
        ("F32", "[0,3]", 0, 4, Some(0)),
        ("F4", "[3]", 0, 2, None),
        ("F32", "[18446744073709551615,2]", 0, 4, None),
        ("F64", "[2305843009213693952]", 0, 0, None),
    ] {
        let error = refused(&[entry("a", dtype, shape, start, end)], 8);
        match error {
            SafetensorsError::Length {
                tensor,
                expected: found,
                ..
            } => {
                assert_eq!((tensor.as_str(), found), ("a", expected), "{dtype} {shape}");
            }
            other => panic!("{other}"),
        }
    }
    parse(
        &[entry(
            "a",
            "F32",
            "[0,18446744073709551615,18446744073709551615]",
            0,
            0,
        )],
        0,
    )
    .unwrap();
    let error = refused(&[entry("a", "F32", "[1,1,1,1,1]", 0, 4)], 4);
    assert!(
        error.to_string().contains("at most 4 dimensions"),
        "{error}"
    );
}

#[test]
fn tensors_must_cover_the_data() {
    let one = entry("a", "F32", "[2]", 0, 8);
    let gap = |before: Option<&str>, bytes| SafetensorsError::Gap {
        before: before.map(str::to_owned),
        bytes,
    };
    assert_eq!(refused(slice::from_ref(&one), 9), gap(None, 1));
    assert_eq!(refused(&[], 3), gap(None, 3));
    assert_eq!(
        refused(&[one.clone(), entry("b", "F32", "[1]", 12, 16)], 16),
        gap(Some("b"), 4)
    );
    assert_eq!(
        refused(&[entry("b", "F32", "[1]", 4, 8)], 8),
        gap(Some("b"), 4)
    );
    for second in [
        entry("b", "F32", "[1]", 4, 8),
        entry("b", "F32", "[2]", 4, 12),
        entry("b", "F32", "[0]", 4, 4),
        entry("b", "F32", "[3]", 0, 12),
    ] {
        let error = refused(&[one.clone(), second], 12);
        assert_eq!(
            error,
            SafetensorsError::Overlap {
                first: "a".to_owned(),
                second: "b".to_owned()
            }
        );
    }
    let error = refused(slice::from_ref(&one), 7);
    assert_eq!(
        error,
        SafetensorsError::BeyondEnd {
            tensor: "a".to_owned(),
            end: 8,
            length: 7
        }
    );
    let far = entry("a", "U8", "[4]", u64::MAX - 4, u64::MAX);
    assert!(matches!(
        refused(&[far], 4),
        SafetensorsError::BeyondEnd { .. }
    ));
    let whole = entry("a", "U8", &format!("[{}]", u64::MAX / 8), 0, u64::MAX / 8);
    assert!(matches!(
        refused(&[whole], 4),
        SafetensorsError::BeyondEnd { .. }
    ));
}

use super::*;

#[test]
fn names_and_json_agree() {
    for &dtype in DType::ALL {
        assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        let json = serde_json::to_string(&dtype).unwrap();
        assert_eq!(json, format!("\"{}\"", dtype.name()));
        assert_eq!(serde_json::from_str::<DType>(&json).unwrap(), dtype);
    }
}

#[test]
fn rows_must_be_whole_blocks() {
    assert_eq!(DType::Q8_0.row_bytes(64), Some(68));
    assert_eq!(DType::Q8_0.row_bytes(63), None);
    assert_eq!(DType::Q6K.matrix_bytes(3, 512), Some(3 * 420));
    assert_eq!(DType::F32.matrix_bytes(usize::MAX, 2), None);
    assert_eq!(DType::Bands.row_bytes(64), None);
    assert!("bands".parse::<DType>().is_err() && !DType::ALL.contains(&DType::Bands));
}

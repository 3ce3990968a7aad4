use htc_formats::block;

use super::*;

#[test]
fn fallback_types_have_no_fewer_bits() {
    let bits = |dtype: DType| dtype.block_bytes() as f64 / dtype.block_len() as f64;
    for &asked in block::writable_types() {
        for cols in [256, 512, 288, 32, 48, 17] {
            let found = fitting_type(asked, cols);
            assert!(found.row_bytes(cols).is_some(), "{asked} {cols}");
            assert!(
                bits(found) >= bits(asked) || asked == DType::F32,
                "{asked} {cols}"
            );
            assert!(found == asked || asked.row_bytes(cols).is_none());
        }
    }
    assert_eq!(fitting_type(DType::Q4K, 288), DType::Q5_0);
    assert_eq!(fitting_type(DType::Q4K, 24), DType::F16);
}

#[test]
fn zero_bytes_decode_to_zeros() {
    for cols in [256, 96, 24] {
        let dtype = zeros_type(cols);
        let mut values = vec![1.0; cols];
        let bytes = vec![0; dtype.row_bytes(cols).unwrap()];
        block::decode(dtype, &bytes, &mut values).unwrap();
        assert!(values.iter().all(|&value| value == 0.0), "{dtype}");
    }
}

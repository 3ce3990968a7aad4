//! Any blocks decode, and what they decode to is written back to numbers that are the same.

#![no_main]

use htc_formats::DType;
use htc_formats::block::{decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else {
        return;
    };
    let dtype = DType::ALL[usize::from(choice) % DType::ALL.len()];
    let blocks = bytes.len() / dtype.block_bytes();
    let mut values = vec![0.0; blocks * dtype.block_len()];
    let whole = &bytes[..blocks * dtype.block_bytes()];
    assert_eq!(
        decode(dtype, bytes, &mut values).is_ok(),
        bytes.len() == whole.len()
    );
    assert!(decode(dtype, whole, &mut values).is_ok());

    for target in [DType::F32, dtype] {
        let Some(size) = target.row_bytes(values.len()) else {
            continue;
        };
        let mut written = vec![0; size];
        if encode(target, &values, &mut written).is_err() || target == DType::Q8_0 {
            continue;
        }
        let mut back = vec![0.0; values.len()];
        assert!(decode(target, &written, &mut back).is_ok());
        for (value, back) in values.iter().zip(&back) {
            assert!(value.to_bits() == back.to_bits() || (value.is_nan() && back.is_nan()));
        }
    }
});

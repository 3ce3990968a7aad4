//! Decodes arbitrary blocks and encodes arbitrary numbers. Float formats must round-trip; the
//! others must give finite numbers.

#![no_main]

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block::{decode, encode, writable_types};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[from, to], bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let chosen = |choice: u8| DType::ALL[usize::from(choice) % DType::ALL.len()];
    let dtype = chosen(from);
    let blocks = bytes.len() / dtype.block_bytes();
    let mut values = vec![0.0; blocks * dtype.block_len()];
    let whole = &bytes[..blocks * dtype.block_bytes()];
    assert_eq!(
        decode(dtype, bytes, &mut values).is_ok(),
        bytes.len() == whole.len()
    );
    assert!(decode(dtype, whole, &mut values).is_ok());

    for target in [DType::F32, dtype, chosen(to)] {
        let Some(size) = target.row_bytes(values.len()) else {
            continue;
        };
        let mut written = vec![0; size];
        let done = encode(target, &values, &mut written);
        assert_eq!(
            matches!(done, Err(CodecError::ReadOnlyType { .. })),
            !writable_types().contains(&target)
        );
        match done {
            Ok(()) => {}
            Err(CodecError::ReadOnlyType { .. }) => continue,
            Err(CodecError::NoCode { index, value, .. }) => {
                assert_eq!(values[index].to_bits(), value.to_bits());
                assert!(target.block_len() > 1 && !(value.abs() < 65520.0));
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        let mut back = vec![0.0; values.len()];
        assert!(decode(target, &written, &mut back).is_ok());
        for (value, back) in values.iter().zip(&back) {
            if target.block_len() > 1 {
                assert!(back.is_finite());
            } else if target == DType::F32 || target == dtype {
                assert!(value.to_bits() == back.to_bits() || (value.is_nan() && back.is_nan()));
            }
        }
    }
});

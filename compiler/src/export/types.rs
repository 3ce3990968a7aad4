//! Types of tensors in a GGUF.

use htc_formats::DType;

/// Returns true if llama.cpp multiplies with matrices of a type.
pub(super) fn is_executed(dtype: DType) -> bool {
    match dtype {
        DType::F64
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        // Codes of this project.
        | DType::Bands
        | DType::Q8_1
        | DType::Q8K => false,
        dtype => dtype.row_bytes(dtype.block_len()).is_some(),
    }
}

/// Returns `asked` if rows are whole blocks of it, else the next fitting type with no fewer bits,
/// by the table of `llama-quantize`.
pub(super) fn fitting_type(asked: DType, cols: usize) -> DType {
    if asked.row_bytes(cols).is_some() {
        return asked;
    }
    let smaller_blocks = match asked {
        DType::Q2K | DType::Q3K | DType::IQ4XS => DType::IQ4NL,
        DType::Q4K => DType::Q5_0,
        DType::Q5K => DType::Q5_1,
        DType::Q6K => DType::Q8_0,
        _ => DType::F16,
    };
    match smaller_blocks.row_bytes(cols) {
        Some(_) => smaller_blocks,
        None => DType::F16,
    }
}

/// Returns the smallest type for a matrix of zeros that every backend of llama.cpp supports; zero
/// bytes decode to zeros in it.
pub(super) fn zeros_type(cols: usize) -> DType {
    match DType::Q2K.row_bytes(cols) {
        Some(_) => DType::Q2K,
        None => fitting_type(DType::Q4_0, cols),
    }
}

#[cfg(test)]
mod tests {
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
}

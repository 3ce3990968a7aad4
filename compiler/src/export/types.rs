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
mod tests;

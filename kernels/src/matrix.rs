//! Stored matrices as views of bytes.

use htc_formats::DType;

use crate::error::{ShapeError, check_at_most, check_size};

/// View of a stored matrix `W [rows, cols]`. Rows are whole blocks of [`dtype`](Matrix::dtype),
/// contiguous, or further apart for a [prefix of columns](Matrix::first_cols).
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    dtype: DType,
    rows: usize,
    cols: usize,
    stride: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Views exactly the bytes of the rows.
    pub fn new(
        dtype: DType,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let Some(row_bytes) = dtype.row_bytes(cols) else {
            return Err(not_whole_blocks(dtype, cols));
        };
        let Some(expected) = dtype.matrix_bytes(rows, cols) else {
            return Err(ShapeError::new("matrix (bytes)", usize::MAX, bytes.len()));
        };
        check_size("matrix (bytes)", expected, bytes.len())?;
        Ok(Matrix {
            dtype,
            rows,
            cols,
            stride: row_bytes,
            row_bytes,
            bytes,
        })
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows, the length of `y`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns, the length of `x`.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the bytes of one row.
    ///
    /// # Panics
    /// When `row >= rows()`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let start = row * self.stride;
        &self.bytes[start..start + self.row_bytes]
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the first `rows` rows: a factor `A` of `W ≈ B A` at a smaller rank.
    pub fn first_rows(self, rows: usize) -> Result<Self, ShapeError> {
        self.row_range(0, rows)
    }

    /// Returns `count` rows from row `first`.
    pub fn row_range(self, first: usize, count: usize) -> Result<Self, ShapeError> {
        let end = first.saturating_add(count);
        check_at_most("matrix (rows, at most)", self.rows, end)?;
        let bytes = match count {
            0 => &[],
            _ => {
                let start = first * self.stride;
                &self.bytes[start..start + (count - 1) * self.stride + self.row_bytes]
            }
        };
        Ok(Matrix {
            rows: count,
            bytes,
            ..self
        })
    }

    /// Returns the first `cols` columns: a factor `B` of `W ≈ B A` at a smaller rank.
    pub fn first_cols(self, cols: usize) -> Result<Self, ShapeError> {
        check_at_most("matrix (columns, at most)", self.cols, cols)?;
        let Some(row_bytes) = self.dtype.row_bytes(cols) else {
            return Err(not_whole_blocks(self.dtype, cols));
        };
        let bytes = match self.rows {
            0 => &[],
            rows => &self.bytes[..(rows - 1) * self.stride + row_bytes],
        };
        Ok(Matrix {
            cols,
            row_bytes,
            bytes,
            ..self
        })
    }
}

fn not_whole_blocks(dtype: DType, cols: usize) -> ShapeError {
    let block = dtype.block_len();
    let expected = (cols / block).saturating_add(1).saturating_mul(block);
    ShapeError::new("matrix (columns, a multiple of the block)", expected, cols)
}

#[cfg(test)]
mod tests;

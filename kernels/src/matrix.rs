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
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_rows_and_columns_keep_the_stride() {
        let bytes: Vec<u8> = (0..4 * 68).map(|b| b as u8).collect();
        let w = Matrix::new(DType::Q8_0, 4, 64, &bytes).unwrap();
        assert_eq!((w.rows(), w.cols(), w.dtype()), (4, 64, DType::Q8_0));
        assert_eq!(w.row(3), &bytes[3 * 68..]);
        let left = w.first_cols(32).unwrap();
        assert_eq!(left.row(2), &bytes[2 * 68..2 * 68 + 34]);
        assert_eq!(left.row(3), &bytes[3 * 68..3 * 68 + 34]);
        let corner = left.first_rows(2).unwrap();
        assert_eq!((corner.rows(), corner.cols()), (2, 32));
        assert_eq!(corner.row(1), &bytes[68..68 + 34]);
        let middle = left.row_range(1, 2).unwrap();
        assert_eq!(middle.row(0), &bytes[68..68 + 34]);
        assert_eq!(middle.row(1), &bytes[2 * 68..2 * 68 + 34]);
        let none = w.first_rows(0).unwrap().first_cols(32).unwrap();
        assert_eq!((none.rows(), none.cols()), (0, 32));
        assert_eq!(w.first_cols(0).unwrap().row(3), &[] as &[u8]);
    }

    #[test]
    fn mismatched_shapes_are_rejected() {
        let bytes = [0u8; 68];
        assert_eq!(
            Matrix::new(DType::Q8_0, 1, 63, &bytes).unwrap_err(),
            ShapeError {
                argument: "matrix (columns, a multiple of the block)",
                expected: 64,
                actual: 63
            }
        );
        assert_eq!(
            Matrix::new(DType::Q8_0, 2, 64, &bytes).unwrap_err(),
            ShapeError {
                argument: "matrix (bytes)",
                expected: 136,
                actual: 68
            }
        );
        assert!(Matrix::new(DType::F32, usize::MAX, 2, &bytes).is_err());
        let w = Matrix::new(DType::Q8_0, 1, 64, &bytes).unwrap();
        assert!(w.first_rows(2).is_err());
        assert!(w.row_range(1, usize::MAX).is_err());
        assert!(w.first_cols(96).is_err());
        assert!(w.first_cols(33).is_err());
    }
}

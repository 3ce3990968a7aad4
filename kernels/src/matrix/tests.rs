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

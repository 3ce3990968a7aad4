use super::*;

#[test]
fn qr_is_used_from_a_quarter_more_rows_than_columns() {
    for (rows, columns, expected) in [
        (4, 4, false),
        (5, 4, true),
        (6, 5, false),
        (7, 5, true),
        (1, 1, false),
        (2, 1, true),
        (usize::MAX, usize::MAX, false),
    ] {
        assert_eq!(
            prefers_qr_first(rows, columns),
            expected,
            "{rows} {columns}"
        );
    }
}

#[test]
fn oversized_dimensions_are_rejected() {
    assert_eq!(to_i64(7), Ok(7));
    assert!(to_i64(usize::MAX).is_err());
}

#[test]
fn non_finite_values_are_rejected() {
    assert_eq!(check_finite(2, &[0.0, -1.0]), Ok(()));
    for value in [f64::NAN, f64::INFINITY] {
        let error = check_finite(2, &[0.0, value]).unwrap_err();
        assert_eq!(error, DeviceError::NoConvergence { order: 2 });
    }
}

use super::*;

#[test]
fn unavailable_error_names_the_remedy() {
    let error = DeviceError::NoLibrary {
        library: "cuBLAS",
        message: "is not installed".to_owned(),
    };
    let text = error.to_string();
    assert!(
        text.starts_with("cuBLAS is not installed; install cuSOLVER"),
        "{text}"
    );
    assert!(text.contains("nvidia-cublas of PyPI"), "{text}");
}

#[test]
fn eigen_order_requires_square_matrices() {
    assert_eq!(check_square(&[0.0; 9], &[0.0; 3]), Ok(3));
    assert_eq!(check_square(&[], &[]), Ok(0));
    let error = check_square(&[0.0; 8], &[0.0; 3]).unwrap_err();
    assert_eq!((error.expected, error.actual), (9, 8));
}

#[test]
fn tall_shape_rejects_wide_matrices() {
    let shape =
        |tall, values, right| check_tall(&vec![0.0; tall], &vec![0.0; values], &vec![0.0; right]);
    assert_eq!(shape(12, 3, 9), Ok([4, 3]));
    assert_eq!(shape(9, 3, 9), Ok([3, 3]));
    assert_eq!(shape(0, 0, 0), Ok([0, 0]));
    assert_eq!(
        shape(6, 3, 9).unwrap_err().to_string(),
        "tall (numbers, at least): expected 9, found 6"
    );
    assert_eq!(
        shape(11, 3, 9).unwrap_err().argument,
        "tall (numbers, whole rows)"
    );
    assert_eq!(shape(12, 3, 6).unwrap_err().argument, "right (numbers)");
    assert!(shape(5, 0, 0).is_err());
}

#[test]
fn check_product_checks_every_argument() {
    let check = |[rows, inner, columns]: [usize; 3], [left, right, out]: [usize; 3]| {
        let shape = ProductShape {
            rows,
            inner,
            columns,
        };
        check_product(shape, &vec![0.0; left], &vec![0.0; right], &vec![0.0; out])
            .map_err(|error| error.argument)
    };
    assert_eq!(check([2, 3, 5], [6, 15, 10]), Ok(()));
    assert_eq!(check([2, 0, 5], [0, 0, 10]), Ok(()));
    assert_eq!(check([2, 3, 5], [5, 15, 10]), Err("left (numbers)"));
    assert_eq!(check([2, 3, 5], [6, 14, 10]), Err("right (numbers)"));
    assert_eq!(check([2, 3, 5], [6, 15, 11]), Err("out (numbers)"));
    assert_eq!(check([usize::MAX, 2, 0], [0, 0, 0]), Err("left (numbers)"));
}

#[test]
fn incomplete_vectors_are_rejected() {
    assert_eq!(vector_count(3, &[0.0; 12]), Ok(4));
    assert_eq!(vector_count(3, &[]), Ok(0));
    assert_eq!(vector_count(0, &[]), Ok(0));
    assert!(vector_count(3, &[0.0; 11]).is_err());
    assert!(vector_count(0, &[0.0]).is_err());
}

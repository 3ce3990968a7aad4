use super::equal_size_rows;

#[test]
fn dense_matrix_has_the_size_of_the_factors() {
    assert_eq!(equal_size_rows(64, 256, 256), 128);
    assert_eq!(equal_size_rows(1024, 14336, 4096), 4608);
    // To the nearest row.
    assert_eq!(equal_size_rows(32, 128, 576), 39);
}

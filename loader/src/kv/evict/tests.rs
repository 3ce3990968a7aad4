use super::*;

#[test]
fn important_neighbourhoods_are_kept_and_ties_go_to_lower_indices() {
    let mut importance = [0.0; 40];
    importance[20] = 5.0;
    let around: Vec<usize> = (17..24).collect();
    assert_eq!(rows_to_keep(&importance, 0..30, 7, 0, 30), around);
    let expected: Vec<usize> = [0, 1].into_iter().chain(17..24).chain(30..35).collect();
    assert_eq!(rows_to_keep(&importance, 0..30, 9, 0, 35), expected);
    assert_eq!(
        rows_to_keep(&importance, 10..30, 3, 10, 32),
        [7, 8, 9, 20, 21]
    );
    assert_eq!(indices_of_largest(&[1.0, 3.0, 2.0, 3.0], 2), [1, 3]);
    assert_eq!(indices_of_largest(&[f32::NAN, 3.0], 5), [0, 1]);
}

use super::*;

fn turned(size: usize, angle: f64) -> Vec<f32> {
    let (sin, cos) = angle.sin_cos();
    let entry = |at: usize| match (at / size, at % size) {
        (0, 0) | (1, 1) => cos as f32,
        (0, 1) => sin as f32,
        (1, 0) => -sin as f32,
        (row, col) if row == col => 1.0,
        _ => 0.0,
    };
    (0..size * size).map(entry).collect()
}

#[test]
fn rows_are_accepted_if_orthonormal_within_a_hundredth() {
    for angle in [0.0, 0.3, 2.0] {
        assert_eq!(check_components(&turned(5, angle), 5), Ok(()));
    }
    let mut off = turned(5, 0.3);
    off[0] += 5e-4;
    assert_eq!(check_components(&off, 5), Ok(()));
    off[0] += 0.05;
    let (expected, found) = check_components(&off, 5).unwrap_err();
    assert!(
        expected.contains("orthonormal") && found.contains("rows 0 and 0"),
        "{found}"
    );
    let mut twice = turned(5, 0.0);
    twice[5..10].copy_from_slice(&[1.0, 0.0, 0.0, 0.0, 0.0]);
    let (_, found) = check_components(&twice, 5).unwrap_err();
    assert!(found.contains("rows 0 and 1"), "{found}");
    for bad in [f32::NAN, f32::INFINITY] {
        let mut numbers = turned(5, 0.0);
        numbers[13] = bad;
        let (expected, found) = check_components(&numbers, 5).unwrap_err();
        assert_eq!(expected, "finite numbers");
        assert!(found.contains("row 2"), "{found}");
    }
}

#[test]
fn energies_must_be_non_increasing_fractions() {
    for good in [&[0.75, 0.25, 0.0][..], &[0.0; 4], &[1.0], &[0.5, 0.5]] {
        assert_eq!(check_energies(good), Ok(()));
    }
    for (bad, said) in [
        (&[0.5, f32::NAN][..], "from 0 to 1"),
        (&[1.5, -0.5], "from 0 to 1"),
        (&[0.25, 0.75], "do not increase"),
        (&[0.5, 0.25], "the sum 1"),
    ] {
        let (expected, _) = check_energies(bad).unwrap_err();
        assert!(expected.contains(said), "{bad:?}: {expected}");
    }
}

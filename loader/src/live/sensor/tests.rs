use super::*;

#[test]
fn error_values_of_sensors_are_implausible() {
    let of = |value| Reading {
        temperature: Some(value),
        power: Some(value),
        energy: Some(value),
        ..Reading::default()
    };
    for wrong in [-1.0, 255.0, f64::NAN, f64::INFINITY, -40.1, 150.1] {
        assert_eq!(of(wrong).plausible_temperature(), None, "{wrong}");
    }
    for right in [-40.0, -0.9, 0.0, 65.0, 150.0] {
        assert_eq!(of(right).plausible_temperature(), Some(right));
    }
    for wrong in [-1.0, f64::NAN, 1.1e5, f64::INFINITY] {
        assert_eq!(of(wrong).plausible_power(), None, "{wrong}");
    }
    assert_eq!(of(255.0).plausible_power(), Some(255.0));
    for wrong in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(of(wrong).plausible_energy(), None, "{wrong}");
    }
}

#[test]
fn system_numbers_must_be_short_integers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("value");
    for (text, expected) in [
        ("42\n", Some(42)),
        ("-1", Some(-1)),
        ("", None),
        ("4 2", None),
    ] {
        std::fs::write(&path, text).unwrap();
        let found = read_integer::<i64>(&path);
        assert_eq!(
            found.as_ref().ok().copied(),
            expected,
            "{text:?}: {found:?}"
        );
    }
    std::fs::write(&path, "1".repeat(1 << 20)).unwrap();
    let fault = read_integer::<i64>(&path).unwrap_err().to_string();
    assert!(fault.len() < 400 && fault.contains("value"), "{fault}");
    std::fs::write(&path, b"\xff\x1b[2J").unwrap();
    let fault = read_integer::<i64>(&path).unwrap_err().to_string();
    assert!(!fault.contains('\u{1b}'), "{fault}");
    let absent = read_integer::<i64>(&folder.path().join("absent")).unwrap_err();
    assert!(matches!(absent, LiveError::Open(_)));
}

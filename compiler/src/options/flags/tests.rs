use super::*;

#[test]
fn bytes_have_units() {
    for (text, bytes) in [
        ("1", 1),
        ("12345", 12_345),
        ("12345B", 12_345),
        ("3.5MB", 3_500_000),
        ("3.5 mb", 3_500_000),
        ("400MiB", 400 << 20),
        ("0.5KiB", 512),
        ("2TB", 2_000_000_000_000),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
    }
    for text in [
        "",
        "0",
        "0.2",
        "1.5",
        "-1",
        "MB",
        ".MB",
        "1e3",
        "1M",
        "3 5MB",
        "1.2.3MB",
        "inf",
        "nan",
        "0.0001kB",
        "18446744073709551616",
        "99999999999TB",
        "9999999999999999999.5TB",
    ] {
        assert!(parse_bytes(text).is_err(), "{text}");
    }
}

use super::*;

#[test]
fn numbers_keep_four_digits() {
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.123_456, "0.1235"),
        (12.345_6, "12.35"),
        (1234.56, "1235"),
        (-0.5, "-0.5"),
        (100.0, "100"),
        (12_345.0, "12\u{202f}345"),
        (14_792_928.0, "14\u{202f}792\u{202f}928"),
        (1e308, "1e308"),
        (0.000_012_34, "1.23e-5"),
        (f64::NAN, "not finite"),
    ] {
        assert_eq!(number(value), text);
    }
    assert_eq!(count(14_792_928), "14\u{202f}792\u{202f}928");
    assert_eq!(
        count(u64::MAX).chars().filter(char::is_ascii_digit).count(),
        20
    );
    assert_eq!(percent(0.54321), "54.3 %");
    for (value, text) in [
        (0.0, "0 B"),
        (-1.0, "0 B"),
        (999.0, "999 B"),
        (2_310_937.0, "2.31 MB"),
        (14_792_928.0, "14.8 MB"),
        (524_288.0, "524 kB"),
        (1e300, "1e288 TB"),
    ] {
        assert_eq!(bytes(value), text);
    }
}

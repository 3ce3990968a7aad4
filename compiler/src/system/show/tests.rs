use super::{format_bytes, format_count};

#[test]
fn one_is_singular() {
    let counts = [0, 1, 2].map(|count| format_count(count, "layer"));
    assert_eq!(counts, ["0 layers", "1 layer", "2 layers"]);
}

#[test]
fn bytes_have_three_digits_and_a_unit() {
    assert_eq!(format_bytes(0), "0 B");
    assert_eq!(format_bytes(999), "999 B");
    assert_eq!(format_bytes(14_792_928), "14.8 MB");
    assert_eq!(format_bytes(2_500_000_000), "2.5 GB");
}

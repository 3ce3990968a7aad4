//! The record as it is written and read.

use super::record::rounded;

#[test]
fn numbers_are_rounded_to_six_digits() {
    for (number, expected) in [
        (0.0, 0.0),
        (1.0 / 3.0, 0.333333),
        (-123456.789, -123457.0),
        (6.022e23, 6.022e23),
        (1e-300, 1e-300),
    ] {
        assert_eq!(rounded(number), expected);
    }
}

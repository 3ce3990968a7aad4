use super::format_seconds;

#[test]
fn times_have_a_unit_that_fits() {
    let said = [0.02, 9.99, 42.0, 89.9, 600.0, 9000.0].map(format_seconds);
    assert_eq!(said, ["0.0 s", "10.0 s", "42 s", "90 s", "10 min", "2.5 h"]);
}

use super::one_line;

#[test]
fn usage_errors_are_one_line() {
    let message = "error: invalid value '0' for '--rank <N|full>': a tip: is\n  no rank\n\n  tip: pass 1\n\nUsage: htc\n\nFor more information, try '--help'.\n";
    assert_eq!(
        one_line(message),
        "error: invalid value '0' for '--rank <N|full>': a tip: is no rank; pass 1; see --help"
    );
}

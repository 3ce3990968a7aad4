use std::time::{Duration, UNIX_EPOCH};

use super::*;

#[test]
fn times_are_formatted_in_utc() {
    let at = |seconds: u64| format_utc(UNIX_EPOCH + Duration::from_millis(1000 * seconds + 999));
    assert_eq!(at(0), "1970-01-01T00:00:00Z");
    assert_eq!(at(951_868_799), "2000-02-29T23:59:59Z");
    assert_eq!(at(1 << 50), at(0));
}

#[test]
fn dates_match_python() {
    let at = |format| format_time(Timestamp::from_second(951_782_400).unwrap(), format);
    for (format, expected) in [
        (
            "%A, %d %B %Y, %H:%M:%S",
            "Tuesday, 29 February 2000, 00:00:00",
        ),
        ("%y-%m %a %b 100%%", "00-02 Tue Feb 100%"),
        ("%-d %I %p", "29 12 AM"),
    ] {
        assert_eq!(at(format).unwrap(), expected);
    }
    for wrong in ["%", "%K"] {
        let message = at(wrong).unwrap_err().to_string();
        assert!(message.contains(wrong), "{message}");
    }
}

use super::*;

#[test]
fn terminal_control_characters_are_escaped() {
    let hostile = "a\u{1b}[2J\u{9b}31m\u{7f}\r\n\u{202e}gpj.exe\u{2066}\u{200f}\u{feff}ü";
    assert_eq!(
        escape(hostile),
        "a\\u{1b}[2J\\u{9b}31m\\u{7f}\\r\\n\\u{202e}gpj.exe\\u{2066}\\u{200f}\\u{feff}ü"
    );
    assert_eq!(escape_multiline("a\tb\n\u{1b}"), "a\tb\n\\u{1b}");
    for plain in ["", "Grüße 日本 🚀 \u{301}", "a b"] {
        assert!(matches!(escape(plain), Cow::Borrowed(same) if same == plain));
    }
}

#[test]
fn lines_are_bounded() {
    assert_eq!(escape_truncated("ab\n"), "ab\\n");
    assert_eq!(escape_truncated(&"ü".repeat(300)).chars().count(), 201);
}

proptest::proptest! {
    #[test]
    fn escaped_text_has_only_plain_characters(text in proptest::prelude::any::<String>()) {
        proptest::prop_assert!(escape(&text).chars().all(is_plain));
    }
}

//! Texts of others as people may see them: the one place that escapes.
//!
//! Names of files, tensors, tokens and metadata come from whoever wrote them. Shown as they are, they
//! could move a terminal's cursor, change its title (ESC, or U+009B, which is the same in one
//! character), or turn the direction of writing so that a name reads as another.

use std::borrow::Cow;

/// Whether a character shows as itself and does nothing else: no control character (C0, DEL, C1),
/// no mark of the direction of writing, no separator of lines or paragraphs, none that is invisible
/// by design (byte order mark, joiners of words, tags).
pub fn is_plain(c: char) -> bool {
    !(c.is_control()
        || matches!(
            c,
            '\u{061c}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        ))
}

/// A text on one line: every character that is not [plain](is_plain) as `\n`, `\t`, `\r` or
/// `\u{1b}`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    but(text, |_| false)
}

/// As [`escaped`], with line ends and tabs as they are: for a text that is to be read as such.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    but(text, |c| matches!(c, '\n' | '\t'))
}

fn but(text: &str, kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let shows = |c: char| is_plain(c) || kept(c);
    if text.chars().all(shows) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match shows(c) {
            true => line.push(c),
            false => line.extend(c.escape_default()),
        }
    }
    Cow::Owned(line)
}

/// [`escaped`], cut to a length that fits a message.
pub(crate) fn one_line(text: &str) -> String {
    const LONGEST: usize = 200;
    let end = text.char_indices().nth(LONGEST).map(|(end, _)| end);
    let mut line = escaped(&text[..end.unwrap_or(text.len())]).into_owned();
    if end.is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped() {
        let hostile = "a\u{1b}[2J\u{9b}31m\u{7f}\r\n\u{202e}gpj.exe\u{2066}\u{200f}\u{feff}ü";
        assert_eq!(
            escaped(hostile),
            "a\\u{1b}[2J\\u{9b}31m\\u{7f}\\r\\n\\u{202e}gpj.exe\\u{2066}\\u{200f}\\u{feff}ü"
        );
        assert_eq!(escaped_lines("a\tb\n\u{1b}"), "a\tb\n\\u{1b}");
        for plain in ["", "Grüße 日本 🚀 \u{301}", "a b"] {
            assert!(matches!(escaped(plain), Cow::Borrowed(same) if same == plain));
        }
    }

    #[test]
    fn lines_are_bounded() {
        assert_eq!(one_line("ab\n"), "ab\\n");
        assert_eq!(one_line(&"ü".repeat(300)).chars().count(), 201);
    }

    proptest::proptest! {
        #[test]
        fn nothing_but_plain_characters_is_left(text in proptest::prelude::any::<String>()) {
            proptest::prop_assert!(escaped(&text).chars().all(is_plain));
        }
    }
}

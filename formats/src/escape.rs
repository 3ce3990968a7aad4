//! Escaping of untrusted text for display: it could move a terminal's cursor, change its title, or
//! reverse the writing direction.

use std::borrow::Cow;

/// Returns true for a printable character without side effects: no control character, bidirectional
/// mark, line or paragraph separator, or invisible format character.
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

/// Returns the text on one line, with every character that is not [plain](is_plain) escaped as
/// `\n`, `\t`, `\r` or `\u{1b}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_except(text, |_| false)
}

/// Returns the text [`escape`] except for line ends and tabs, for multi-line display.
pub fn escape_multiline(text: &str) -> Cow<'_, str> {
    escape_except(text, |c| matches!(c, '\n' | '\t'))
}

fn escape_except(text: &str, kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let shows = |c: char| is_plain(c) || kept(c);
    if text.chars().all(shows) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if shows(c) {
            line.push(c)
        } else {
            line.extend(c.escape_default())
        }
    }
    Cow::Owned(line)
}

/// Returns the first 200 characters of the text, [`escape`]d, with an ellipsis if there are more.
pub fn escape_truncated(text: &str) -> String {
    const LONGEST: usize = 200;
    let end = text.char_indices().nth(LONGEST).map(|(end, _)| end);
    let mut line = escape(&text[..end.unwrap_or(text.len())]).into_owned();
    if end.is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests;

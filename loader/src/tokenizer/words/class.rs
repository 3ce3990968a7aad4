//! Character classes of pre-tokenizers.

use unicode_general_category::{GeneralCategory, get_general_category};

pub(super) type Class = u8;

/// `\p{L}`
pub(super) const LETTER: Class = 1;
/// `\p{N}`
pub(super) const NUMBER: Class = 1 << 1;
/// `\p{P}`
pub(super) const PUNCTUATION: Class = 1 << 2;
/// `\p{S}`
pub(super) const SYMBOL: Class = 1 << 3;
/// `\p{M}`
pub(super) const MARK: Class = 1 << 4;
/// `\s`
pub(super) const SPACE: Class = 1 << 5;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: may precede the lower-case letters of a word.
pub(super) const LEADING: Class = 1 << 6;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: may end a word.
pub(super) const TRAILING: Class = 1 << 7;

const ASCII: [Class; 128] = {
    let mut table = [0; 128];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' => LETTER | TRAILING,
            b'A'..=b'Z' => LETTER | LEADING,
            b'0'..=b'9' => NUMBER,
            b'\t'..=b'\r' | b' ' => SPACE,
            b'$' | b'+' | b'<'..=b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            b'!'..=b'/' | b':'..=b'@' | b'['..=b'_' | b'{'..=b'}' => PUNCTUATION,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Returns the class of a character in Unicode 16.
pub(super) fn class(character: char) -> Class {
    use GeneralCategory::{
        ClosePunctuation, ConnectorPunctuation, CurrencySymbol, DashPunctuation, DecimalNumber,
        EnclosingMark, FinalPunctuation, InitialPunctuation, LetterNumber, LowercaseLetter,
        MathSymbol, ModifierLetter, ModifierSymbol, NonspacingMark, OpenPunctuation, OtherLetter,
        OtherNumber, OtherPunctuation, OtherSymbol, SpacingMark, TitlecaseLetter, UppercaseLetter,
    };
    if character.is_ascii() {
        return ASCII[character as usize];
    }
    match get_general_category(character) {
        UppercaseLetter | TitlecaseLetter => LETTER | LEADING,
        LowercaseLetter => LETTER | TRAILING,
        ModifierLetter | OtherLetter => LETTER | LEADING | TRAILING,
        NonspacingMark | SpacingMark | EnclosingMark => MARK | LEADING | TRAILING,
        DecimalNumber | LetterNumber | OtherNumber => NUMBER,
        ConnectorPunctuation | DashPunctuation | OpenPunctuation | ClosePunctuation
        | InitialPunctuation | FinalPunctuation | OtherPunctuation => PUNCTUATION,
        MathSymbol | CurrencySymbol | ModifierSymbol | OtherSymbol => SYMBOL,
        _ if character.is_whitespace() => SPACE,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;

//! Pre-tokenizer expressions: each function returns the number of bytes matched at the start of a
//! text, at least one.

use super::class::{
    Class, LEADING, LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, TRAILING, class,
};

fn run(text: &str, holds: impl Fn(char) -> bool) -> usize {
    text.find(|character| !holds(character))
        .unwrap_or(text.len())
}

fn run_of(text: &str, classes: Class) -> usize {
    run(text, |character| class(character) & classes != 0)
}

fn run_of_numbers(text: &str, most: usize) -> usize {
    let numbers = text.chars().take(most);
    numbers
        .take_while(|&character| class(character) & NUMBER != 0)
        .map(char::len_utf8)
        .sum()
}

fn first(text: &str) -> Option<(char, Class)> {
    let character = text.chars().next()?;
    Some((character, class(character)))
}

fn non_zero(len: usize) -> Option<usize> {
    (len > 0).then_some(len)
}

fn is_line_end(character: char) -> bool {
    matches!(character, '\r' | '\n')
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, or with `(?i:…)`.
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let mut rest = text.strip_prefix('\'')?.chars();
    let mut next = || {
        let character = rest.next()?;
        Some(match character {
            // Matches s case-insensitively.
            'ſ' if any_case => ('s', 2),
            _ if any_case => (character.to_ascii_lowercase(), 1),
            _ => (character, 1),
        })
    };
    let (letter, len) = next()?;
    match letter {
        's' | 't' | 'm' | 'd' => Some(1 + len),
        'r' | 'v' if next()?.0 == 'e' => Some(3),
        'l' if next()?.0 == 'l' => Some(3),
        _ => None,
    }
}

/// ` ?[^\s\p{L}\p{N}]+`
fn symbols(text: &str) -> Option<usize> {
    let other = |character| class(character) & (SPACE | LETTER | NUMBER) == 0;
    let space = usize::from(text.starts_with(' '));
    non_zero(run(&text[space..], other)).map(|len| space + len)
}

/// `\s*[\r\n]+`
fn lines(text: &str) -> Option<usize> {
    let space = &text[..run_of(text, SPACE)];
    space.rfind(is_line_end).map(|at| at + 1)
}

/// `\s+(?!\S)|\s+`
fn space(text: &str) -> Option<usize> {
    let len = run_of(text, SPACE);
    let last = text[..len].char_indices().next_back();
    match last {
        Some((before, _)) if before > 0 && len < text.len() => Some(before),
        _ => non_zero(len),
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) fn gpt_2(text: &str) -> Option<usize> {
    let word = |classes| {
        let space = usize::from(text.starts_with(' '));
        non_zero(run_of(&text[space..], classes)).map(|len| space + len)
    };
    contraction(text, false)
        .or_else(|| word(LETTER))
        .or_else(|| word(NUMBER))
        .or_else(|| symbols(text))
        .or_else(|| space(text))
}

/// `[^\r\n\p{L}\p{N}]?`: returns its length; `None` for an empty text.
fn optional_symbol(text: &str) -> Option<usize> {
    let (character, class) = first(text)?;
    match class & (LETTER | NUMBER) {
        0 if !is_line_end(character) => Some(character.len_utf8()),
        _ => Some(0),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(super) fn llama_3(text: &str, digits: usize) -> Option<usize> {
    contraction(text, true)
        .or_else(|| {
            let before = optional_symbol(text)?;
            non_zero(run_of(&text[before..], LETTER)).map(|len| before + len)
        })
        .or_else(|| non_zero(run_of_numbers(text, digits)))
        .or_else(|| symbols(text).map(|len| len + run(&text[len..], is_line_end)))
        .or_else(|| lines(text))
        .or_else(|| space(text))
}

/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(super) fn gpt_4o(text: &str) -> Option<usize> {
    gpt_4o_words(text)
        .map(|len| len + contraction(&text[len..], true).unwrap_or(0))
        .or_else(|| gpt_4o_rest(text, 3))
}

/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(super) fn tekken(text: &str) -> Option<usize> {
    gpt_4o_words(text).or_else(|| gpt_4o_rest(text, 1))
}

/// The first two alternatives of [`gpt_4o`] without the contraction.
fn gpt_4o_words(text: &str) -> Option<usize> {
    let before = optional_symbol(text)?;
    let either = |word: fn(&str) -> Option<usize>| {
        word(&text[before..])
            .map(|len| before + len)
            .or_else(|| word(text))
    };
    either(word_with_end).or_else(|| either(word_without_end))
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
fn word_with_end(text: &str) -> Option<usize> {
    let leading = run_of(text, LEADING);
    let trailing = run_of(&text[leading..], TRAILING);
    if trailing > 0 {
        return Some(leading + trailing);
    }
    // Backtracks to a character that can end a word.
    let (at, last) = text[..leading]
        .char_indices()
        .rfind(|&(_, character)| class(character) & TRAILING != 0)?;
    Some(at + last.len_utf8())
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` if [`word_with_end`] fails.
fn word_without_end(text: &str) -> Option<usize> {
    non_zero(run_of(text, LEADING))
}

fn gpt_4o_rest(text: &str, digits: usize) -> Option<usize> {
    let line_end_or_slash = |character| is_line_end(character) || character == '/';
    non_zero(run_of_numbers(text, digits))
        .or_else(|| symbols(text).map(|len| len + run(&text[len..], line_end_or_slash)))
        .or_else(|| lines(text))
        .or_else(|| space(text))
}

/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
pub(super) fn deep_seek_v3(text: &str) -> Option<usize> {
    let (character, class) = first(text)?;
    let rest = &text[character.len_utf8()..];
    let ascii_letters = run(rest, |character| character.is_ascii_alphabetic());
    if character.is_ascii_punctuation() && ascii_letters > 0 {
        return Some(1 + ascii_letters);
    }
    let optional = class & (LETTER | PUNCTUATION | SYMBOL) == 0 && !is_line_end(character);
    let word = if optional {
        non_zero(run_of(rest, LETTER | MARK)).map(|len| character.len_utf8() + len)
    } else {
        None
    };
    word.or_else(|| non_zero(run_of(text, LETTER | MARK)))
        .or_else(|| {
            let space = usize::from(character == ' ');
            let len = space + non_zero(run_of(&text[space..], PUNCTUATION | SYMBOL))?;
            Some(len + run(&text[len..], is_line_end))
        })
        .or_else(|| lines(text))
        .or_else(|| space(text))
}

/// `\s?` and then at least one character for which `holds`.
fn spaced(text: &str, holds: impl Fn(char) -> bool) -> Option<usize> {
    let (character, class) = first(text)?;
    if class & SPACE != 0 {
        let len = run(&text[character.len_utf8()..], &holds);
        if len > 0 {
            return Some(character.len_utf8() + len);
        }
    }
    non_zero(run(text, holds))
}

/// `[\r\n]`
pub(super) fn line_end(text: &str) -> Option<usize> {
    text.starts_with(is_line_end).then_some(1)
}

/// `\p{N}`
pub(super) fn number(text: &str) -> Option<usize> {
    non_zero(run_of_numbers(text, 1))
}

/// `\p{N}{1,3}`
pub(super) fn three_numbers(text: &str) -> Option<usize> {
    non_zero(run_of_numbers(text, 3))
}

/// `\p{N}+`
pub(super) fn numbers(text: &str) -> Option<usize> {
    non_zero(run_of(text, NUMBER))
}

/// `\s?\p{L}+`
pub(super) fn spaced_letters(text: &str) -> Option<usize> {
    spaced(text, |character| class(character) & LETTER != 0)
}

/// `\s?\p{P}+`
pub(super) fn punctuation(text: &str) -> Option<usize> {
    spaced(text, |character| class(character) & PUNCTUATION != 0)
}

/// `[一-龥ࠀ-一가-\u{D7FF}]+`
pub(super) fn cjk(text: &str) -> Option<usize> {
    non_zero(run(
        text,
        |character| matches!(character, '\u{800}'..='\u{9FA5}' | '\u{AC00}'..='\u{D7FF}'),
    ))
}

/// `[一-龥぀-ゟ゠-ヿ]+`
pub(super) fn cjk_and_kana(text: &str) -> Option<usize> {
    non_zero(run(
        text,
        |character| matches!(character, '\u{4E00}'..='\u{9FA5}' | '\u{3040}'..='\u{30FF}'),
    ))
}

/// `\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+`
pub(super) fn punctuation_deep_seek_llm(text: &str) -> Option<usize> {
    spaced(text, |character| {
        matches!(
            character,
            '!'..='/'
                | ':'..='~'
                | '\u{FF01}'..='\u{FF0F}'
                | '\u{FF1A}'..='\u{FF5E}'
                | '\u{2018}'..='\u{201F}'
                | '\u{3000}'..='\u{3002}'
        )
    })
}

/// `\s?[…]+` with the letters of [`LETTERS`].
pub(super) fn letters_deep_seek_llm(text: &str) -> Option<usize> {
    spaced(text, |character| {
        if character.is_ascii() {
            return character.is_ascii_alphabetic();
        }
        let after = LETTERS.partition_point(|&(start, _)| start <= character);
        after > 0 && character <= LETTERS[after - 1].1
    })
}

/// Sorted ranges of letters.
#[rustfmt::skip]
const LETTERS: &[(char, char)] = &[
    ('A', 'Z'), ('a', 'z'), ('\u{B5}', '\u{B5}'), ('\u{C0}', '\u{D6}'), ('\u{D8}', '\u{F6}'),
    ('\u{F8}', '\u{1BA}'), ('\u{1BC}', '\u{1BF}'), ('\u{1C4}', '\u{293}'), ('\u{295}', '\u{2AF}'),
    ('\u{370}', '\u{373}'), ('\u{376}', '\u{376}'), ('\u{377}', '\u{377}'),
    ('\u{37B}', '\u{37D}'), ('\u{37F}', '\u{37F}'), ('\u{386}', '\u{386}'),
    ('\u{388}', '\u{38A}'), ('\u{38C}', '\u{38C}'), ('\u{38E}', '\u{3A1}'),
    ('\u{3A3}', '\u{3F5}'), ('\u{3F7}', '\u{481}'), ('\u{48A}', '\u{52F}'),
    ('\u{531}', '\u{556}'), ('\u{10A0}', '\u{10C5}'), ('\u{13A0}', '\u{13F5}'),
    ('\u{13F8}', '\u{13FD}'), ('\u{1C90}', '\u{1CBA}'), ('\u{1CBD}', '\u{1CBF}'),
    ('\u{1D00}', '\u{1D2B}'), ('\u{1D6B}', '\u{1D77}'), ('\u{1D79}', '\u{1D9A}'),
    ('\u{1E00}', '\u{1F15}'), ('\u{1F18}', '\u{1F1D}'), ('\u{1F20}', '\u{1F45}'),
    ('\u{1F48}', '\u{1F4D}'), ('\u{1F50}', '\u{1F57}'), ('\u{1F59}', '\u{1F59}'),
    ('\u{1F5B}', '\u{1F5B}'), ('\u{1F5D}', '\u{1F5D}'), ('\u{1F5F}', '\u{1F7D}'),
    ('\u{1F80}', '\u{1FB4}'), ('\u{1FB6}', '\u{1FBC}'), ('\u{1FBE}', '\u{1FBE}'),
    ('\u{1FC2}', '\u{1FC4}'), ('\u{1FC6}', '\u{1FCC}'), ('\u{1FD0}', '\u{1FD3}'),
    ('\u{1FD6}', '\u{1FDB}'), ('\u{1FE0}', '\u{1FEC}'), ('\u{1FF2}', '\u{1FF4}'),
    ('\u{1FF6}', '\u{1FFC}'), ('\u{2102}', '\u{2102}'), ('\u{2107}', '\u{2107}'),
    ('\u{210A}', '\u{2113}'), ('\u{2115}', '\u{2115}'), ('\u{2119}', '\u{211D}'),
    ('\u{2124}', '\u{2124}'), ('\u{2126}', '\u{2126}'), ('\u{2128}', '\u{2128}'),
    ('\u{212A}', '\u{212D}'), ('\u{212F}', '\u{2134}'), ('\u{2139}', '\u{2139}'),
    ('\u{213C}', '\u{213F}'), ('\u{2145}', '\u{2149}'), ('\u{214E}', '\u{214E}'),
    ('\u{2183}', '\u{2183}'), ('\u{2184}', '\u{2184}'), ('\u{2C00}', '\u{2C7B}'),
    ('\u{2C7E}', '\u{2CE4}'), ('\u{2CEB}', '\u{2CEE}'), ('\u{2CF2}', '\u{2CF2}'),
    ('\u{2CF3}', '\u{2CF3}'), ('\u{A640}', '\u{A66D}'), ('\u{A680}', '\u{A69B}'),
    ('\u{A722}', '\u{A76F}'), ('\u{A771}', '\u{A787}'), ('\u{A78B}', '\u{A78E}'),
    ('\u{AB70}', '\u{ABBF}'), ('\u{FB00}', '\u{FB06}'), ('\u{FB13}', '\u{FB17}'),
    ('\u{FF21}', '\u{FF3A}'), ('\u{FF41}', '\u{FF5A}'), ('\u{10400}', '\u{1044F}'),
    ('\u{104B0}', '\u{104D3}'), ('\u{104D8}', '\u{104FB}'), ('\u{10C80}', '\u{10CB2}'),
    ('\u{10CC0}', '\u{10CF2}'), ('\u{118A0}', '\u{118DF}'), ('\u{1E900}', '\u{1E943}'),
];

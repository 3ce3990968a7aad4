//! Cuts a text at special tokens and normalises the text between them, in the order of
//! `tokenizers`: first the tokens that are matched in the text, then those that are matched in the
//! normalised text.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use htc_formats::limits::{MAX_SPECIAL_BYTES, MAX_SPECIAL_TOKEN_BYTES};
use htc_formats::vocab::{SENTENCE_PIECE, TokenKind, UnicodeForm, Vocabulary, VocabularyError};
use unicode_normalization::{
    IsNormalized, UnicodeNormalization as _, is_nfc_quick, is_nfd_quick, is_nfkc_quick,
    is_nfkd_quick,
};

use super::user_defined::{Fragment, TokenMatcher};
use super::{SPACE, SPECIAL_KINDS, Tokenizer};

/// Matchers of special tokens.
#[derive(Clone, Debug)]
pub(super) struct SpecialTokens {
    literal: TokenMatcher,
    /// Matches normalised tokens in the normalised text; `None` if there are no such tokens.
    normalized: Option<TokenMatcher>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Token(u32),
    Text(TextPiece<'a>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextPiece<'a> {
    /// Not empty.
    pub(super) text: Cow<'a, str>,
    /// Begins the whole text.
    pub(super) is_first: bool,
    /// Has its space prefix, and U+2581 for spaces.
    pub(super) is_escaped: bool,
}

/// Checks that the special tokens that are matched in the normalised text differ in it, and are
/// within the limits.
pub(super) fn check_normalized(
    vocabulary: &Vocabulary,
    kinds: &[TokenKind],
) -> Result<(), VocabularyError> {
    let mut seen = HashMap::new();
    let mut bytes = 0;
    for (id, text) in (0..).zip(&vocabulary.tokens) {
        if !SPECIAL_KINDS.contains(&kinds[id as usize]) {
            continue;
        }
        if vocabulary.match_normalized.binary_search(&id).is_err() {
            bytes += text.len();
            continue;
        }
        let (text, _) = normalize(vocabulary, text, &[]);
        if text.len() > MAX_SPECIAL_TOKEN_BYTES {
            let bytes = text.len();
            return Err(VocabularyError::SpecialTokenTooLong { bytes });
        }
        bytes += text.len();
        if let Some(first) = seen.insert(text.clone(), id) {
            return Err(VocabularyError::DuplicateNormalizedText {
                first,
                second: id,
                text: text.into_owned(),
            });
        }
    }
    if bytes > MAX_SPECIAL_BYTES {
        return Err(VocabularyError::SpecialTextTooLong { bytes });
    }
    Ok(())
}

impl SpecialTokens {
    /// Matches the tokens of the `wanted` kinds.
    pub(super) fn new(vocabulary: &Vocabulary, kinds: &[TokenKind], wanted: &[TokenKind]) -> Self {
        let tokens = (0..).zip(&vocabulary.tokens);
        let tokens = tokens.filter(|&(id, _)| wanted.contains(&kinds[id as usize]));
        let (normalized, literal): (Vec<_>, Vec<_>) =
            tokens.partition(|(id, _)| vocabulary.match_normalized.binary_search(id).is_ok());
        let texts = normalized.iter().map(|&(id, text)| {
            let (text, _) = normalize(vocabulary, text, &[]);
            (id, text)
        });
        let texts: Vec<_> = texts.collect();
        let matcher = |tokens: &[(u32, Cow<'_, str>)]| {
            TokenMatcher::new(tokens.iter().map(|(id, text)| (*id, &**text)))
        };
        Self {
            literal: TokenMatcher::new(literal.into_iter().map(|(id, text)| (id, text.as_str()))),
            normalized: (!texts.is_empty()).then(|| matcher(&texts)),
        }
    }
}

impl Tokenizer {
    /// Cuts a text at special tokens, except at control tokens inside the byte ranges `said`.
    pub(super) fn pieces<'a>(
        &self,
        special: &SpecialTokens,
        text: &'a str,
        said: &[Range<usize>],
    ) -> Vec<Piece<'a>> {
        let fragments = self.split(&special.literal, text, said);
        let mut pieces = Vec::with_capacity(fragments.len());
        for (at, fragment) in fragments.iter().enumerate() {
            match *fragment {
                Fragment::Token(token) => pieces.push(Piece::Token(token)),
                Fragment::Text(part) => {
                    let is_first = at == 0;
                    let part = self.strip(part, &fragments, at);
                    if part.is_empty() {
                        continue;
                    }
                    match &special.normalized {
                        Some(matcher) => {
                            let start = part.as_ptr().addr() - text.as_ptr().addr();
                            let said = ranges_within(said, start..start + part.len());
                            self.push_normalized(matcher, part, is_first, &said, &mut pieces);
                        }
                        None => pieces.push(Piece::Text(TextPiece {
                            text: apply_form(self.vocabulary.normalization, part),
                            is_first,
                            is_escaped: false,
                        })),
                    }
                }
            }
        }
        pieces
    }

    fn push_normalized(
        &self,
        matcher: &TokenMatcher,
        text: &str,
        is_first: bool,
        said: &[Range<usize>],
        pieces: &mut Vec<Piece<'_>>,
    ) {
        let (text, said) = normalize(&self.vocabulary, text, said);
        let fragments = self.split(matcher, &text, &said);
        for (at, fragment) in fragments.iter().enumerate() {
            match *fragment {
                Fragment::Token(token) => pieces.push(Piece::Token(token)),
                Fragment::Text(part) => {
                    let part = self.strip(part, &fragments, at);
                    if !part.is_empty() {
                        pieces.push(Piece::Text(TextPiece {
                            text: Cow::Owned(part.to_owned()),
                            is_first: is_first && at == 0,
                            is_escaped: is_escaped(&self.vocabulary),
                        }));
                    }
                }
            }
        }
    }

    fn split<'a>(
        &self,
        matcher: &TokenMatcher,
        text: &'a str,
        said: &[Range<usize>],
    ) -> Vec<Fragment<'a>> {
        matcher.split_where(text, |place, token| {
            !self.is_control(token) || !overlaps_any(said, place)
        })
    }

    /// Strips the whitespace that belongs to the tokens before and after a fragment.
    fn strip<'a>(&self, mut text: &'a str, fragments: &[Fragment<'_>], at: usize) -> &'a str {
        let strips = |list: &[u32], fragment: Option<&Fragment<'_>>| match fragment {
            Some(Fragment::Token(token)) => list.binary_search(token).is_ok(),
            _ => false,
        };
        let before = at.checked_sub(1).and_then(|at| fragments.get(at));
        if strips(&self.vocabulary.strip_after, before) {
            text = text.trim_start();
        }
        if strips(&self.vocabulary.strip_before, fragments.get(at + 1)) {
            text = text.trim_end();
        }
        text
    }
}

fn is_escaped(vocabulary: &Vocabulary) -> bool {
    vocabulary.model == SENTENCE_PIECE && vocabulary.prefixes_when_normalizing()
}

/// Returns the normalised text and the ranges `said` in it. Each range is normalised on its own, so
/// that it keeps its bounds.
fn normalize<'a>(
    vocabulary: &Vocabulary,
    text: &'a str,
    said: &[Range<usize>],
) -> (Cow<'a, str>, Vec<Range<usize>>) {
    let escapes = is_escaped(vocabulary);
    if !escapes && said.is_empty() {
        return (apply_form(vocabulary.normalization, text), Vec::new());
    }
    let mut normalized = String::with_capacity(text.len() + SPACE.len());
    if escapes {
        normalized.push_str(SPACE);
    }
    let mut push = |part: &str| {
        let part = apply_form(vocabulary.normalization, part);
        if escapes {
            push_escaped(&part, &mut normalized);
        } else {
            normalized.push_str(&part);
        }
        normalized.len()
    };
    let mut done = 0;
    let mut ranges = Vec::with_capacity(said.len());
    for range in said {
        let start = push(&text[done..range.start]);
        ranges.push(start..push(&text[range.clone()]));
        done = range.end;
    }
    push(&text[done..]);
    (Cow::Owned(normalized), ranges)
}

/// Appends `text` with U+2581 for spaces.
pub(super) fn push_escaped(text: &str, escaped: &mut String) {
    for (i, word) in text.split(' ').enumerate() {
        if i > 0 {
            escaped.push_str(SPACE);
        }
        escaped.push_str(word);
    }
}

fn apply_form(form: Option<UnicodeForm>, text: &str) -> Cow<'_, str> {
    let Some(form) = form else {
        return Cow::Borrowed(text);
    };
    let characters = text.chars();
    let quick = match form {
        UnicodeForm::Nfc => is_nfc_quick(characters),
        UnicodeForm::Nfd => is_nfd_quick(characters),
        UnicodeForm::Nfkc => is_nfkc_quick(characters),
        UnicodeForm::Nfkd => is_nfkd_quick(characters),
    };
    if quick == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    Cow::Owned(match form {
        UnicodeForm::Nfc => text.nfc().collect(),
        UnicodeForm::Nfd => text.nfd().collect(),
        UnicodeForm::Nfkc => text.nfkc().collect(),
        UnicodeForm::Nfkd => text.nfkd().collect(),
    })
}

/// Returns the parts of ascending `ranges` inside `outer`, relative to its start.
fn ranges_within(ranges: &[Range<usize>], outer: Range<usize>) -> Vec<Range<usize>> {
    let first = ranges.partition_point(|range| range.end <= outer.start);
    let inside = ranges[first..].iter();
    inside
        .take_while(|range| range.start < outer.end)
        .map(|range| {
            let start = range.start.max(outer.start) - outer.start;
            start..range.end.min(outer.end) - outer.start
        })
        .collect()
}

fn overlaps_any(ranges: &[Range<usize>], other: &Range<usize>) -> bool {
    let first = ranges.partition_point(|range| range.end <= other.start);
    let mut rest = ranges[first..].iter().filter(|range| !range.is_empty());
    rest.next().is_some_and(|range| range.start < other.end)
}

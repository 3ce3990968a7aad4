//! Tokenizers: text to token ids and back.
//!
//! The algorithms match llama.cpp, id for id:
//!
//! 1. The text is cut at the user-defined tokens, the longest first, and optionally at the control tokens.
//! 2. SentencePiece: each fragment gets a leading space if it opens the text or follows a special token
//! (the dummy prefix), and every space becomes U+2581. Starting from single characters, the
//! adjacent pair whose token has the best score is merged, the left-most first (Sennrich et al.
//! 2016, with SentencePiece's scores instead of merge ranks). A character without token is encoded
//! as byte tokens (`<0x41>`), or as the unknown token if the vocabulary has none: one for a whole
//! run, as in SentencePiece. (llama.cpp fails on such a text.)
//! 3. Byte-level BPE: each fragment is split into words. Starting from single bytes, the adjacent pair that
//! comes first in the list of merges is merged.
//!
//! SentencePiece vocabularies from `tokenizer.json` have a list of merges instead of scores.
//! [`StreamDecoder`] decodes one token at a time.

mod alphabet;
mod byte_level;
mod characters;
mod control;
mod decode;
mod merge;
mod pairs;
mod queue;
mod texts;
mod user_defined;
mod words;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use htc_formats::vocab::{BYTE_LEVEL, TokenKind, Vocabulary, VocabularyError};
use thiserror::Error;

use byte_level::ByteLevel;
use characters::Characters;
pub use decode::StreamDecoder;
use merge::Merger;
use user_defined::{Fragment, UserDefined};

/// Space inside a SentencePiece vocabulary (U+2581).
const SPACE: &str = "\u{2581}";

/// Error of an unusable vocabulary.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TokenizerError {
    /// Unsupported kind or inconsistent tables.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// Two ids for one text.
    #[error(
        "tokens {first} and {second} both read {text:?}, expected distinct texts; convert the model again from its source"
    )]
    Duplicate {
        /// Lower id.
        first: u32,
        /// Higher id.
        second: u32,
        /// Text of both.
        text: String,
    },
    /// A byte token that names no byte.
    #[error(
        "byte token {token} reads {text:?}, expected \"<0x00>\" to \"<0xFF>\"; convert the model again from its source"
    )]
    ByteToken {
        /// Id of the token.
        token: u32,
        /// Text of the token.
        text: String,
    },
    /// A required special token is missing.
    #[error("the vocabulary {reason} but names no {role} token; add its id to the model file")]
    SpecialMissing {
        /// `BOS`, `EOS` or `unknown`.
        role: &'static str,
        /// Reason for the requirement.
        reason: &'static str,
    },
    /// Some byte tokens of a vocabulary with byte fallback are missing.
    #[error(
        "the vocabulary lacks some of the byte tokens \"<0x00>\" to \"<0xFF>\"; convert the model again from its source"
    )]
    BytesMissing,
    /// The result of a merge is not a token.
    #[error(
        "merge {merge} makes {text:?}, which is no token; convert the model again from its source"
    )]
    MergeResult {
        /// Rank of the merge.
        merge: u32,
        /// Text of the result.
        text: String,
    },
    /// Two merges of the same tokens.
    #[error(
        "merges {first} and {second} both make {text:?} of the same tokens; convert the model again from its source"
    )]
    MergeTwice {
        /// Lower rank.
        first: u32,
        /// Higher rank.
        second: u32,
        /// Text of the result.
        text: String,
    },
    /// A special token longer than [`MAX_SPECIAL_TOKEN_BYTES`].
    #[error(
        "a special token has {found} bytes of text, expected at most {MAX_SPECIAL_TOKEN_BYTES}; mark it as normal"
    )]
    SpecialToken {
        /// Size of the token in bytes.
        found: usize,
    },
    /// More text in special tokens than [`MAX_SPECIAL_BYTES`].
    #[error(
        "the special tokens have {found} bytes of text, expected at most {MAX_SPECIAL_BYTES}; mark those that need not stay whole as normal"
    )]
    SpecialText {
        /// Size of the text in bytes.
        found: usize,
    },
}

/// Maximum total size of all special tokens (user-defined, control, unknown) in bytes. Search
/// tables take some fifty bytes per byte; real vocabularies have some ten thousand.
pub const MAX_SPECIAL_BYTES: usize = 1 << 20;

/// Maximum size of one special token in bytes: every one that begins at a position of a text is
/// searched there. Those of published models have up to about a hundred.
pub const MAX_SPECIAL_TOKEN_BYTES: usize = 256;

/// Selects the special tokens that [`Tokenizer::encode`] adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    /// BOS before and EOS after the text, as configured by the vocabulary.
    AsVocabulary,
    /// BOS before the text, as configured by the vocabulary, for a prompt to be continued.
    Prompt,
    /// Tokens of the text alone.
    Nothing,
}

#[derive(Clone, Debug)]
enum Method {
    /// SentencePiece by scores.
    Scores(Merger),
    /// SentencePiece by a list of merges.
    Characters(Characters),
    /// Byte-level BPE.
    ByteLevel(ByteLevel),
}

/// Tokenizer of one vocabulary.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    kinds: Vec<TokenKind>,
    ends: Vec<u32>,
    user_defined: UserDefined,
    special: OnceLock<UserDefined>,
    method: Method,
}

impl Tokenizer {
    /// Builds the tables of a vocabulary.
    ///
    /// # Errors
    /// [`TokenizerError`] for an invalid vocabulary.
    pub fn new(mut vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        check(&vocabulary)?;
        vocabulary.strip_before.sort_unstable();
        vocabulary.strip_after.sort_unstable();
        let mut kinds = vocabulary.kinds.clone();
        let mut ends = vocabulary.end_of_generation.clone();
        ends.extend(vocabulary.eos);
        for (id, text) in (0..).zip(&vocabulary.tokens) {
            if control::ends_text(text) {
                ends.push(id);
            }
            if control::ends_text(text) || control::marks_infill(text) {
                kinds[id as usize] = TokenKind::Control;
            }
        }
        ends.sort_unstable();
        ends.dedup();

        let user_defined = automaton(&vocabulary, &kinds, &[TokenKind::UserDefined]);
        let method = method(&vocabulary)?;
        Ok(Self {
            vocabulary,
            kinds,
            ends,
            user_defined,
            special: OnceLock::new(),
            method,
        })
    }

    /// Returns the token ids of `text`. Control tokens spelt in the text are treated as text,
    /// user-defined tokens as tokens. Time is O(n log n) in the length of the text.
    pub fn encode(&self, text: &str, add: AddSpecial) -> Vec<u32> {
        self.encode_cut_at(&self.user_defined, text, &[], add)
    }

    /// Same as [`encode`](Self::encode), but parses control tokens in the text. BOS is not added
    /// before a text that begins with it, nor EOS after one that ends with it.
    pub fn encode_with_special(&self, text: &str, add: AddSpecial) -> Vec<u32> {
        self.encode_cut_at(self.special(), text, &[], add)
    }

    /// Same as [`encode_with_special`](Self::encode_with_special), except that control tokens
    /// inside the byte ranges `said` are treated as text, such as a user's message in a prompt
    /// template. So is a control token partly inside a range.
    ///
    /// The ranges are ascending, do not overlap, and lie on character boundaries.
    pub fn encode_conversation(
        &self,
        text: &str,
        said: &[Range<usize>],
        add: AddSpecial,
    ) -> Vec<u32> {
        self.encode_cut_at(self.special(), text, said, add)
    }

    /// Returns a control token contained in `text`, or one that could be completed by text before
    /// or after it.
    pub fn control_in(&self, text: &str) -> Option<&str> {
        let fragments = self.special().split_where(text, |_, _| true);
        let spelt = fragments.iter().find_map(|fragment| match fragment {
            Fragment::Token(token) if self.is_control(*token) => self.piece(*token),
            _ => None,
        });
        let control = (0..).zip(&self.vocabulary.tokens);
        let mut control = control.filter(|&(id, _)| self.is_control(id));
        spelt.or_else(|| {
            let joint = control.find(|(_, token)| {
                token.char_indices().skip(1).any(|(at, _)| {
                    let (head, tail) = token.split_at(at);
                    text.ends_with(head) || text.starts_with(tail)
                })
            });
            joint.map(|(_, token)| token.as_str())
        })
    }

    fn is_control(&self, token: u32) -> bool {
        matches!(
            self.kind(token),
            Some(TokenKind::Control | TokenKind::Unknown)
        )
    }

    fn special(&self) -> &UserDefined {
        self.special.get_or_init(|| {
            let special = [
                TokenKind::UserDefined,
                TokenKind::Control,
                TokenKind::Unknown,
            ];
            automaton(&self.vocabulary, &self.kinds, &special)
        })
    }

    fn encode_cut_at(
        &self,
        special: &UserDefined,
        text: &str,
        said: &[Range<usize>],
        add: AddSpecial,
    ) -> Vec<u32> {
        let (before, after) = match add {
            AddSpecial::AsVocabulary => (self.vocabulary.add_bos, self.vocabulary.add_eos),
            AddSpecial::Prompt => (self.vocabulary.add_bos, false),
            AddSpecial::Nothing => (false, false),
        };
        let mut ids = Vec::new();
        let collapsed;
        let (text, said) = if self.vocabulary.collapse_spaces {
            collapsed = collapse_spaces(text, said);
            (collapsed.0.as_str(), collapsed.1.as_slice())
        } else {
            (text, said)
        };
        let fragments = special.split_where(text, |place, token| {
            !self.is_control(token) || !touches(said, place)
        });
        if before && self.vocabulary.bos != end_of(fragments.first()) {
            ids.extend(self.vocabulary.bos);
        }
        match &self.method {
            Method::Scores(merger) => {
                let mut merging = merger.start();
                self.pieces(&fragments, &mut ids, |text, ids| merging.encode(text, ids));
            }
            Method::Characters(characters) => {
                let mut joining = characters.start();
                let encode = |text: &str, ids: &mut _| characters.encode(&mut joining, text, ids);
                self.pieces(&fragments, &mut ids, encode);
            }
            Method::ByteLevel(byte_level) => {
                let mut joining = byte_level.start();
                self.each(&fragments, &mut ids, |_, text, ids| {
                    byte_level.encode(&mut joining, text, ids);
                });
            }
        }
        if after && self.vocabulary.eos != end_of(fragments.last()) {
            ids.extend(self.vocabulary.eos);
        }
        ids
    }

    fn each(
        &self,
        fragments: &[Fragment<'_>],
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(usize, &str, &mut Vec<u32>),
    ) {
        let strips = |list: &[u32], token| {
            end_of(token).is_some_and(|token| list.binary_search(&token).is_ok())
        };
        let mut before = None;
        for (at, fragment) in fragments.iter().enumerate() {
            match *fragment {
                Fragment::Token(token) => ids.push(token),
                Fragment::Text(mut text) => {
                    if strips(&self.vocabulary.strip_after, before) {
                        text = text.trim_start();
                    }
                    if strips(&self.vocabulary.strip_before, fragments.get(at + 1)) {
                        text = text.trim_end();
                    }
                    if !text.is_empty() {
                        encode(at, text, ids);
                    }
                }
            }
            before = Some(fragment);
        }
    }

    fn pieces(
        &self,
        fragments: &[Fragment<'_>],
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(&str, &mut Vec<u32>),
    ) {
        let Vocabulary {
            add_space_prefix,
            space_prefix_once,
            ..
        } = self.vocabulary;
        let mut escaped = String::new();
        self.each(fragments, ids, |at, text, ids| {
            escaped.clear();
            let once = at == 0 && !text.starts_with([' ', '\u{2581}']);
            if add_space_prefix && (once || !space_prefix_once) {
                escaped.push_str(SPACE);
            }
            for (i, word) in text.split(' ').enumerate() {
                if i > 0 {
                    escaped.push_str(SPACE);
                }
                escaped.push_str(word);
            }
            encode(&escaped, ids);
        });
    }

    /// Decodes a whole sequence with [`StreamDecoder`].
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut decoder = self.decoder();
        let mut text = String::new();
        for &token in tokens {
            decoder.push_to(token, &mut text);
        }
        text.push_str(&decoder.finish());
        text
    }

    /// Creates a streaming decoder.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// Id of the end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// Returns true if the token ends generation: EOS, end tokens listed in the model's files, and
    /// end-of-turn tokens recognised by their text.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// Text of a token in the vocabulary; `None` for an invalid id.
    pub fn piece(&self, token: u32) -> Option<&str> {
        self.vocabulary
            .tokens
            .get(token as usize)
            .map(String::as_str)
    }

    /// Returns the vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn kind(&self, token: u32) -> Option<TokenKind> {
        self.kinds.get(token as usize).copied()
    }
}

fn byte_value(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hexadecimal {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

fn check(vocabulary: &Vocabulary) -> Result<(), TokenizerError> {
    vocabulary.check()?;
    let Vocabulary {
        bos,
        eos,
        add_bos,
        add_eos,
        ..
    } = *vocabulary;
    for (role, missing, reason) in [
        (
            "BOS",
            add_bos && bos.is_none(),
            "asks for BOS before every text",
        ),
        (
            "EOS",
            add_eos && eos.is_none(),
            "asks for EOS after every text",
        ),
    ] {
        if missing {
            return Err(TokenizerError::SpecialMissing { role, reason });
        }
    }
    let (mut found, mut longest) = (0, 0);
    for ((token, text), kind) in (0..).zip(&vocabulary.tokens).zip(&vocabulary.kinds) {
        match kind {
            TokenKind::Byte if byte_value(text).is_none() => {
                return Err(TokenizerError::ByteToken {
                    token,
                    text: text.clone(),
                });
            }
            TokenKind::UserDefined | TokenKind::Control | TokenKind::Unknown => {
                found += text.len();
                longest = longest.max(text.len());
            }
            _ => {}
        }
    }
    if longest > MAX_SPECIAL_TOKEN_BYTES {
        return Err(TokenizerError::SpecialToken { found: longest });
    }
    if found > MAX_SPECIAL_BYTES {
        return Err(TokenizerError::SpecialText { found });
    }
    Ok(())
}

fn method(vocabulary: &Vocabulary) -> Result<Method, TokenizerError> {
    if vocabulary.model != BYTE_LEVEL && vocabulary.merges.is_empty() {
        return Ok(Method::Scores(Merger::new(vocabulary)?));
    }
    let mut ids = HashMap::with_capacity(vocabulary.tokens.len());
    for (id, text) in (0..).zip(&vocabulary.tokens) {
        // An empty text never occurs; several tokens may have it.
        if text.is_empty() {
            continue;
        }
        if let Some(first) = ids.insert(text.as_str(), id) {
            return Err(TokenizerError::Duplicate {
                first,
                second: id,
                text: text.clone(),
            });
        }
    }
    Ok(match vocabulary.pre {
        Some(pre) if vocabulary.model == BYTE_LEVEL => {
            Method::ByteLevel(ByteLevel::new(vocabulary, pre, &ids)?)
        }
        _ => Method::Characters(Characters::new(vocabulary, &ids)?),
    })
}

fn byte_tokens(id: impl Fn(&str) -> Option<u32>) -> Box<[u32; 256]> {
    let mut bytes = Box::new([u32::MAX; 256]);
    for (byte, token) in (0u8..=255).zip(bytes.iter_mut()) {
        *token = id(&format!("<0x{byte:02X}>")).unwrap_or(u32::MAX);
    }
    bytes
}

fn automaton(vocabulary: &Vocabulary, kinds: &[TokenKind], wanted: &[TokenKind]) -> UserDefined {
    let tokens = (0..).zip(&vocabulary.tokens);
    let tokens = tokens.filter(|&(id, _)| wanted.contains(&kinds[id as usize]));
    UserDefined::new(tokens.map(|(id, text)| (id, text.as_str())))
}

fn end_of(fragment: Option<&Fragment<'_>>) -> Option<u32> {
    match fragment {
        Some(Fragment::Token(token)) => Some(*token),
        _ => None,
    }
}

fn collapse_spaces(text: &str, said: &[Range<usize>]) -> (String, Vec<Range<usize>>) {
    let mut collapsed = String::with_capacity(text.len());
    let mut ends = said.iter().flat_map(|range| [range.start, range.end]);
    let mut next = ends.next();
    let mut places = Vec::with_capacity(2 * said.len());
    let mut space = false;
    for (at, character) in text.char_indices() {
        while next.is_some_and(|place| place <= at) {
            places.push(collapsed.len());
            next = ends.next();
        }
        if character == ' ' {
            space = !collapsed.is_empty();
            continue;
        }
        if space {
            collapsed.push(' ');
            space = false;
        }
        collapsed.push(character);
    }
    places.resize(2 * said.len(), collapsed.len());
    let said = places.chunks_exact(2).map(|ends| ends[0]..ends[1]);
    let said = said.collect();
    (collapsed, said)
}

fn touches(ranges: &[Range<usize>], other: &Range<usize>) -> bool {
    let first = ranges.partition_point(|range| range.end <= other.start);
    let mut rest = ranges[first..].iter().filter(|range| !range.is_empty());
    rest.next().is_some_and(|range| range.start < other.end)
}

#[cfg(test)]
mod tests;

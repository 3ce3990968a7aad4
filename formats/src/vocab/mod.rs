//! Vocabulary of a model as data. The tokenizer algorithms are in the loader.

mod from_gguf;
mod hugging_face;
mod pre;
mod splits;
mod to_gguf;
mod unicode_form;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::gguf::GgufError;
use crate::limits;

pub(crate) use from_gguf::END_KEYS;
pub use hugging_face::HuggingFaceFiles;
pub use pre::PreTokenizer;
pub use unicode_form::UnicodeForm;

/// Kind of a token (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum TokenKind {
    /// Ordinary text.
    Normal = 1,
    /// The unknown token.
    Unknown = 2,
    /// Control tokens such as BOS, without text.
    Control = 3,
    /// Text that is always one token.
    UserDefined = 4,
    /// Listed but never produced.
    Unused = 5,
    /// One byte, written `<0x41>`.
    Byte = 6,
}

impl From<TokenKind> for u8 {
    fn from(kind: TokenKind) -> u8 {
        kind as u8
    }
}

impl TryFrom<u8> for TokenKind {
    type Error = String;

    fn try_from(value: u8) -> Result<Self, Self::Error> {
        Ok(match value {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            other => return Err(format!("unknown token type {other}")),
        })
    }
}

/// A vocabulary: tokens and tokenisation rules.
///
/// Its JSON is a section of a `.htz`. Later fields have defaults and are omitted at their default,
/// so that older vocabularies keep their bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Kind of tokenizer: [`SENTENCE_PIECE`] or [`BYTE_LEVEL`].
    pub model: String,
    /// Text of every token, by id. SentencePiece writes a space as U+2581; byte-level vocabularies
    /// write every byte as one character, by GPT-2's table.
    pub tokens: Vec<String>,
    /// Finite score of every token, by id. Empty if `merges` are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<f32>,
    /// Kind of every token, by id.
    pub kinds: Vec<TokenKind>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Unknown token.
    pub unknown: Option<u32>,
    /// Adds BOS before a text.
    pub add_bos: bool,
    /// Adds EOS after a text.
    pub add_eos: bool,
    /// Adds a space before a text (SentencePiece's dummy prefix).
    pub add_space_prefix: bool,
    /// Omits that space if the text begins with one, and after special tokens.
    #[serde(default, skip_serializing_if = "is_false")]
    pub space_prefix_once: bool,
    /// Collapses runs of spaces to one, and strips them at both ends of a text.
    #[serde(default, skip_serializing_if = "is_false")]
    pub collapse_spaces: bool,
    /// Pairs of tokens to merge, by descending priority; each forms a third token with the
    /// concatenated text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merges: Vec<(u32, u32)>,
    /// Pre-tokenizer of byte-level vocabularies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre: Option<PreTokenizer>,
    /// Tokens that end generation, in addition to EOS and those recognised by text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub end_of_generation: Vec<u32>,
    /// Special tokens that strip the preceding whitespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip_before: Vec<u32>,
    /// Special tokens that strip the following whitespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip_after: Vec<u32>,
    /// Jinja template that renders a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Normalisation of the text between special tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalization: Option<UnicodeForm>,
    /// Omits the space of `add_space_prefix` before a text that begins with a space; unlike
    /// `space_prefix_once`, texts after special tokens get it too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub space_prefix_if_absent: bool,
    /// Splits a text before every space (SentencePiece only): no token is merged across.
    #[serde(default, skip_serializing_if = "is_false")]
    pub split_before_spaces: bool,
    /// Special tokens whose normalised text is matched in the normalised text, after all others.
    /// Normalisation includes the space prefix of a SentencePiece vocabulary that has neither
    /// `space_prefix_once` nor `space_prefix_if_absent`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_normalized: Vec<u32>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

/// GGUF's name of SentencePiece: merges by the scores of tokens, or by `merges` if any.
pub const SENTENCE_PIECE: &str = "llama";

/// U+2581, which SentencePiece writes for a space.
pub const SPACE: &str = "\u{2581}";

/// GGUF's name of byte-level BPE: merges by `merges`.
pub const BYTE_LEVEL: &str = "gpt2";

/// Error returned when a vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum VocabularyError {
    /// The file has no tokenizer.
    #[error("the model has no vocabulary (\"tokenizer.ggml.model\" is missing)")]
    Absent,
    /// The kind of tokenizer is not supported.
    #[error(
        "tokenizer {found:?} is not supported; supported are \"llama\" (SentencePiece) and \"gpt2\" (byte-level BPE)"
    )]
    Model { found: String },
    /// A metadata entry is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// There are no tokens, or more than [`limits::MAX_VOCABULARY`].
    #[error(
        "the vocabulary has {found} tokens, expected 1 to {}",
        limits::MAX_VOCABULARY
    )]
    Size { found: usize },
    /// A list does not have one entry per token.
    #[error("the vocabulary has {found} {item}, expected {expected}; the file is damaged")]
    Length {
        /// Contents of the list.
        item: &'static str,
        /// Expected length.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// A score is infinite or NaN.
    #[error("token {token} has the score {found}, expected a finite number")]
    Score { token: usize, found: f32 },
    /// A token type is not defined by GGUF.
    #[error("token {token} has the type {found}, expected 1 to 6")]
    Kind { token: usize, found: i32 },
    /// A special token does not exist.
    #[error("the {name} token is {id}, expected an id below {tokens}")]
    Special {
        /// Name of the special token.
        name: &'static str,
        /// Its id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// A byte-level vocabulary has no pre-tokenizer, which must not be guessed.
    #[error(
        "the vocabulary does not say how a text is cut into words (\"tokenizer.ggml.pre\" is missing); convert the model again with a current converter"
    )]
    PreTokenizerMissing,
    /// The pre-tokenizer is unknown; any other would silently give wrong tokens.
    #[error(
        "pre-tokenizer {found:?} is not supported; supported are {}",
        PreTokenizer::names()
    )]
    PreTokenizer { found: String },
    /// A merge does not name two tokens.
    #[error(
        "merge {merge} is {found:?}, expected two tokens of the vocabulary; convert the model again from its source"
    )]
    Merge { merge: usize, found: String },
    /// A file of a folder is missing, too large or invalid.
    #[error("{file}: {problem}")]
    File { file: String, problem: String },
    /// A file of a folder cannot be opened; the message names it.
    #[error("{0}")]
    Open(String),
    /// A tokenizer file requires an unsupported feature.
    #[error("{file}: {what} is {found:?}, which is not supported; supported is {supported}")]
    Unsupported {
        /// The file.
        file: &'static str,
        /// The entry.
        what: &'static str,
        /// Its value.
        found: String,
        /// Supported values.
        supported: String,
    },
    /// A named special token is not in the vocabulary.
    #[error(
        "the {which} token is {name:?}, which is not in the vocabulary; the tokenizer's files do not belong together"
    )]
    SpecialName { which: &'static str, name: String },
    /// The chat template exceeds [`limits::MAX_STRING_BYTES`].
    #[error(
        "the chat template has {found} bytes, {} is the most that is supported",
        limits::MAX_STRING_BYTES
    )]
    Template { found: usize },
    /// The vocabulary and the embedding differ in size.
    #[error("the vocabulary has {tokens} tokens, the embedding has {rows} rows; they must agree")]
    Rows { tokens: usize, rows: usize },
    /// Two ids for one text.
    #[error(
        "tokens {first} and {second} both read {text:?}, expected distinct texts; convert the model again from its source"
    )]
    DuplicateText {
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
    ByteToken { token: u32, text: String },
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
        "merge {merge} produces {text:?}, which is not in the vocabulary; convert the model again from its source"
    )]
    MergeResult { merge: u32, text: String },
    /// Two merges of the same tokens.
    #[error(
        "merges {first} and {second} both produce {text:?} from the same tokens; convert the model again from its source"
    )]
    DuplicateMerge {
        /// Lower rank.
        first: u32,
        /// Higher rank.
        second: u32,
        /// Text of the result.
        text: String,
    },
    /// Scores imply more than [`limits::MAX_MERGES`] merges.
    #[error(
        "the scores of the tokens imply more than {} merges, which no tokenizer.json has; convert the model again from its source",
        limits::MAX_MERGES
    )]
    ImpliedMerges,
    /// Two special tokens have one normalised text, in which they are matched.
    #[error(
        "tokens {first} and {second} both read {text:?} in a normalised text, expected distinct texts; set \"normalized\" to false for one of them in tokenizer.json"
    )]
    DuplicateNormalizedText {
        /// Lower id.
        first: u32,
        /// Higher id.
        second: u32,
        /// Normalised text of both.
        text: String,
    },
    /// A special token longer than [`MAX_SPECIAL_TOKEN_BYTES`](limits::MAX_SPECIAL_TOKEN_BYTES).
    #[error(
        "a special token has {bytes} bytes of text, expected at most {}; mark it as normal",
        limits::MAX_SPECIAL_TOKEN_BYTES
    )]
    SpecialTokenTooLong {
        /// Size of the longest in bytes.
        bytes: usize,
    },
    /// More text in special tokens than [`MAX_SPECIAL_BYTES`](limits::MAX_SPECIAL_BYTES).
    #[error(
        "the special tokens have {bytes} bytes of text, expected at most {}; mark those that need not stay whole as normal",
        limits::MAX_SPECIAL_BYTES
    )]
    SpecialTextTooLong {
        /// Size of the text in bytes.
        bytes: usize,
    },
}

impl Vocabulary {
    fn text(&self, id: u32) -> &str {
        self.tokens.get(id as usize).map_or("", String::as_str)
    }

    /// Returns the token that a merge makes: the one with the texts of both parts; `ids` are those of
    /// the texts. In a SentencePiece vocabulary user-defined tokens have a space where others have
    /// U+2581, since they are matched against raw text.
    pub fn merge_result(&self, ids: &HashMap<&str, u32>, left: u32, right: u32) -> Option<u32> {
        let text = [self.text(left), self.text(right)].concat();
        let found = ids.get(text.as_str());
        if self.model == BYTE_LEVEL {
            return found.copied();
        }
        let stored = || ids.get(text.replace(' ', SPACE).as_str());
        let raw = || ids.get(text.replace(SPACE, " ").as_str());
        found.or_else(stored).or_else(raw).copied()
    }

    /// Returns true if a reader of format 1.0 would tokenise texts differently.
    pub fn needs_format_1_1(&self) -> bool {
        let Vocabulary {
            space_prefix_once,
            collapse_spaces,
            merges,
            pre,
            strip_before,
            strip_after,
            ..
        } = self;
        *space_prefix_once
            || *collapse_spaces
            || !merges.is_empty()
            || pre.is_some()
            || !strip_before.is_empty()
            || !strip_after.is_empty()
    }

    /// Returns true if a reader that does not know the rules of `tokenizer.json` introduced after
    /// format 1.15 would tokenise or decode texts differently.
    pub fn needs_tokenizer_rules(&self) -> bool {
        self.normalization.is_some()
            || self.space_prefix_if_absent
            || self.split_before_spaces
            || !self.match_normalized.is_empty()
            || self.has_literal_spaces()
    }

    /// Returns true if a user-defined token is matched with U+2581 as in `tokenizer.json`, not
    /// with a space as in SentencePiece. Such vocabularies have merges.
    fn has_literal_spaces(&self) -> bool {
        let mut tokens = self.tokens.iter().zip(&self.kinds);
        self.model == SENTENCE_PIECE
            && !self.merges.is_empty()
            && tokens.any(|(text, kind)| *kind == TokenKind::UserDefined && text.contains(SPACE))
    }

    /// Returns true if the space prefix is part of the normalisation: every text gets it.
    pub fn prefixes_when_normalizing(&self) -> bool {
        self.add_space_prefix && !self.space_prefix_once && !self.space_prefix_if_absent
    }

    /// Validates a vocabulary from any source.
    pub fn validate(&self) -> Result<(), VocabularyError> {
        check_model(&self.model)?;
        let expected = self.tokens.len();
        if !(1..=limits::MAX_VOCABULARY).contains(&expected) {
            return Err(VocabularyError::Size { found: expected });
        }
        let byte_level = self.model == BYTE_LEVEL;
        if byte_level && self.pre.is_none() {
            return Err(VocabularyError::PreTokenizerMissing);
        }
        let scores = if byte_level || !self.merges.is_empty() {
            0
        } else {
            expected
        };
        for (what, expected, found) in [
            ("scores", scores, self.scores.len()),
            ("token types", expected, self.kinds.len()),
        ] {
            if found != expected {
                return Err(VocabularyError::Length {
                    item: what,
                    expected,
                    found,
                });
            }
        }
        if let Some(token) = self.scores.iter().position(|score| !score.is_finite()) {
            return Err(VocabularyError::Score {
                token,
                found: self.scores[token],
            });
        }
        let template = self.chat_template.as_ref().map_or(0, String::len);
        if template as u64 > limits::MAX_STRING_BYTES {
            return Err(VocabularyError::Template { found: template });
        }
        let named = [
            ("BOS", self.bos),
            ("EOS", self.eos),
            ("unknown", self.unknown),
        ];
        let listed = |which, ids: &[u32]| {
            let ids = ids.iter().map(move |&id| (which, Some(id)));
            ids.collect::<Vec<_>>()
        };
        for (which, id) in named
            .into_iter()
            .chain(listed("end-of-generation", &self.end_of_generation))
            .chain(listed("whitespace-stripping", &self.strip_before))
            .chain(listed("whitespace-stripping", &self.strip_after))
            .chain(listed("normalised", &self.match_normalized))
        {
            if let Some(id) = id.filter(|&id| id as usize >= expected) {
                return Err(VocabularyError::Special {
                    name: which,
                    id,
                    tokens: expected,
                });
            }
        }
        let exists = |id: u32| (id as usize) < expected;
        match self
            .merges
            .iter()
            .position(|&(left, right)| !exists(left) || !exists(right))
        {
            None => Ok(()),
            Some(merge) => Err(VocabularyError::Merge {
                merge,
                found: format!("{:?}", self.merges[merge]),
            }),
        }
    }

    /// Checks the requirements of a tokenizer beyond [`validate`](Vocabulary::validate): special
    /// tokens that are added exist, byte tokens name bytes, and the text of special tokens is
    /// within [`limits`].
    ///
    /// # Errors
    /// [`VocabularyError::SpecialMissing`], [`VocabularyError::ByteToken`],
    /// [`VocabularyError::SpecialTokenTooLong`] and [`VocabularyError::SpecialTextTooLong`].
    pub fn check_for_tokenizer(&self) -> Result<(), VocabularyError> {
        let Vocabulary {
            bos,
            eos,
            add_bos,
            add_eos,
            ..
        } = *self;
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
                return Err(VocabularyError::SpecialMissing { role, reason });
            }
        }
        let (mut found, mut longest) = (0, 0);
        for ((token, text), kind) in (0..).zip(&self.tokens).zip(&self.kinds) {
            match kind {
                TokenKind::Byte if byte_value(text).is_none() => {
                    return Err(VocabularyError::ByteToken {
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
        if longest > limits::MAX_SPECIAL_TOKEN_BYTES {
            return Err(VocabularyError::SpecialTokenTooLong { bytes: longest });
        }
        if found > limits::MAX_SPECIAL_BYTES {
            return Err(VocabularyError::SpecialTextTooLong { bytes: found });
        }
        Ok(())
    }

    /// Checks that the embedding has one row per token.
    ///
    /// # Errors
    /// [`VocabularyError::Rows`].
    pub fn check_rows(&self, rows: usize) -> Result<(), VocabularyError> {
        let tokens = self.tokens.len();
        if tokens == rows {
            return Ok(());
        }
        Err(VocabularyError::Rows { tokens, rows })
    }
}

/// Returns the byte that the text of a byte token names, `<0x41>`.
pub fn byte_value(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hexadecimal {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

fn check_model(found: &str) -> Result<(), VocabularyError> {
    if found == SENTENCE_PIECE || found == BYTE_LEVEL {
        return Ok(());
    }
    Err(VocabularyError::Model {
        found: found.to_owned(),
    })
}

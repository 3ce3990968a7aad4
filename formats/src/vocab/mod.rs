//! The vocabulary of a model as data; the algorithms that use it are in the loader.

mod from_gguf;
mod hugging_face;
mod pre;
mod to_gguf;

use serde::{Deserialize, Serialize};

use crate::gguf::GgufError;
use crate::limits;

pub use hugging_face::HuggingFaceFiles;
pub use pre::PreTokenizer;

/// What a token stands for (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum TokenKind {
    /// Ordinary text.
    Normal = 1,
    /// The unknown token.
    Unknown = 2,
    /// Control tokens such as BOS; they have no text.
    Control = 3,
    /// Text that is one token wherever it occurs.
    UserDefined = 4,
    /// Present in the table, never produced.
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

/// A vocabulary: its tokens, and what decides how a text becomes a sequence of them.
///
/// Its JSON is a section of a `.htz`. What has come with later versions of the format has a default
/// and is written only where it differs from that, so that a vocabulary without it is the same
/// bytes in every version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Kind of tokenizer: [`SENTENCE_PIECE`] or [`BYTE_LEVEL`].
    pub model: String,
    /// Text of every token, by id. SentencePiece writes a space as U+2581; byte-level vocabularies
    /// write every byte as one character, by GPT-2's table.
    pub tokens: Vec<String>,
    /// Score of every token, by id; finite. Empty where `merges` decide.
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
    /// Whether BOS is put before a text.
    pub add_bos: bool,
    /// Whether EOS is put after a text.
    pub add_eos: bool,
    /// Whether a space is put before a text (SentencePiece's dummy prefix).
    pub add_space_prefix: bool,
    /// Whether that space is left out where the text begins with one, and behind special tokens.
    #[serde(default, skip_serializing_if = "is_false")]
    pub space_prefix_once: bool,
    /// Whether runs of spaces are one space to the vocabulary, and none at either end of a text.
    #[serde(default, skip_serializing_if = "is_false")]
    pub collapse_spaces: bool,
    /// Pairs of tokens that are joined, the first before all others; each makes a third token,
    /// whose text is theirs together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merges: Vec<(u32, u32)>,
    /// How a text is cut into words; in byte-level vocabularies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre: Option<PreTokenizer>,
    /// Tokens that end a generated text, beside EOS and those that are known by their text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub end_of_generation: Vec<u32>,
    /// Special tokens that take the whitespace before them away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip_before: Vec<u32>,
    /// Special tokens that take the whitespace behind them away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip_after: Vec<u32>,
    /// Jinja template that turns a conversation into a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

/// SentencePiece, as GGUF names it: merging by the scores of tokens, or by `merges` where there
/// are any.
pub const SENTENCE_PIECE: &str = "llama";

/// Byte-level BPE, as GGUF names it: merging by `merges`.
pub const BYTE_LEVEL: &str = "gpt2";

/// Why a model's vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VocabularyError {
    /// The file has no tokenizer at all.
    #[error("the model has no vocabulary (\"tokenizer.ggml.model\" is missing)")]
    Absent,
    /// A tokenizer of another kind.
    #[error(
        "tokenizer {found:?} is not supported; supported are \"llama\" (SentencePiece) and \"gpt2\" (byte-level BPE)"
    )]
    Model {
        /// Its kind.
        found: String,
    },
    /// A metadata entry is missing or of another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// No tokens, or more than [`limits::MAX_VOCABULARY`].
    #[error(
        "the vocabulary has {found} tokens, expected 1 to {}",
        limits::MAX_VOCABULARY
    )]
    Size {
        /// How many.
        found: usize,
    },
    /// Lists that must have an entry per token have another length.
    #[error("the vocabulary has {found} {what}, expected {expected}; the file is damaged")]
    Length {
        /// What the list holds.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// Entries of the list.
        found: usize,
    },
    /// A score that is infinite or no number.
    #[error("token {token} has the score {found}, expected a finite number")]
    Score {
        /// The token.
        token: usize,
        /// Its score.
        found: f32,
    },
    /// A token type that GGUF does not define.
    #[error("token {token} has the type {found}, expected 1 to 6")]
    Kind {
        /// The token.
        token: usize,
        /// Its type.
        found: i32,
    },
    /// A special token that does not exist.
    #[error("the {which} token is {id}, expected an id below {tokens}")]
    Special {
        /// Which special token.
        which: &'static str,
        /// Its id.
        id: u32,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// A byte-level vocabulary without a pre-tokenizer, which other programs would guess.
    #[error(
        "the vocabulary does not say how a text is cut into words (\"tokenizer.ggml.pre\" is missing); convert the model again with a current converter"
    )]
    PreTokenizerMissing,
    /// A pre-tokenizer that is not known: any other would give wrong tokens without a sign of it.
    #[error(
        "pre-tokenizer {found:?} is not supported; supported are {}",
        PreTokenizer::names()
    )]
    PreTokenizer {
        /// Its name.
        found: String,
    },
    /// A merge that does not make a token of two tokens.
    #[error(
        "merge {merge} is {found:?}, expected two tokens that are a third one together; convert the model again from its source"
    )]
    Merge {
        /// Its rank.
        merge: usize,
        /// The merge.
        found: String,
    },
    /// A file of a folder that is absent, too large or no valid file of its kind.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of a folder that cannot be opened; the message names it.
    #[error("{0}")]
    Open(String),
    /// A tokenizer's file asks for what this program does not do.
    #[error("{file}: {what} is {found:?}, which is not supported; supported is {supported}")]
    Unsupported {
        /// The file.
        file: &'static str,
        /// The entry.
        what: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        supported: String,
    },
    /// A special token that a file names and the vocabulary does not have.
    #[error(
        "the {which} token is {name:?}, which is not in the vocabulary; the tokenizer's files do not belong together"
    )]
    SpecialName {
        /// Which special token.
        which: &'static str,
        /// Its text.
        name: String,
    },
    /// A chat template longer than [`limits::MAX_STRING_BYTES`].
    #[error(
        "the chat template has {found} bytes, {} is the most that is supported",
        limits::MAX_STRING_BYTES
    )]
    Template {
        /// Its bytes.
        found: usize,
    },
    /// A vocabulary of another size than the embedding.
    #[error("the vocabulary has {tokens} tokens, the embedding has {rows} rows; they must agree")]
    Rows {
        /// Tokens of the vocabulary.
        tokens: usize,
        /// Rows of the embedding.
        rows: usize,
    },
}

impl Vocabulary {
    /// Whether a reader that ignores what format 1.1 of the artifact brought would split texts
    /// otherwise.
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

    /// Validates a vocabulary, wherever it came from.
    ///
    /// # Errors
    ///
    /// [`VocabularyError`]: another kind of tokenizer, no tokens, lists of unequal lengths,
    /// scores that are not finite, special tokens or merges of tokens that do not exist.
    pub fn check(&self) -> Result<(), VocabularyError> {
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
                    what,
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
        {
            if let Some(id) = id.filter(|&id| id as usize >= expected) {
                return Err(VocabularyError::Special {
                    which,
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

    /// Checks that the embedding has a row for every token and no more.
    ///
    /// # Errors
    ///
    /// [`VocabularyError::Rows`].
    pub fn check_rows(&self, rows: usize) -> Result<(), VocabularyError> {
        let tokens = self.tokens.len();
        if tokens == rows {
            return Ok(());
        }
        Err(VocabularyError::Rows { tokens, rows })
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

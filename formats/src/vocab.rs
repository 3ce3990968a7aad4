//! The vocabulary of a model as data; the algorithms that use it are in the loader.

use serde::{Deserialize, Serialize};

use crate::gguf::{Contents, GgufError};
use crate::limits;

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

/// A vocabulary, as GGUF metadata describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Kind of tokenizer (`tokenizer.ggml.model`): `llama` is SentencePiece.
    pub model: String,
    /// Text of every token, by id. SentencePiece writes a space as U+2581.
    pub tokens: Vec<String>,
    /// Score of every token, by id; finite.
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
}

/// The one kind of tokenizer that is supported: SentencePiece, as GGUF names it.
pub const SENTENCE_PIECE: &str = "llama";

/// Why a model's vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VocabularyError {
    /// The file has no tokenizer at all.
    #[error("the model has no vocabulary (\"tokenizer.ggml.model\" is missing)")]
    Absent,
    /// A tokenizer of another kind.
    #[error("tokenizer {found:?} is not supported; supported is \"llama\" (SentencePiece)")]
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
    #[error("the vocabulary has {expected} tokens and {found} {what}; the file is damaged")]
    Length {
        /// What the list holds.
        what: &'static str,
        /// Tokens.
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
    /// Reads the vocabulary out of GGUF metadata. What a file leaves out has the values that
    /// llama.cpp assumes for SentencePiece: BOS 1, EOS 2 and unknown 0 where the vocabulary has
    /// such tokens, all tokens normal, BOS and a space before a text, no EOS behind it. Scores
    /// must be there: without them every merge is as good as any other.
    ///
    /// # Errors
    ///
    /// [`VocabularyError`], whose variants are what is checked.
    pub fn from_gguf(gguf: &Contents) -> Result<Self, VocabularyError> {
        let model: &str = gguf
            .optional("tokenizer.ggml.model")?
            .ok_or(VocabularyError::Absent)?;
        // Before anything else: other kinds need other entries.
        check_model(model)?;
        let tokens: &[String] = gguf.required("tokenizer.ggml.tokens")?;
        let scores: &[f32] = gguf.required("tokenizer.ggml.scores")?;
        let kinds = match gguf.optional::<&[i32]>("tokenizer.ggml.token_type")? {
            None => vec![TokenKind::Normal; tokens.len()],
            Some(kinds) => kinds
                .iter()
                .enumerate()
                .map(|(token, &found)| kind(found, token))
                .collect::<Result<_, _>>()?,
        };
        let special = |key, default: u32| -> Result<Option<u32>, GgufError> {
            Ok(gguf
                .optional(key)?
                .or_else(|| ((default as usize) < tokens.len()).then_some(default)))
        };
        let flag = |key, default| Ok::<_, GgufError>(gguf.optional(key)?.unwrap_or(default));
        let vocabulary = Vocabulary {
            model: model.to_owned(),
            tokens: tokens.to_vec(),
            scores: scores.to_vec(),
            kinds,
            bos: special("tokenizer.ggml.bos_token_id", 1)?,
            eos: special("tokenizer.ggml.eos_token_id", 2)?,
            unknown: special("tokenizer.ggml.unknown_token_id", 0)?,
            add_bos: flag("tokenizer.ggml.add_bos_token", true)?,
            add_eos: flag("tokenizer.ggml.add_eos_token", false)?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix", true)?,
        };
        vocabulary.check()?;
        Ok(vocabulary)
    }

    /// Validates a vocabulary, wherever it came from.
    ///
    /// # Errors
    ///
    /// [`VocabularyError`]: another kind of tokenizer, no tokens, lists of unequal lengths,
    /// scores that are not finite, special tokens that do not exist.
    pub fn check(&self) -> Result<(), VocabularyError> {
        check_model(&self.model)?;
        let expected = self.tokens.len();
        if !(1..=limits::MAX_VOCABULARY).contains(&expected) {
            return Err(VocabularyError::Size { found: expected });
        }
        for (what, found) in [
            ("scores", self.scores.len()),
            ("token types", self.kinds.len()),
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
        for (which, id) in [
            ("BOS", self.bos),
            ("EOS", self.eos),
            ("unknown", self.unknown),
        ] {
            if let Some(id) = id.filter(|&id| id as usize >= expected) {
                return Err(VocabularyError::Special {
                    which,
                    id,
                    tokens: expected,
                });
            }
        }
        Ok(())
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
    if found == SENTENCE_PIECE {
        return Ok(());
    }
    Err(VocabularyError::Model {
        found: found.to_owned(),
    })
}

fn kind(found: i32, token: usize) -> Result<TokenKind, VocabularyError> {
    u8::try_from(found)
        .ok()
        .and_then(|kind| TokenKind::try_from(kind).ok())
        .ok_or(VocabularyError::Kind { token, found })
}

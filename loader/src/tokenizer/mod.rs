//! SentencePiece tokenizer: text to token ids and back.
//!
//! The algorithm is the one of llama.cpp, id for id, because that is what the models of this
//! format are run with elsewhere:
//!
//! 1. The text is cut at the user-defined tokens, the longest first.
//! 2. Each remaining piece of text gets a space in front if it opens the text or follows a
//!    user-defined token (SentencePiece's dummy prefix), and every space becomes U+2581.
//! 3. Starting from single characters, the pair of neighbours whose token has the best score is
//!    joined, the left-most first, until there is none (Sennrich et al. 2016, with SentencePiece's
//!    scores in place of merge ranks).
//! 4. A character that is no token is written with byte tokens (`<0x41>`), or as the unknown token
//!    where the vocabulary has none: one for a whole run of them, as SentencePiece does. (llama.cpp
//!    gives up on such a text.)
//!
//! [`StreamDecoder`] is the way back, one token at a time.

mod control;
mod decode;
mod merge;
mod queue;
mod user_defined;

use htc_formats::vocab::{TokenKind, Vocabulary, VocabularyError};
use thiserror::Error;

pub use decode::StreamDecoder;
use merge::Merger;
use user_defined::{Fragment, UserDefined};

/// What a space is written as inside a vocabulary (U+2581).
const SPACE: &str = "\u{2581}";

/// Why a vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TokenizerError {
    /// It is of another kind than `llama`, or its tables contradict each other.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// Two ids for one text.
    #[error(
        "tokens {first} and {second} both read {text:?}, expected distinct texts; convert the model again from its source"
    )]
    Duplicate {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// The text of both.
        text: String,
    },
    /// A byte token that names no byte.
    #[error(
        "byte token {token} reads {text:?}, expected \"<0x00>\" to \"<0xFF>\"; convert the model again from its source"
    )]
    ByteToken {
        /// Id of the token.
        token: u32,
        /// Its text.
        text: String,
    },
    /// A special token that encoding needs is not named.
    #[error("the vocabulary {reason} but names no {role} token; add its id to the model file")]
    SpecialMissing {
        /// `BOS`, `EOS` or `unknown`.
        role: &'static str,
        /// What it is needed for.
        reason: &'static str,
    },
    /// More text in user-defined tokens than [`MAX_USER_DEFINED_BYTES`].
    #[error(
        "the user-defined tokens have {found} bytes of text, expected at most {MAX_USER_DEFINED_BYTES}; mark those that need not stay whole as normal"
    )]
    UserDefinedText {
        /// How many bytes.
        found: usize,
    },
}

/// Bytes of all user-defined tokens together. The tables to find them take some fifty bytes for
/// each; real vocabularies have a few thousand.
pub const MAX_USER_DEFINED_BYTES: usize = 1 << 20;

/// Whether [`Tokenizer::encode`] adds the special tokens of a whole sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    /// BOS before and EOS after the text, each if the vocabulary asks for it.
    AsVocabulary,
    /// BOS before the text if the vocabulary asks for it, nothing after it: a text that is to be
    /// continued.
    Prompt,
    /// The tokens of the text alone.
    Nothing,
}

/// A SentencePiece tokenizer over one vocabulary.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    /// Kind of every token: the vocabulary's, except for the names in `control`.
    kinds: Vec<TokenKind>,
    /// Tokens that end a generated text, ascending.
    ends: Vec<u32>,
    user_defined: UserDefined,
    merger: Merger,
}

impl Tokenizer {
    /// Builds the tables of a vocabulary.
    ///
    /// # Errors
    /// [`TokenizerError`], whose variants are what is checked.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        check(&vocabulary)?;
        let mut kinds = vocabulary.kinds.clone();
        let mut ends = Vec::from_iter(vocabulary.eos);
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

        let user_defined = UserDefined::new(
            (0..)
                .zip(&vocabulary.tokens)
                .filter(|&(id, _)| kinds[id as usize] == TokenKind::UserDefined)
                .map(|(id, text)| (id, text.as_str())),
        );
        let merger = Merger::new(&vocabulary)?;
        Ok(Self {
            vocabulary,
            kinds,
            ends,
            user_defined,
            merger,
        })
    }

    /// Token ids of `text`. Control tokens spelt in the text are text; user-defined tokens are
    /// tokens.
    ///
    /// Time is O(n log n) in the length of the text.
    pub fn encode(&self, text: &str, special: AddSpecial) -> Vec<u32> {
        let (before, after) = match special {
            AddSpecial::AsVocabulary => (self.vocabulary.add_bos, self.vocabulary.add_eos),
            AddSpecial::Prompt => (self.vocabulary.add_bos, false),
            AddSpecial::Nothing => (false, false),
        };
        let mut ids = Vec::new();
        if before {
            ids.extend(self.vocabulary.bos);
        }
        let mut merging = self.merger.start();
        let mut escaped = String::new();
        let mut prefix = self.vocabulary.add_space_prefix;
        for fragment in self.user_defined.split(text) {
            match fragment {
                Fragment::Token(token) => {
                    ids.push(token);
                    prefix = self.vocabulary.add_space_prefix;
                }
                Fragment::Text(text) => {
                    escaped.clear();
                    if prefix {
                        escaped.push_str(SPACE);
                    }
                    for (i, word) in text.split(' ').enumerate() {
                        if i > 0 {
                            escaped.push_str(SPACE);
                        }
                        escaped.push_str(word);
                    }
                    merging.encode(&escaped, &mut ids);
                    prefix = false;
                }
            }
        }
        if after {
            ids.extend(self.vocabulary.eos);
        }
        ids
    }

    /// Text of a whole sequence: [`StreamDecoder`] run over all of it.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut decoder = self.decoder();
        let mut text = String::new();
        for &token in tokens {
            decoder.push_to(token, &mut text);
        }
        text.push_str(&decoder.finish());
        text
    }

    /// Starts decoding a sequence token by token.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// Whether a generated text ends with this token: EOS, or one of the tokens that end a turn
    /// in a chat model, which are known by their text only.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// Text of a token as the vocabulary writes it, spaces as U+2581; `None` for an id outside it.
    pub fn piece(&self, token: u32) -> Option<&str> {
        self.vocabulary
            .tokens
            .get(token as usize)
            .map(String::as_str)
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Kind of a token, `None` for an id outside the vocabulary.
    fn kind(&self, token: u32) -> Option<TokenKind> {
        self.kinds.get(token as usize).copied()
    }
}

/// The byte that a byte token's text names.
fn byte_value(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hexadecimal {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// Refuses what the rest of the module could not work with.
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
    let mut found = 0;
    for ((token, text), kind) in (0..).zip(&vocabulary.tokens).zip(&vocabulary.kinds) {
        match kind {
            TokenKind::Byte if byte_value(text).is_none() => {
                return Err(TokenizerError::ByteToken {
                    token,
                    text: text.clone(),
                });
            }
            TokenKind::UserDefined => found += text.len(),
            _ => {}
        }
    }
    if found > MAX_USER_DEFINED_BYTES {
        return Err(TokenizerError::UserDefinedText { found });
    }
    Ok(())
}

#[cfg(test)]
mod tests;

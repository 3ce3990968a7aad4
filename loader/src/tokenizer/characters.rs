//! Text to tokens in SentencePiece vocabularies whose merges are a list: every character is a token
//! to begin with, or the byte tokens of its bytes, and those are joined pair by pair.

use std::collections::{HashMap, HashSet};

use htc_formats::vocab::Vocabulary;

use super::pairs::{Joining, NONE, Pairs};
use super::{SPACE, TokenizerError, byte_tokens};

/// The tables of one vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Characters {
    /// Tokens that are one character.
    tokens: HashMap<char, u32>,
    /// Token of every byte.
    bytes: Box<[u32; 256]>,
    pairs: Pairs,
    /// Characters before a space in any token. A text can be cut at all other spaces without
    /// keeping any two from being joined.
    before_space: HashSet<char>,
}

impl Characters {
    /// `ids` are the ids of the vocabulary's texts.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
    ) -> Result<Self, TokenizerError> {
        let bytes = byte_tokens(|text| ids.get(text).copied());
        if bytes.contains(&NONE) {
            return Err(TokenizerError::BytesMissing);
        }
        let mut tokens = HashMap::new();
        let mut before_space = HashSet::new();
        for (id, text) in (0..).zip(&vocabulary.tokens) {
            let mut characters = text.chars();
            if let (Some(character), None) = (characters.next(), characters.next()) {
                tokens.insert(character, id);
            }
            for (at, _) in text.match_indices(SPACE) {
                before_space.extend(text[..at].chars().next_back());
            }
        }
        Ok(Self {
            tokens,
            bytes,
            pairs: Pairs::new(vocabulary, ids)?,
            before_space,
        })
    }

    /// Buffers for encoding with these tables.
    pub(super) fn start(&self) -> Joining<'_> {
        self.pairs.start()
    }

    /// Appends the tokens of `text`, whose spaces are U+2581 already.
    pub(super) fn encode(&self, joining: &mut Joining<'_>, text: &str, ids: &mut Vec<u32>) {
        let mut before = None;
        for character in text.chars() {
            let space = SPACE.starts_with(character);
            if space && before.is_some_and(|before| !self.before_space.contains(&before)) {
                joining.finish(ids);
            }
            match self.tokens.get(&character) {
                Some(&token) => joining.push(token, ids),
                None => {
                    for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                        joining.push(self.bytes[usize::from(byte)], ids);
                    }
                }
            }
            before = Some(character);
        }
        joining.finish(ids);
    }
}

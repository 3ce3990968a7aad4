//! SentencePiece vocabularies with a list of merges.

use std::collections::{HashMap, HashSet};

use htc_formats::vocab::{Vocabulary, VocabularyError};

use super::pairs::{MergeList, MergeListBuffers};
use super::{ABSENT, SPACE, byte_tokens};

#[derive(Clone, Debug)]
pub(super) struct CharacterBpe {
    tokens: HashMap<char, u32>,
    bytes: Box<[u32; 256]>,
    pub(super) pairs: MergeList,
    /// Characters before a space in some token; a text can be cut at all spaces after others.
    before_space: HashSet<char>,
}

impl CharacterBpe {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
    ) -> Result<Self, VocabularyError> {
        let bytes = byte_tokens(|text| ids.get(text).copied());
        if bytes.contains(&ABSENT) {
            return Err(VocabularyError::BytesMissing);
        }
        let mut tokens = HashMap::new();
        let mut before_space = HashSet::new();
        for (id, text) in (0..).zip(&vocabulary.tokens) {
            let mut characters = text.chars();
            if let (Some(character), None) = (characters.next(), characters.next()) {
                tokens.insert(character, id);
            }
            // User-defined tokens have spaces.
            for (at, _) in text.match_indices([' ', '\u{2581}']) {
                let before = text[..at].chars().next_back();
                before_space.extend(before.map(|c| if c == ' ' { '\u{2581}' } else { c }));
            }
        }
        Ok(Self {
            tokens,
            bytes,
            pairs: MergeList::new(vocabulary, ids)?,
            before_space,
        })
    }

    /// Spaces are already replaced by U+2581.
    pub(super) fn encode(
        &self,
        joining: &mut MergeListBuffers<'_>,
        text: &str,
        ids: &mut Vec<u32>,
    ) {
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

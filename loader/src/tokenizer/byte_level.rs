//! Byte-level BPE: splits text into words and merges the bytes of each.

use std::collections::HashMap;

use htc_formats::vocab::{PreTokenizer, TokenKind, Vocabulary, VocabularyError};

use super::pairs::{MergeList, MergeListBuffers};
use super::{ABSENT, alphabet, words};

#[derive(Clone, Debug)]
pub(super) struct ByteLevelBpe {
    pre: PreTokenizer,
    bytes: Box<[u32; 256]>,
    pub(super) pairs: MergeList,
    unmerged_words: HashMap<Box<[u8]>, u32>,
    longest_unmerged: usize,
}

impl ByteLevelBpe {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        pre: PreTokenizer,
        ids: &HashMap<&str, u32>,
    ) -> Result<Self, VocabularyError> {
        let mut bytes = Box::new([ABSENT; 256]);
        for (byte, token) in (0..=255).zip(bytes.iter_mut()) {
            let mut text = [0; 4];
            let text = alphabet::byte_to_char(byte).encode_utf8(&mut text);
            *token = ids.get(&*text).copied().unwrap_or(ABSENT);
        }
        let mut whole = HashMap::new();
        if pre.ignores_merges() {
            whole.reserve(vocabulary.tokens.len());
            let tokens = (0..).zip(&vocabulary.tokens).zip(&vocabulary.kinds);
            for ((id, text), _) in tokens.filter(|(_, kind)| **kind == TokenKind::Normal) {
                let mut bytes = Vec::new();
                alphabet::decode(text, &mut bytes);
                whole.insert(bytes.into_boxed_slice(), id);
            }
        }
        Ok(Self {
            pre,
            bytes,
            pairs: MergeList::new(vocabulary, ids)?,
            longest_unmerged: whole.keys().map(|word| word.len()).max().unwrap_or(0),
            unmerged_words: whole,
        })
    }

    /// Appends the tokens of `text`; a byte without token is dropped, as in Hugging Face
    /// tokenizers.
    pub(super) fn encode(
        &self,
        joining: &mut MergeListBuffers<'_>,
        text: &str,
        ids: &mut Vec<u32>,
    ) {
        words::for_each_word(self.pre, text, &mut |word| {
            if word.len() <= self.longest_unmerged
                && let Some(&token) = self.unmerged_words.get(word.as_bytes())
            {
                ids.push(token);
                return;
            }
            for byte in word.bytes() {
                let token = self.bytes[usize::from(byte)];
                if token != ABSENT {
                    joining.push(token, ids);
                }
            }
            joining.finish(ids);
        });
    }
}

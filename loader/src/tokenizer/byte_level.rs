//! Byte-level BPE: splits text into words and merges the bytes of each.

use std::collections::HashMap;

use htc_formats::vocab::{PreTokenizer, TokenKind, Vocabulary};

use super::pairs::{Joining, NONE, Pairs};
use super::{TokenizerError, alphabet, words};

/// Tables of one vocabulary.
#[derive(Clone, Debug)]
pub(super) struct ByteLevel {
    pre: PreTokenizer,
    bytes: Box<[u32; 256]>,
    pairs: Pairs,
    whole: HashMap<Box<[u8]>, u32>,
    longest: usize,
}

impl ByteLevel {
    /// `ids` maps texts to ids.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        pre: PreTokenizer,
        ids: &HashMap<&str, u32>,
    ) -> Result<Self, TokenizerError> {
        let mut bytes = Box::new([NONE; 256]);
        for (byte, token) in (0..=255).zip(bytes.iter_mut()) {
            let mut text = [0; 4];
            let text = alphabet::character(byte).encode_utf8(&mut text);
            *token = ids.get(&*text).copied().unwrap_or(NONE);
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
            pairs: Pairs::new(vocabulary, ids)?,
            longest: whole.keys().map(|word| word.len()).max().unwrap_or(0),
            whole,
        })
    }

    /// Creates buffers for encoding.
    pub(super) fn start(&self) -> Joining<'_> {
        self.pairs.start()
    }

    /// Appends the tokens of `text`. A byte without token is dropped, as in Hugging Face
    /// tokenizers.
    pub(super) fn encode(&self, joining: &mut Joining<'_>, text: &str, ids: &mut Vec<u32>) {
        words::for_each(self.pre, text, &mut |word| {
            if word.len() <= self.longest
                && let Some(&token) = self.whole.get(word.as_bytes())
            {
                ids.push(token);
                return;
            }
            for byte in word.bytes() {
                let token = self.bytes[usize::from(byte)];
                if token != NONE {
                    joining.push(token, ids);
                }
            }
            joining.finish(ids);
        });
    }
}

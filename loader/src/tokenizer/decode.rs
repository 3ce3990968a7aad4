//! Streaming decoder from token ids to text.

use htc_formats::vocab::{TokenKind, byte_value};

use super::{Algorithm, SPACE, Tokenizer, alphabet};

/// Decodes a sequence token by token, emitting complete characters only.
///
/// Invalid bytes are replaced by U+FFFD, one per maximal prefix of a character (Unicode 16, section
/// 3.9, as [`String::from_utf8_lossy`]).
#[derive(Clone, Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    pending: Vec<u8>,
    strip: bool,
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        let strip = tokenizer.vocabulary.add_space_prefix;
        Self {
            tokenizer,
            pending: Vec::new(),
            strip,
        }
    }

    /// Returns the completed text; empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> String {
        let mut text = String::new();
        self.push_to(token, &mut text);
        text
    }

    /// Returns the remaining text: U+FFFD if the last character is incomplete.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        self.flush(&mut text);
        text
    }

    pub(super) fn push_to(&mut self, token: u32, text: &mut String) {
        let tokenizer = self.tokenizer;
        let (Some(piece), Some(kind)) = (tokenizer.piece(token), tokenizer.kind(token)) else {
            return;
        };
        match kind {
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => return,
            TokenKind::Byte => {
                if let Some(byte) = byte_value(piece) {
                    self.pending.push(byte);
                    self.take_complete(text);
                }
            }
            TokenKind::Normal if matches!(tokenizer.method, Algorithm::ByteLevel(_)) => {
                alphabet::decode(piece, &mut self.pending);
                self.take_complete(text);
            }
            TokenKind::Normal | TokenKind::UserDefined => {
                self.flush(text);
                self.push_piece(token, piece, kind, text);
            }
        }
        self.strip = false;
    }

    fn push_piece(&self, token: u32, piece: &str, kind: TokenKind, text: &mut String) {
        let Tokenizer {
            vocabulary, method, ..
        } = self.tokenizer;
        let mut piece = piece;
        if kind == TokenKind::UserDefined {
            let normalized = vocabulary.match_normalized.binary_search(&token).is_ok();
            if normalized && vocabulary.prefixes_when_normalizing() && !self.strip {
                text.push(' ');
            }
            // Matched as it is. Only `tokenizer.json` has U+2581 in it, which its decoder replaces.
            if !matches!(method, Algorithm::Characters(_)) {
                text.push_str(piece);
                return;
            }
        }
        if self.strip {
            piece = piece.strip_prefix(SPACE).unwrap_or(piece);
        }
        for (i, word) in piece.split(SPACE).enumerate() {
            if i > 0 {
                text.push(' ');
            }
            text.push_str(word);
        }
    }

    fn take_complete(&mut self, text: &mut String) {
        let mut taken = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let incomplete = taken + chunk.invalid().len() == self.pending.len()
                && may_continue(chunk.invalid());
            if !chunk.invalid().is_empty() && !incomplete {
                text.push(char::REPLACEMENT_CHARACTER);
                taken += chunk.invalid().len();
            }
        }
        self.pending.drain(..taken);
    }

    fn flush(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }
}

fn may_continue(bytes: &[u8]) -> bool {
    // The standard library reports no length for a truncated character.
    matches!(std::str::from_utf8(bytes), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
}

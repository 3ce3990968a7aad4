//! `tokenizer.model`: SentencePiece's Protocol Buffers message (`sentencepiece_model.proto`). The
//! parser reads only relevant fields and does not recurse.

use super::{TOKENIZER_MODEL, unsupported};
use crate::limits;
use crate::vocab::{SENTENCE_PIECE, TokenKind, Vocabulary, VocabularyError};

/// The key of the first piece.
const FIRST_BYTE: u8 = 1 << 3 | 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Field<'a> {
    /// Integers, flags, enumerations.
    Varint(u64),
    /// `float` among others.
    Fixed32(u32),
    /// `double` among others.
    Fixed64,
    /// Texts and messages.
    Bytes(&'a [u8]),
}

struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or("ends within a number")?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("has a number of more than 64 bits")
    }

    fn bytes(&mut self, len: u64) -> Result<&'a [u8], &'static str> {
        let len = usize::try_from(len).ok().filter(|&len| len <= self.0.len());
        let (bytes, rest) = self.0.split_at(len.ok_or("ends within a field")?);
        self.0 = rest;
        Ok(bytes)
    }

    fn field(&mut self) -> Result<(u64, Field<'a>), &'static str> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => {
                self.bytes(8)?;
                Field::Fixed64
            }
            2 => {
                let len = self.varint()?;
                Field::Bytes(self.bytes(len)?)
            }
            5 => {
                let mut value = [0; 4];
                value.copy_from_slice(self.bytes(4)?);
                Field::Fixed32(u32::from_le_bytes(value))
            }
            _ => return Err("has a field of an unknown kind"),
        };
        Ok((key >> 3, field))
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = Result<(u64, Field<'a>), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[derive(Debug)]
struct TokenizerParameters {
    model_type: u64,
    whitespace_as_suffix: bool,
    unknown: u64,
    bos: u64,
    eos: u64,
    normalizer: String,
    characters_mapped: bool,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
}

impl Default for TokenizerParameters {
    fn default() -> Self {
        TokenizerParameters {
            model_type: 1,
            whitespace_as_suffix: false,
            unknown: 0,
            bos: 1,
            eos: 2,
            normalizer: String::new(),
            characters_mapped: false,
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

/// Llama 3's `tokenizer.model` is another format.
pub(super) fn is_sentence_piece(bytes: &[u8]) -> bool {
    bytes.first() == Some(&FIRST_BYTE)
}

/// Special tokens are those stated in the file; BOS is added before a text, no EOS after it.
pub(super) fn parse(bytes: &[u8]) -> Result<Vocabulary, VocabularyError> {
    let damaged = |problem: &str| VocabularyError::File {
        file: TOKENIZER_MODEL.to_owned(),
        problem: format!("the file {problem}; copy it again from its source"),
    };
    let mut vocabulary = Vocabulary {
        model: SENTENCE_PIECE.to_owned(),
        add_bos: true,
        ..Vocabulary::default()
    };
    let mut specification = TokenizerParameters::default();
    for field in Message(bytes) {
        match field.map_err(damaged)? {
            (1, Field::Bytes(piece)) => {
                if vocabulary.tokens.len() >= limits::MAX_VOCABULARY {
                    let found = vocabulary.tokens.len() + 1;
                    return Err(VocabularyError::Size { found });
                }
                let (text, score, kind) = read_piece(piece).map_err(damaged)?;
                vocabulary.tokens.push(text);
                vocabulary.scores.push(score);
                vocabulary.kinds.push(kind);
            }
            (2, Field::Bytes(trainer)) => {
                read_trainer(trainer, &mut specification).map_err(damaged)?;
            }
            (3, Field::Bytes(normalizer)) => {
                read_normalizer(normalizer, &mut specification).map_err(damaged)?;
            }
            _ => {}
        }
    }
    check(&specification)?;
    let exists = |id: u64| {
        let id = u32::try_from(id).ok()?;
        ((id as usize) < vocabulary.tokens.len()).then_some(id)
    };
    vocabulary.unknown = exists(specification.unknown);
    vocabulary.bos = exists(specification.bos);
    vocabulary.eos = exists(specification.eos);
    vocabulary.add_space_prefix = specification.add_dummy_prefix;
    vocabulary.collapse_spaces = specification.remove_extra_whitespaces;
    Ok(vocabulary)
}

fn read_piece(bytes: &[u8]) -> Result<(String, f32, TokenKind), &'static str> {
    let (mut text, mut score, mut kind) = (&[][..], 0.0, TokenKind::Normal);
    for field in Message(bytes) {
        match field? {
            (1, Field::Bytes(bytes)) => text = bytes,
            (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
            (3, Field::Varint(value)) => {
                let known = u8::try_from(value).ok();
                kind = known
                    .and_then(|kind| TokenKind::try_from(kind).ok())
                    .ok_or("has a piece of an unknown type")?;
            }
            _ => {}
        }
    }
    let text = str::from_utf8(text).map_err(|_| "has a piece that is no UTF-8")?;
    let text = match kind {
        // Matched against raw text.
        TokenKind::UserDefined => text.replace('\u{2581}', " "),
        _ => text.to_owned(),
    };
    Ok((text, score, kind))
}

fn read_trainer(bytes: &[u8], specification: &mut TokenizerParameters) -> Result<(), &'static str> {
    for field in Message(bytes) {
        match field? {
            (3, Field::Varint(value)) => specification.model_type = value,
            (24, Field::Varint(value)) => specification.whitespace_as_suffix = value != 0,
            (40, Field::Varint(value)) => specification.unknown = value,
            (41, Field::Varint(value)) => specification.bos = value,
            (42, Field::Varint(value)) => specification.eos = value,
            _ => {}
        }
    }
    Ok(())
}

fn read_normalizer(
    bytes: &[u8],
    specification: &mut TokenizerParameters,
) -> Result<(), &'static str> {
    for field in Message(bytes) {
        match field? {
            (1, Field::Bytes(name)) => {
                specification.normalizer = String::from_utf8_lossy(name).into_owned();
            }
            (2, Field::Bytes(map)) => specification.characters_mapped = !map.is_empty(),
            (3, Field::Varint(value)) => specification.add_dummy_prefix = value != 0,
            (4, Field::Varint(value)) => specification.remove_extra_whitespaces = value != 0,
            (5, Field::Varint(value)) => specification.escape_whitespaces = value != 0,
            _ => {}
        }
    }
    Ok(())
}

/// Rejects settings under which the tokens would differ from SentencePiece's.
fn check(specification: &TokenizerParameters) -> Result<(), VocabularyError> {
    const BPE: u64 = 2;
    let TokenizerParameters {
        model_type,
        characters_mapped,
        ..
    } = *specification;
    if model_type != BPE {
        let found = match model_type {
            1 => "unigram".to_owned(),
            3 => "word".to_owned(),
            4 => "char".to_owned(),
            other => other.to_string(),
        };
        return Err(unsupported(TOKENIZER_MODEL, "model_type", found, "bpe"));
    }
    if characters_mapped {
        let found = specification.normalizer.clone();
        return Err(unsupported(
            TOKENIZER_MODEL,
            "normalizer",
            found,
            "identity",
        ));
    }
    for (what, found, supported) in [
        (
            "treat_whitespace_as_suffix",
            specification.whitespace_as_suffix,
            false,
        ),
        ("escape_whitespaces", specification.escape_whitespaces, true),
    ] {
        if found != supported {
            let (found, supported) = (found.to_string(), supported.to_string());
            return Err(unsupported(TOKENIZER_MODEL, what, found, supported));
        }
    }
    Ok(())
}

/// Returns the bytes of a `tokenizer.model` for a vocabulary with scores, from which [`parse`]
/// reads the same vocabulary.
pub(super) fn write(vocabulary: &Vocabulary) -> Vec<u8> {
    let mut out = Vec::new();
    let tokens = vocabulary.tokens.iter().zip(&vocabulary.scores);
    for ((text, score), kind) in tokens.zip(&vocabulary.kinds) {
        let mut piece = Vec::new();
        match kind {
            TokenKind::UserDefined => {
                put_bytes(&mut piece, 1, text.replace(' ', "\u{2581}").as_bytes())
            }
            _ => put_bytes(&mut piece, 1, text.as_bytes()),
        }
        put_varint(&mut piece, 2 << 3 | 5);
        piece.extend_from_slice(&score.to_bits().to_le_bytes());
        put_number(&mut piece, 3, u64::from(u8::from(*kind)));
        put_bytes(&mut out, 1, &piece);
    }
    const BPE: u64 = 2;
    // A missing token is -1.
    let id = |id: Option<u32>| id.map_or(u64::MAX, u64::from);
    let has_bytes = vocabulary.kinds.contains(&TokenKind::Byte);
    let mut trainer = Vec::new();
    for (field, value) in [
        (3, BPE),
        (4, vocabulary.tokens.len() as u64),
        (35, u64::from(has_bytes)),
        (40, id(vocabulary.unknown)),
        (41, id(vocabulary.bos)),
        (42, id(vocabulary.eos)),
        (43, id(None)),
    ] {
        put_number(&mut trainer, field, value);
    }
    for (field, id) in [
        (45, vocabulary.unknown),
        (46, vocabulary.bos),
        (47, vocabulary.eos),
    ] {
        let text = id.and_then(|id| vocabulary.tokens.get(id as usize));
        if let Some(text) = text {
            put_bytes(&mut trainer, field, text.as_bytes());
        }
    }
    put_bytes(&mut out, 2, &trainer);
    let mut normalizer = Vec::new();
    put_bytes(&mut normalizer, 1, b"identity");
    for (field, value) in [
        (3, vocabulary.add_space_prefix),
        (4, vocabulary.collapse_spaces),
        (5, true),
    ] {
        put_number(&mut normalizer, field, u64::from(value));
    }
    put_bytes(&mut out, 3, &normalizer);
    out
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_number(out: &mut Vec<u8>, field: u64, value: u64) {
    put_varint(out, field << 3);
    put_varint(out, value);
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

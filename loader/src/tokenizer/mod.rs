//! Tokenizers: text to token ids and back, id for id as llama.cpp.
//!
//! The text is cut at the user-defined tokens, the longest first, and optionally at the control
//! tokens; each fragment is normalised if the vocabulary says so. SentencePiece: each fragment gets
//! a leading space if it opens the text or follows a special token (`tokenizer.json` has other
//! rules too), and every space becomes U+2581. Starting from single characters, the adjacent
//! pair whose token has the best score (or is first in the list of merges, from `tokenizer.json`)
//! is merged, the left-most first (Sennrich et al. 2016). A character without token is encoded as
//! byte tokens, or as one unknown token for a whole run if the vocabulary has none (llama.cpp fails
//! on such a text). Byte-level BPE: each fragment is split into words, whose bytes are merged in
//! the order of the list of merges.
//!
//! [`StreamDecoder`] decodes one token at a time.

mod alphabet;
mod byte_level;
mod characters;
mod control;
mod decode;
mod merge;
mod pairs;
mod pieces;
mod queue;
mod texts;
mod user_defined;
mod words;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use htc_formats::vocab::{BYTE_LEVEL, SPACE, TokenKind, Vocabulary, VocabularyError};

use byte_level::ByteLevelBpe;
use characters::CharacterBpe;
pub use decode::StreamDecoder;
use merge::ScoreMerger;
use pieces::{Piece, SpecialTokens, TextPiece, push_escaped};

/// Marks a missing token, node or position.
const ABSENT: u32 = u32::MAX;

/// Kinds of special tokens.
const SPECIAL_KINDS: [TokenKind; 3] = [
    TokenKind::UserDefined,
    TokenKind::Control,
    TokenKind::Unknown,
];

/// Selects the special tokens that [`Tokenizer::encode`] adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecialTokens {
    /// BOS before and EOS after the text, as configured by the vocabulary.
    AsConfigured,
    /// BOS before the text, as configured by the vocabulary, for a prompt to be continued.
    Prompt,
    /// Tokens of the text alone.
    TextOnly,
}

#[derive(Clone, Debug)]
enum Algorithm {
    Scores(ScoreMerger),
    Characters(CharacterBpe),
    ByteLevel(ByteLevelBpe),
}

/// Tokenizer of one vocabulary.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    kinds: Vec<TokenKind>,
    end_tokens: Vec<u32>,
    user_defined: SpecialTokens,
    special: OnceLock<SpecialTokens>,
    method: Algorithm,
}

impl Tokenizer {
    /// Builds the tables of a vocabulary.
    pub fn new(mut vocabulary: Vocabulary) -> Result<Self, VocabularyError> {
        vocabulary.validate()?;
        vocabulary.check_for_tokenizer()?;
        vocabulary.strip_before.sort_unstable();
        vocabulary.strip_after.sort_unstable();
        vocabulary.match_normalized.sort_unstable();
        let mut kinds = vocabulary.kinds.clone();
        let mut ends = vocabulary.end_of_generation.clone();
        ends.extend(vocabulary.eos);
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

        pieces::check_normalized(&vocabulary, &kinds)?;
        let user_defined = SpecialTokens::new(&vocabulary, &kinds, &[TokenKind::UserDefined]);
        let method = build_algorithm(&vocabulary)?;
        Ok(Self {
            vocabulary,
            kinds,
            end_tokens: ends,
            user_defined,
            special: OnceLock::new(),
            method,
        })
    }

    /// Returns the token ids of `text`. Control tokens spelt in the text are treated as text,
    /// user-defined tokens as tokens.
    pub fn encode(&self, text: &str, add: AddSpecialTokens) -> Vec<u32> {
        self.encode_fragments(&self.user_defined, text, &[], add)
    }

    /// Same as [`encode`](Self::encode), but parses control tokens in the text. BOS is not added
    /// before a text that begins with it, nor EOS after one that ends with it.
    pub fn encode_with_special(&self, text: &str, add: AddSpecialTokens) -> Vec<u32> {
        self.encode_fragments(self.special_tokens(), text, &[], add)
    }

    /// Same as [`encode_with_special`](Self::encode_with_special), except that control tokens
    /// inside the byte ranges `said`, also partly, are treated as text, such as a user's message in
    /// a prompt template.
    ///
    /// The ranges are ascending, do not overlap, and lie on character boundaries.
    pub fn encode_conversation(
        &self,
        text: &str,
        said: &[Range<usize>],
        add: AddSpecialTokens,
    ) -> Vec<u32> {
        self.encode_fragments(self.special_tokens(), text, said, add)
    }

    /// Returns a control token contained in `text`, or one that could be completed by text before
    /// or after it.
    pub fn find_control_token(&self, text: &str) -> Option<&str> {
        let pieces = self.pieces(self.special_tokens(), text, &[]);
        let spelt = pieces.iter().find_map(|piece| match piece {
            Piece::Token(token) if self.is_control(*token) => self.piece(*token),
            _ => None,
        });
        let control = (0..).zip(&self.vocabulary.tokens);
        let mut control = control.filter(|&(id, _)| self.is_control(id));
        spelt.or_else(|| {
            let joint = control.find(|(_, token)| {
                token.char_indices().skip(1).any(|(at, _)| {
                    let (head, tail) = token.split_at(at);
                    text.ends_with(head) || text.starts_with(tail)
                })
            });
            joint.map(|(_, token)| token.as_str())
        })
    }

    fn is_control(&self, token: u32) -> bool {
        matches!(
            self.kind(token),
            Some(TokenKind::Control | TokenKind::Unknown)
        )
    }

    fn special_tokens(&self) -> &SpecialTokens {
        self.special
            .get_or_init(|| SpecialTokens::new(&self.vocabulary, &self.kinds, &SPECIAL_KINDS))
    }

    fn encode_fragments(
        &self,
        special: &SpecialTokens,
        text: &str,
        said: &[Range<usize>],
        add: AddSpecialTokens,
    ) -> Vec<u32> {
        let (before, after) = match add {
            AddSpecialTokens::AsConfigured => (self.vocabulary.add_bos, self.vocabulary.add_eos),
            AddSpecialTokens::Prompt => (self.vocabulary.add_bos, false),
            AddSpecialTokens::TextOnly => (false, false),
        };
        let mut ids = Vec::new();
        let collapsed;
        let (text, said) = if self.vocabulary.collapse_spaces {
            collapsed = collapse_spaces(text, said);
            (collapsed.0.as_str(), collapsed.1.as_slice())
        } else {
            (text, said)
        };
        let pieces = self.pieces(special, text, said);
        if before && self.vocabulary.bos != token_of(pieces.first()) {
            ids.extend(self.vocabulary.bos);
        }
        match &self.method {
            Algorithm::Scores(merger) => {
                let mut merging = merger.new_buffers();
                self.encode_sentencepiece(&pieces, &mut ids, |text, ids| merging.encode(text, ids));
            }
            Algorithm::Characters(characters) => {
                let mut joining = characters.pairs.start();
                self.encode_sentencepiece(&pieces, &mut ids, |text, ids| {
                    characters.encode(&mut joining, text, ids);
                });
            }
            Algorithm::ByteLevel(byte_level) => {
                let mut joining = byte_level.pairs.start();
                encode_pieces(&pieces, &mut ids, |piece, ids| {
                    byte_level.encode(&mut joining, &piece.text, ids);
                });
            }
        }
        if after && self.vocabulary.eos != token_of(pieces.last()) {
            ids.extend(self.vocabulary.eos);
        }
        ids
    }

    fn encode_sentencepiece(
        &self,
        pieces: &[Piece<'_>],
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(&str, &mut Vec<u32>),
    ) {
        let Vocabulary {
            add_space_prefix,
            space_prefix_once,
            space_prefix_if_absent,
            split_before_spaces,
            ..
        } = self.vocabulary;
        let mut buffer = String::new();
        encode_pieces(pieces, ids, |piece, ids| {
            let mut escaped = &*piece.text;
            if !piece.is_escaped {
                buffer.clear();
                let has_space = piece.text.starts_with([' ', '\u{2581}']);
                let omitted = (space_prefix_once && !piece.is_first)
                    || (has_space && (space_prefix_once || space_prefix_if_absent));
                if add_space_prefix && !omitted {
                    buffer.push_str(SPACE);
                }
                push_escaped(&piece.text, &mut buffer);
                escaped = &buffer;
            }
            if !split_before_spaces {
                encode(escaped, ids);
                return;
            }
            let mut start = 0;
            for (at, _) in escaped.match_indices(SPACE).filter(|(at, _)| *at > 0) {
                encode(&escaped[start..at], ids);
                start = at;
            }
            encode(&escaped[start..], ids);
        });
    }

    /// Decodes a whole sequence with [`StreamDecoder`].
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut decoder = self.decoder();
        let mut text = String::new();
        for &token in tokens {
            decoder.push_to(token, &mut text);
        }
        text.push_str(&decoder.finish());
        text
    }

    /// Creates a streaming decoder.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// Id of the end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// Returns true if the token ends generation: EOS, end tokens of the model's files, and
    /// end-of-turn tokens recognised by their text.
    pub fn is_end_token(&self, token: u32) -> bool {
        self.end_tokens.binary_search(&token).is_ok()
    }

    /// Text of a token in the vocabulary; `None` for an invalid id.
    pub fn piece(&self, token: u32) -> Option<&str> {
        self.vocabulary
            .tokens
            .get(token as usize)
            .map(String::as_str)
    }

    /// Returns the vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn kind(&self, token: u32) -> Option<TokenKind> {
        self.kinds.get(token as usize).copied()
    }
}

fn build_algorithm(vocabulary: &Vocabulary) -> Result<Algorithm, VocabularyError> {
    if vocabulary.model != BYTE_LEVEL && vocabulary.merges.is_empty() {
        return Ok(Algorithm::Scores(ScoreMerger::new(vocabulary)?));
    }
    let ids = token_ids(vocabulary)?;
    Ok(match vocabulary.pre {
        Some(pre) if vocabulary.model == BYTE_LEVEL => {
            Algorithm::ByteLevel(ByteLevelBpe::new(vocabulary, pre, &ids)?)
        }
        _ => Algorithm::Characters(CharacterBpe::new(vocabulary, &ids)?),
    })
}

/// Returns the ids of the texts of tokens, which must differ. Several may be empty; they never
/// occur.
fn token_ids(vocabulary: &Vocabulary) -> Result<HashMap<&str, u32>, VocabularyError> {
    let mut ids = HashMap::with_capacity(vocabulary.tokens.len());
    for (second, text) in (0..).zip(&vocabulary.tokens) {
        if !text.is_empty()
            && let Some(first) = ids.insert(text.as_str(), second)
        {
            return Err(VocabularyError::DuplicateText {
                first,
                second,
                text: text.clone(),
            });
        }
    }
    Ok(ids)
}

fn byte_tokens(id: impl Fn(&str) -> Option<u32>) -> Box<[u32; 256]> {
    let mut bytes = Box::new([u32::MAX; 256]);
    for (byte, token) in (0u8..=255).zip(bytes.iter_mut()) {
        *token = id(&format!("<0x{byte:02X}>")).unwrap_or(u32::MAX);
    }
    bytes
}

fn encode_pieces(
    pieces: &[Piece<'_>],
    ids: &mut Vec<u32>,
    mut encode: impl FnMut(&TextPiece<'_>, &mut Vec<u32>),
) {
    for piece in pieces {
        match piece {
            Piece::Token(token) => ids.push(*token),
            Piece::Text(text) => encode(text, ids),
        }
    }
}

fn token_of(piece: Option<&Piece<'_>>) -> Option<u32> {
    match piece {
        Some(Piece::Token(token)) => Some(*token),
        _ => None,
    }
}

fn collapse_spaces(text: &str, said: &[Range<usize>]) -> (String, Vec<Range<usize>>) {
    let mut collapsed = String::with_capacity(text.len());
    let mut ends = said.iter().flat_map(|range| [range.start, range.end]);
    let mut next = ends.next();
    let mut places = Vec::with_capacity(2 * said.len());
    let mut space = false;
    for (at, character) in text.char_indices() {
        while next.is_some_and(|place| place <= at) {
            places.push(collapsed.len());
            next = ends.next();
        }
        if character == ' ' {
            space = !collapsed.is_empty();
            continue;
        }
        if space {
            collapsed.push(' ');
            space = false;
        }
        collapsed.push(character);
    }
    places.resize(2 * said.len(), collapsed.len());
    let said = places.chunks_exact(2).map(|ends| ends[0]..ends[1]);
    let said = said.collect();
    (collapsed, said)
}

#[cfg(test)]
mod tests;

//! Tokens of a tokenizer file and added tokens.

use std::collections::{HashMap, HashSet};

use super::json::{AddedToken, Merge, Model, TokenizerJson};
use super::{TOKENIZER_CONFIG, TOKENIZER_JSON, file, rules, unsupported_json};
use crate::limits::{MAX_SPECIAL_BYTES, MAX_SPECIAL_TOKEN_BYTES};
use crate::vocab::{TokenKind, Vocabulary, VocabularyError, byte_value};

/// Score of added tokens, as assigned by converters to GGUF.
pub(super) const ADDED_SCORE: f32 = -1000.0;
/// Score of unused ids, as assigned by converters to GGUF.
const PADDING_SCORE: f32 = -10000.0;

/// Tokens and their rules, before special tokens are assigned.
#[derive(Default)]
pub(super) struct VocabularyBuilder {
    pub(super) vocabulary: Vocabulary,
    /// Added tokens follow.
    pub(super) model_tokens: usize,
    /// Twice the tokens listed in the files, so that a single id cannot cause a large allocation.
    pub(super) max_ids: usize,
    /// As sets, because files may list a million tokens with duplicates.
    strips: [HashSet<u32>; 2],
    /// Added tokens that are matched in the normalised text.
    normalized: Vec<u32>,
    /// There are other added tokens.
    others_added: bool,
}

impl VocabularyBuilder {
    pub(super) fn from_pieces(vocabulary: Vocabulary, added: usize) -> Self {
        let own = vocabulary.tokens.len();
        VocabularyBuilder {
            max_ids: 2 * (own + added),
            model_tokens: own,
            vocabulary,
            ..VocabularyBuilder::default()
        }
    }

    /// Reads `tokenizer.json`; `collapses` as in [`rules::read`]. The added tokens of
    /// `tokenizer_config.json`, `configured`, are checked with its own, not added.
    pub(super) fn from_json(
        tokenizer: TokenizerJson,
        configured: &[AddedToken],
        collapses: bool,
    ) -> Result<Self, VocabularyError> {
        if let Some(version) = tokenizer
            .version
            .as_ref()
            .filter(|version| *version != "1.0")
        {
            return Err(unsupported_json("version", version, "1.0"));
        }
        check_model(&tokenizer.model)?;
        let mut vocabulary = rules::read(&tokenizer, collapses)?;
        let byte_level = vocabulary.pre.is_some();
        let TokenizerJson {
            added_tokens,
            model,
            ..
        } = tokenizer;
        let ids: HashMap<&str, u32> = {
            let entries = model.vocab.0.iter();
            entries.map(|(text, id)| (&**text, *id)).collect()
        };
        if byte_level {
            check_no_unknown_bytes(&model, &ids)?;
        }
        vocabulary.merges = merges(&model.merges, &ids)?;
        let missing = missing_tokens(configured, &added_tokens);
        check_added_ids(&added_tokens, &missing, &ids)?;
        check_overlaps(added_tokens.iter().chain(missing))?;
        drop(ids);
        let entries = model.vocab.0;
        let mut base = VocabularyBuilder {
            max_ids: 2 * (entries.len() + added_tokens.len() + configured.len()),
            vocabulary,
            ..VocabularyBuilder::default()
        };
        for (text, id) in entries {
            if !byte_level && model.unk_token.as_ref() == Some(&text) {
                base.vocabulary.unknown = Some(id);
            }
            let kind = match byte_value(&text) {
                Some(_) if !byte_level => TokenKind::Byte,
                _ => TokenKind::Normal,
            };
            base.set_token(id, text, kind)?;
        }
        base.model_tokens = base.vocabulary.tokens.len();
        for token in &added_tokens {
            base.add(token)?;
        }
        Ok(base)
    }

    /// Sets which added tokens are matched in the normalised text. `tokenizers` matches the others
    /// first; a list is only needed if this order or the normalisation can make a difference.
    pub(super) fn set_normalized_tokens(&mut self) -> Result<(), VocabularyError> {
        let vocabulary = &mut self.vocabulary;
        let prefixes = vocabulary.prefixes_when_normalizing();
        // Without a prefix, the vocabulary does not tell whether spaces were already replaced.
        let text = |id: &u32| vocabulary.tokens[*id as usize].as_str();
        let uses_spaces = |id: &&u32| {
            let strips = self.strips.iter().any(|known| known.contains(id));
            text(id).contains([' ', '\u{2581}']) || (strips && !vocabulary.add_space_prefix)
        };
        if vocabulary.pre.is_none()
            && !prefixes
            && let Some(id) = self.normalized.iter().find(uses_spaces)
        {
            let found = format!("true for the added token {:?}", text(id));
            let supported = "false for an added token that has or strips spaces";
            return Err(unsupported_json("normalized", found, supported));
        }
        if self.others_added || vocabulary.normalization.is_some() || prefixes {
            vocabulary.match_normalized = std::mem::take(&mut self.normalized);
        }
        Ok(())
    }

    fn set_token(&mut self, id: u32, text: String, kind: TokenKind) -> Result<(), VocabularyError> {
        let at = id as usize;
        self.extend_to(id, &text)?;
        let Vocabulary { tokens, kinds, .. } = &mut self.vocabulary;
        if kinds[at] != TokenKind::Unused {
            let problem = format!("tokens {:?} and {text:?} both have the id {id}", tokens[at]);
            return Err(file(TOKENIZER_JSON, &problem));
        }
        tokens[at] = text;
        kinds[at] = kind;
        Ok(())
    }

    fn extend_to(&mut self, id: u32, text: &str) -> Result<(), VocabularyError> {
        let most = self.max_ids;
        if id as usize >= most {
            let problem = format!("token {text:?} has the id {id}, expected one below {most}");
            return Err(file("the tokenizer's files", &problem));
        }
        self.vocabulary.pad(id as usize + 1);
        Ok(())
    }

    /// Adds a token of `tokenizer_config.json` unless `tokenizer.json` has it too.
    pub(super) fn add_missing(&mut self, token: &AddedToken) -> Result<(), VocabularyError> {
        let Vocabulary { tokens, kinds, .. } = &self.vocabulary;
        let at = token.id as usize;
        if let (Some(text), Some(kind)) = (tokens.get(at), kinds.get(at)) {
            let added = !matches!(kind, TokenKind::Normal | TokenKind::Byte);
            if *text == token.content && added {
                return Ok(());
            }
        }
        self.add(token)
    }

    /// Adds a token under its id, in the place of any other.
    pub(super) fn add(&mut self, token: &AddedToken) -> Result<(), VocabularyError> {
        let AddedToken { id, content, .. } = token;
        if token.single_word {
            let found = format!("true for the added token {content:?}");
            return Err(unsupported_json("single_word", found, "false"));
        }
        if content.is_empty() {
            return Ok(());
        }
        let at = *id as usize;
        self.extend_to(*id, content)?;
        let Vocabulary {
            tokens,
            scores,
            kinds,
            ..
        } = &mut self.vocabulary;
        kinds[at] = token.kind();
        tokens[at].clone_from(content);
        if let Some(score) = scores.get_mut(at) {
            *score = ADDED_SCORE;
        }
        self.record_strips(token);
        if token.normalized {
            self.normalized.push(*id);
        } else {
            self.others_added = true;
        }
        Ok(())
    }

    /// Notes which whitespace around a token belongs to it.
    fn record_strips(&mut self, token: &AddedToken) {
        let Vocabulary {
            strip_before,
            strip_after,
            ..
        } = &mut self.vocabulary;
        let [before, after] = &mut self.strips;
        for (flag, list, known) in [
            (token.lstrip, strip_before, before),
            (token.rstrip, strip_after, after),
        ] {
            if flag && known.insert(token.id) {
                list.push(token.id);
            }
        }
    }

    /// Pads or cuts the tokens to `size`, the rows of the embedding.
    pub(super) fn finish(mut self, size: Option<u64>) -> Result<Vocabulary, VocabularyError> {
        let Some(size) = size else {
            return Ok(self.vocabulary);
        };
        let rows = usize::try_from(size).unwrap_or(usize::MAX);
        if !(self.model_tokens..=self.max_ids).contains(&rows) {
            let tokens = self.vocabulary.tokens.len();
            return Err(VocabularyError::Rows { tokens, rows });
        }
        self.vocabulary.pad(rows);
        let Vocabulary {
            tokens,
            scores,
            kinds,
            strip_before,
            strip_after,
            match_normalized,
            ..
        } = &mut self.vocabulary;
        tokens.truncate(rows);
        scores.truncate(rows);
        kinds.truncate(rows);
        for list in [strip_before, strip_after, match_normalized] {
            list.retain(|&id| (id as usize) < rows);
            list.sort_unstable();
        }
        Ok(self.vocabulary)
    }
}

impl Vocabulary {
    /// Appends ids without text up to `len`, named and scored like by converters to GGUF.
    fn pad(&mut self, len: usize) {
        let scored = !self.scores.is_empty();
        for id in self.tokens.len()..len {
            self.tokens.push(format!("[PAD{id}]"));
            self.kinds.push(TokenKind::Unused);
            if scored {
                self.scores.push(PADDING_SCORE);
            }
        }
    }
}

fn check_model(model: &Model) -> Result<(), VocabularyError> {
    let refuse =
        |what, found: String, supported: &str| Err(unsupported_json(what, found, supported));
    match model.kind.as_deref() {
        Some("BPE") => {}
        // Early versions omit it.
        None if !model.merges.is_empty() => {}
        Some(other) => return refuse("model.type", other.to_owned(), "BPE"),
        None => return refuse("model.type", "missing".to_owned(), "BPE"),
    }
    if let Some(dropout) = model.dropout.filter(|&dropout| dropout != 0.0) {
        return refuse("model.dropout", dropout.to_string(), "0");
    }
    for (what, affix) in [
        (
            "model.continuing_subword_prefix",
            &model.continuing_subword_prefix,
        ),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(affix) = affix.as_ref().filter(|affix| !affix.is_empty()) {
            return refuse(what, affix.clone(), "none");
        }
    }
    Ok(())
}

/// Returns the merges as pairs of ids.
fn merges(merges: &[Merge], ids: &HashMap<&str, u32>) -> Result<Vec<(u32, u32)>, VocabularyError> {
    let refuse = |rank: usize, problem: String| {
        let problem =
            format!("merge {rank} {problem}; copy the tokenizer's files again from their source");
        Err(file(TOKENIZER_JSON, &problem))
    };
    let mut pairs = Vec::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let (left, right) = merge.pair();
        let part = |text: &str| format!("has the part {text:?}, which is not in the vocabulary");
        match (ids.get(left), ids.get(right)) {
            (None, _) => return refuse(rank, part(left)),
            (_, None) => return refuse(rank, part(right)),
            (Some(&left_id), Some(&right_id)) => {
                let result = [left, right].concat();
                if !ids.contains_key(&*result) {
                    let problem =
                        format!("produces a token that is not in the vocabulary ({result:?})");
                    return refuse(rank, problem);
                }
                pairs.push((left_id, right_id));
            }
        }
    }
    Ok(pairs)
}

/// Returns the tokens of `tokenizer_config.json` that transformers adds to those of
/// `tokenizer.json`, by ascending id.
fn missing_tokens<'a>(configured: &'a [AddedToken], added: &[AddedToken]) -> Vec<&'a AddedToken> {
    let known: HashSet<(u32, &str)> = added
        .iter()
        .map(|token| (token.id, token.content.as_str()))
        .collect();
    let missing = configured.iter();
    let mut missing: Vec<&AddedToken> = missing
        .filter(|token| !known.contains(&(token.id, token.content.as_str())))
        .collect();
    missing.sort_by_key(|token| token.id);
    missing
}

/// `tokenizers` gives an added token the id of the same text in the vocabulary, or the next one; it
/// only warns if the file states another. `missing` are of `tokenizer_config.json`.
fn check_added_ids(
    added: &[AddedToken],
    missing: &[&AddedToken],
    ids: &HashMap<&str, u32>,
) -> Result<(), VocabularyError> {
    let mut next = ids.len() as u32;
    let mut seen = HashSet::new();
    let added = added.iter().map(|token| (TOKENIZER_JSON, token));
    let missing = missing.iter().map(|token| (TOKENIZER_CONFIG, *token));
    let all = added.chain(missing);
    for (name, AddedToken { id, content, .. }) in all.filter(|(_, token)| !token.content.is_empty())
    {
        let expected = ids.get(content.as_str()).copied().unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        let problem = if !seen.insert(content.as_str()) {
            format!("the added token {content:?} is listed twice")
        } else if *id != expected {
            format!("the added token {content:?} has the id {id}, expected {expected}")
        } else {
            continue;
        };
        let problem = format!("{problem}; save the tokenizer again with transformers");
        return Err(file(name, &problem));
    }
    Ok(())
}

/// Checks that matching the longest added token first, as llama.cpp does, finds the same tokens as
/// matching the left-most first, as `tokenizers` does: a token that overlaps the end of another must
/// not be longer, unless both are runs of one character. Too long a token, or too much text, is
/// refused later.
fn check_overlaps<'a>(
    added: impl Iterator<Item = &'a AddedToken> + Clone,
) -> Result<(), VocabularyError> {
    let texts = || added.clone().map(|token| token.content.as_str());
    let bytes = || texts().map(str::len);
    // Every part of every text is hashed.
    let is_long = bytes().any(|bytes| bytes > MAX_SPECIAL_TOKEN_BYTES);
    if is_long || bytes().sum::<usize>() > MAX_SPECIAL_BYTES {
        return Ok(());
    }
    let is_run = |text: &str| {
        let first = text.chars().next();
        text.chars().all(|character| Some(character) == first)
    };
    // By the start of a token, the longest that is no run and the longest run.
    let mut longest: HashMap<&str, [&str; 2]> = HashMap::new();
    for text in texts() {
        let kind = usize::from(is_run(text));
        for (at, _) in text.char_indices().skip(1) {
            let known = &mut longest.entry(&text[..at]).or_default()[kind];
            if known.len() < text.len() {
                *known = text;
            }
        }
    }
    for first in texts() {
        let kinds = if is_run(first) { 1 } else { 2 };
        for (at, _) in first.char_indices().skip(1) {
            let seconds = longest.get(&first[at..]).into_iter().flatten().take(kinds);
            if let Some(second) = seconds.into_iter().find(|text| text.len() > first.len()) {
                let found = format!("{first:?} and {second:?}, which can overlap");
                let supported = "tokens that do not overlap";
                return Err(unsupported_json("added_tokens", found, supported));
            }
        }
    }
    Ok(())
}

/// Checks that a byte-level model uses neither `unk_token` nor `byte_fallback`, which it does for
/// bytes that have no token.
fn check_no_unknown_bytes(model: &Model, ids: &HashMap<&str, u32>) -> Result<(), VocabularyError> {
    let mut text = [0; 4];
    let missing =
        rules::missing_byte(|character| ids.contains_key(&*character.encode_utf8(&mut text)));
    let Some(missing) = missing else {
        return Ok(());
    };
    let with = |found: &str| format!("{found} for a vocabulary without the byte {missing:?}");
    if model.byte_fallback {
        return Err(unsupported_json(
            "model.byte_fallback",
            with("true"),
            "false",
        ));
    }
    match &model.unk_token {
        None => Ok(()),
        Some(token) => Err(unsupported_json("model.unk_token", with(token), "none")),
    }
}

/// Some models' files do not mark them; converters to GGUF recognise them by text.
pub(super) fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

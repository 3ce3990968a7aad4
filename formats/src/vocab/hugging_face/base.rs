//! Tokens of a tokenizer file, added tokens, and the treatment of spaces.

use std::collections::{HashMap, HashSet};

use super::json::{AddedToken, Component, ComponentStep, Model, Pattern, TokenizerJson};
use super::{TOKENIZER_JSON, file, pre_tokenizer, unsupported_json};
use crate::vocab::{
    BYTE_LEVEL, SENTENCE_PIECE, TokenKind, Vocabulary, VocabularyError, byte_value,
};

/// Score of added tokens, as assigned by converters to GGUF.
const ADDED_SCORE: f32 = -1000.0;
/// Score of unused ids, as assigned by converters to GGUF.
const PADDING_SCORE: f32 = -10000.0;

/// Tokens and their rules, before special tokens are assigned.
pub(super) struct VocabularyBuilder {
    pub(super) vocabulary: Vocabulary,
    /// Added tokens follow.
    pub(super) model_tokens: usize,
    /// Twice the tokens listed in the files, so that a single id cannot cause a large allocation.
    pub(super) max_ids: usize,
    /// As sets, because files may list a million tokens with duplicates.
    strips: [HashSet<u32>; 2],
}

impl VocabularyBuilder {
    pub(super) fn from_pieces(vocabulary: Vocabulary, added: usize) -> Self {
        let own = vocabulary.tokens.len();
        VocabularyBuilder {
            max_ids: 2 * (own + added),
            model_tokens: own,
            vocabulary,
            strips: [HashSet::new(), HashSet::new()],
        }
    }

    pub(super) fn from_json(tokenizer: TokenizerJson) -> Result<Self, VocabularyError> {
        let TokenizerJson {
            added_tokens,
            normalizer,
            pre_tokenizer,
            model,
            ..
        } = tokenizer;
        check_model(&model)?;
        let byte_level = pre_tokenizer
            .as_ref()
            .filter(|component| pre_tokenizer::is_byte_level(component));
        let mut vocabulary = match byte_level {
            Some(component) => {
                check_no_normalizer(normalizer.as_ref())?;
                let pre = pre_tokenizer::byte_level(component, model.ignore_merges)?;
                Vocabulary {
                    model: BYTE_LEVEL.to_owned(),
                    pre: Some(pre),
                    ..Vocabulary::default()
                }
            }
            None => space_treatment(normalizer.as_ref(), pre_tokenizer.as_ref(), &model)?,
        };
        let pre = vocabulary.pre;

        let entries = model.vocab.0;
        let ids: HashMap<&str, u32> = entries.iter().map(|(text, id)| (&**text, *id)).collect();
        let mut merges = Vec::with_capacity(model.merges.len());
        for (rank, merge) in model.merges.iter().enumerate() {
            let (left, right) = merge.pair();
            match (ids.get(left), ids.get(right)) {
                (Some(&left), Some(&right)) => merges.push((left, right)),
                _ => {
                    return Err(VocabularyError::Merge {
                        merge: rank,
                        found: format!("{left} {right}"),
                    });
                }
            }
        }
        vocabulary.merges = merges;
        drop(ids);
        let mut base = VocabularyBuilder {
            max_ids: 2 * (entries.len() + added_tokens.len()),
            model_tokens: 0,
            vocabulary,
            strips: [HashSet::new(), HashSet::new()],
        };
        for (text, id) in entries {
            let kind = match pre {
                None if model.unk_token.as_ref() == Some(&text) => TokenKind::Unknown,
                None if byte_value(&text).is_some() => TokenKind::Byte,
                _ => TokenKind::Normal,
            };
            if kind == TokenKind::Unknown {
                base.vocabulary.unknown = Some(id);
            }
            base.set_token(id, text, kind)?;
        }
        base.model_tokens = base.vocabulary.tokens.len();
        for token in &added_tokens {
            base.add(token)?;
        }
        Ok(base)
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

    /// Returns true if the token exists with this text and is matched before the text is split.
    pub(super) fn is_special(&self, token: &AddedToken) -> bool {
        let Vocabulary { tokens, kinds, .. } = &self.vocabulary;
        let at = token.id as usize;
        let (Some(text), Some(kind)) = (tokens.get(at), kinds.get(at)) else {
            return false;
        };
        let same = text.replace('\u{2581}', " ") == token.content.replace('\u{2581}', " ");
        same && !matches!(kind, TokenKind::Normal | TokenKind::Unused)
    }

    pub(super) fn add(&mut self, token: &AddedToken) -> Result<(), VocabularyError> {
        let AddedToken { id, content, .. } = token;
        if token.single_word {
            let found = format!("true for the added token {content:?}");
            return Err(unsupported_json("single_word", found, "false"));
        }
        let at = *id as usize;
        self.extend_to(*id, content)?;
        let Vocabulary {
            tokens,
            scores,
            kinds,
            ..
        } = &mut self.vocabulary;
        if token.special || looks_special(content) {
            kinds[at] = TokenKind::Control;
            tokens[at] = content.clone();
        } else {
            kinds[at] = TokenKind::UserDefined;
            tokens[at] = content.replace('\u{2581}', " ");
        }
        if let Some(score) = scores.get_mut(at) {
            *score = ADDED_SCORE;
        }
        self.record_strips(token);
        Ok(())
    }

    /// Notes which whitespace around a token belongs to it.
    pub(super) fn record_strips(&mut self, token: &AddedToken) {
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
            ..
        } = &mut self.vocabulary;
        tokens.truncate(rows);
        scores.truncate(rows);
        kinds.truncate(rows);
        for list in [strip_before, strip_after] {
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

/// Byte-level pre-tokenizers follow NFC only.
fn check_no_normalizer(normalizer: Option<&Component>) -> Result<(), VocabularyError> {
    let Some(component) = normalizer else {
        return Ok(());
    };
    let nothing = |kind: &str| kind == "NFC";
    let known = match &component.parts {
        Some(parts) if component.kind == "Sequence" => {
            parts.0.iter().all(|part| nothing(&part.kind))
        }
        _ => nothing(&component.kind),
    };
    if known {
        return Ok(());
    }
    let found = pre_tokenizer::describe_component(normalizer);
    Err(unsupported_json("normalizer", found, "none, NFC"))
}

fn space_treatment(
    normalizer: Option<&Component>,
    pre_tokenizer: Option<&Component>,
    model: &Model,
) -> Result<Vocabulary, VocabularyError> {
    if !model.byte_fallback {
        let found = pre_tokenizer::describe_component(pre_tokenizer);
        let supported = "ByteLevel, or a model with byte_fallback";
        return Err(unsupported_json("pre_tokenizer", found, supported));
    }
    if model.ignore_merges {
        let found = "true for a model with byte_fallback";
        return Err(unsupported_json("model.ignore_merges", found, "false"));
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        Prefix,
        Replace,
        Other,
    }
    fn rule<P>(part: &ComponentStep<P>) -> Rule {
        match (part.kind.as_str(), &part.pattern) {
            ("Prepend", None) if part.prepend.as_deref() == Some("\u{2581}") => Rule::Prefix,
            ("Replace", Some(Pattern::String(space)))
                if space == " " && part.content.as_deref() == Some("\u{2581}") =>
            {
                Rule::Replace
            }
            _ => Rule::Other,
        }
    }
    let rules = match normalizer {
        None => Vec::new(),
        Some(component) => match &component.parts {
            Some(parts) if component.kind == "Sequence" => parts.0.iter().map(rule).collect(),
            _ => vec![rule(component)],
        },
    };
    let splits_at_space = |component: &Component| {
        component.kind == "Split"
            && matches!(&component.pattern, Some(Pattern::String(space)) if space == " ")
    };
    let metaspace = |component: &&Component| {
        component.kind == "Metaspace"
            && component.replacement.as_deref() == Some("\u{2581}")
            && component.split == Some(false)
    };
    let (prefix, once) = match (rules.as_slice(), pre_tokenizer) {
        ([Rule::Prefix, Rule::Replace] | [Rule::Replace, Rule::Prefix], None) => (true, false),
        ([Rule::Replace], None) => (false, false),
        ([Rule::Replace], Some(component)) if splits_at_space(component) => (false, false),
        ([], Some(component)) if metaspace(&component) => {
            match component.prepend_scheme.as_deref() {
                Some("first") => (true, true),
                Some("never") => (false, false),
                _ => return Err(unsupported_spaces(normalizer, pre_tokenizer)),
            }
        }
        _ => return Err(unsupported_spaces(normalizer, pre_tokenizer)),
    };
    Ok(Vocabulary {
        model: SENTENCE_PIECE.to_owned(),
        add_space_prefix: prefix,
        space_prefix_once: once,
        ..Vocabulary::default()
    })
}

fn unsupported_spaces(
    normalizer: Option<&Component>,
    pre_tokenizer: Option<&Component>,
) -> VocabularyError {
    let normalizer = pre_tokenizer::describe_component(normalizer);
    let pre_tokenizer = pre_tokenizer::describe_component(pre_tokenizer);
    let found = format!("{normalizer} and {pre_tokenizer}");
    let supported = "Prepend and Replace of a space by U+2581, or Metaspace without split that prepends first or never";
    unsupported_json("normalizer and pre_tokenizer", found, supported)
}

/// Some models' files do not mark them; converters to GGUF recognise them by text.
fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

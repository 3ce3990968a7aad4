//! Writer of vocabularies as Hugging Face folders.
//!
//! transformers reads `tokenizer.json`. A vocabulary with scores also gets a `tokenizer.model`; the
//! merges of `tokenizer.json` are then all pairs of tokens that form a third one, ordered by its
//! score.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{HuggingFaceFiles, pre_tokenizer, scores, sentence_piece};
use crate::limits::MAX_MERGES;
use crate::vocab::{BYTE_LEVEL, SPACE, TokenKind, Vocabulary, VocabularyError};

impl HuggingFaceFiles {
    /// Returns the files of a vocabulary, for a model of `context` positions, without
    /// `config.json`.
    ///
    /// # Errors
    /// [`VocabularyError::ImpliedMerges`].
    pub fn from_vocabulary(
        vocabulary: &Vocabulary,
        context: usize,
    ) -> Result<HuggingFaceFiles, VocabularyError> {
        let scored = vocabulary.model != BYTE_LEVEL && vocabulary.merges.is_empty();
        let bytes = |value: &Value| Some(format!("{value:#}\n").into_bytes());
        let tokenizer = tokenizer(vocabulary)?;
        Ok(HuggingFaceFiles {
            tokenizer_model: scored.then(|| sentence_piece::write(vocabulary)),
            // Indenting would take several times the space.
            tokenizer_json: Some(format!("{tokenizer}\n").into_bytes()),
            tokenizer_config: bytes(&tokenizer_config(vocabulary, context)),
            generation_config: bytes(&generation_config(vocabulary)),
            ..HuggingFaceFiles::default()
        })
    }

    /// Returns names and contents of the files present.
    pub fn names_and_contents(&self) -> Vec<(&'static str, &[u8])> {
        let files = [
            &self.tokenizer_model,
            &self.tokenizer_json,
            &self.tokenizer_config,
            &self.special_tokens_map,
            &self.added_tokens,
            &self.config,
            &self.generation_config,
            &self.chat_template_jinja,
            &self.chat_template_json,
        ];
        let named = Self::NAMES.into_iter().zip(files);
        named
            .filter_map(|(name, bytes)| Some((name, bytes.as_deref()?)))
            .collect()
    }
}

/// Returns true for an unused id, as filled in by
/// [`VocabularyBuilder::finish`](super::base::VocabularyBuilder::finish).
fn is_padding(id: u32, token: &str, kind: TokenKind) -> bool {
    kind == TokenKind::Unused && token == format!("[PAD{id}]")
}

fn tokens(vocabulary: &Vocabulary) -> Vec<(u32, &str, TokenKind)> {
    let all = (0..).zip(&vocabulary.tokens).zip(&vocabulary.kinds);
    let mut seen = HashSet::new();
    all.map(|((id, token), &kind)| (id, token.as_str(), kind))
        .filter(|&(id, token, kind)| !is_padding(id, token, kind) && seen.insert(token))
        .collect()
}

fn added_tokens(vocabulary: &Vocabulary, all: &[(u32, &str, TokenKind)]) -> Vec<Value> {
    // As sets, because there may be a million of them.
    let [before, after, normalized] = [
        &vocabulary.strip_before,
        &vocabulary.strip_after,
        &vocabulary.match_normalized,
    ]
    .map(|ids| ids.iter().copied().collect::<HashSet<u32>>());
    let added = all.iter().filter(|(_, _, kind)| {
        matches!(
            kind,
            TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown
        )
    });
    let added = added.map(|(id, token, kind)| {
        json!({
            "id": id,
            "content": token,
            "single_word": false,
            "lstrip": before.contains(id),
            "rstrip": after.contains(id),
            "normalized": normalized.contains(id),
            "special": matches!(kind, TokenKind::Control | TokenKind::Unknown),
        })
    });
    added.collect()
}

fn tokenizer(vocabulary: &Vocabulary) -> Result<Value, VocabularyError> {
    let byte_level = vocabulary.model == BYTE_LEVEL;
    let all = tokens(vocabulary);
    let vocab: Map<String, Value> = all
        .iter()
        .map(|&(id, token, _)| (token.to_owned(), json!(id)))
        .collect();
    let (mut pre, mut ignoring) = (Value::Null, false);
    if let Some(known) = vocabulary.pre {
        (pre, ignoring) = pre_tokenizer::to_json(known);
    } else if let Some(scheme) = metaspace_scheme(vocabulary) {
        pre = json!({
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": scheme,
            "split": vocabulary.split_before_spaces,
        });
    }
    let unknown = vocabulary.unknown.filter(|_| !byte_level);
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary, &all),
        "normalizer": normalizer(vocabulary),
        "pre_tokenizer": pre,
        "post_processor": post_processor(vocabulary),
        "decoder": decoder(vocabulary),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown.map(|id| vocabulary.text(id)),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": !byte_level,
            "byte_fallback": !byte_level,
            "ignore_merges": ignoring,
            "vocab": vocab,
            "merges": merges(vocabulary)?,
        },
    }))
}

/// Returns the scheme of a `Metaspace` if there is one in place of a normaliser.
fn metaspace_scheme(vocabulary: &Vocabulary) -> Option<&'static str> {
    if vocabulary.space_prefix_once {
        Some("first")
    } else if vocabulary.space_prefix_if_absent {
        Some("always")
    } else if vocabulary.split_before_spaces {
        Some("never")
    } else {
        None
    }
}

fn normalizer(vocabulary: &Vocabulary) -> Value {
    let mut steps = Vec::new();
    if let Some(form) = vocabulary.normalization {
        steps.push(json!({"type": form.name()}));
    }
    if vocabulary.collapse_spaces {
        steps.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
        steps.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    }
    if vocabulary.model != BYTE_LEVEL && metaspace_scheme(vocabulary).is_none() {
        if vocabulary.add_space_prefix {
            steps.push(json!({"type": "Prepend", "prepend": SPACE}));
        }
        steps.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE}));
    }
    match steps.len() {
        0 => Value::Null,
        1 => steps.swap_remove(0),
        _ => json!({"type": "Sequence", "normalizers": steps}),
    }
}

fn decoder(vocabulary: &Vocabulary) -> Value {
    if vocabulary.model == BYTE_LEVEL {
        return json!({
            "type": "ByteLevel",
            "add_prefix_space": true,
            "trim_offsets": true,
            "use_regex": true,
        });
    }
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if vocabulary.add_space_prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

fn post_processor(vocabulary: &Vocabulary) -> Value {
    let bos = vocabulary.bos.filter(|_| vocabulary.add_bos);
    let eos = vocabulary.eos.filter(|_| vocabulary.add_eos);
    if bos.is_none() && eos.is_none() {
        return Value::Null;
    }
    let around = |sequence: &str, number: u32| {
        let special =
            |id: u32| json!({"SpecialToken": {"id": vocabulary.text(id), "type_id": number}});
        let mut pieces: Vec<Value> = bos.map(special).into_iter().collect();
        pieces.push(json!({"Sequence": {"id": sequence, "type_id": number}}));
        pieces.extend(eos.map(special));
        pieces
    };
    let special = bos.iter().chain(&eos).map(|&id| {
        let token = vocabulary.text(id);
        (
            token.to_owned(),
            json!({"id": token, "ids": [id], "tokens": [token]}),
        )
    });
    let special: Map<String, Value> = special.collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": special,
    })
}

fn merges(vocabulary: &Vocabulary) -> Result<Vec<[&str; 2]>, VocabularyError> {
    if vocabulary.scores.is_empty() {
        let merges = vocabulary.merges.iter().zip(vocabulary.merged_tokens());
        let merges = merges.map(|(&(left, right), result)| {
            let pair = [vocabulary.text(left), vocabulary.text(right)];
            (pair, result.map(|token| vocabulary.text(token)))
        });
        // For `tokenizers` the texts of both parts must be that of the result. Those of
        // user-defined tokens with spaces are not, and such merges have no effect.
        let merges =
            merges.filter(|(pair, result)| result.is_none_or(|text| text == pair.concat()));
        return Ok(merges.map(|(pair, _)| pair).collect());
    }
    let all = tokens(vocabulary).into_iter();
    let normal = all.filter(|(_, _, kind)| *kind == TokenKind::Normal);
    let scored = normal.map(|(id, token, _)| {
        let score = vocabulary.scores.get(id as usize).copied();
        (id, token, score.unwrap_or(0.0))
    });
    let merges = scores::merges(&scored.collect::<Vec<_>>(), MAX_MERGES);
    let merges = merges.ok_or(VocabularyError::ImpliedMerges)?;
    let text = |id| vocabulary.text(id);
    let pairs = merges.into_iter().map(|merge| merge.pair);
    Ok(pairs
        .map(|(left, right)| [text(left), text(right)])
        .collect())
}

fn tokenizer_config(vocabulary: &Vocabulary, context: usize) -> Value {
    let name = |id: Option<u32>| id.map(|id| vocabulary.text(id));
    let mut config = json!({
        // As in `tokenizer.json`, for any model.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name(vocabulary.bos),
        "eos_token": name(vocabulary.eos),
        "unk_token": name(vocabulary.unknown),
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "clean_up_tokenization_spaces": false,
        "model_max_length": context,
    });
    if vocabulary.model != BYTE_LEVEL {
        config["add_prefix_space"] = json!(vocabulary.add_space_prefix);
    }
    if let Some(template) = &vocabulary.chat_template {
        config["chat_template"] = json!(template);
    }
    config
}

fn generation_config(vocabulary: &Vocabulary) -> Value {
    let ends: Vec<u32> = vocabulary
        .eos
        .into_iter()
        .chain(vocabulary.end_of_generation.iter().copied())
        .collect();
    let mut config = Map::new();
    if let Some(bos) = vocabulary.bos {
        config.insert("bos_token_id".to_owned(), json!(bos));
    }
    if !ends.is_empty() {
        config.insert("eos_token_id".to_owned(), json!(ends));
    }
    Value::Object(config)
}

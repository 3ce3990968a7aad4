//! Writer of vocabularies as Hugging Face folders.
//!
//! transformers reads `tokenizer.json`. A vocabulary with scores also gets a `tokenizer.model`; the
//! merges of `tokenizer.json` are then all pairs of tokens that form a third one, ordered by its
//! score.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{HuggingFaceFiles, pre_tokenizer, sentence_piece};
use crate::vocab::{BYTE_LEVEL, TokenKind, Vocabulary};

const SPACE: &str = "\u{2581}";

impl HuggingFaceFiles {
    /// Returns the files of a vocabulary, for a model of `context` positions, without
    /// `config.json`.
    pub fn from_vocabulary(vocabulary: &Vocabulary, context: usize) -> HuggingFaceFiles {
        let scored = vocabulary.model != BYTE_LEVEL && vocabulary.merges.is_empty();
        let bytes = |value: &Value| Some(format!("{value:#}\n").into_bytes());
        HuggingFaceFiles {
            tokenizer_model: scored.then(|| sentence_piece::write(vocabulary)),
            // Indenting would take several times the space.
            tokenizer_json: Some(format!("{}\n", tokenizer(vocabulary)).into_bytes()),
            tokenizer_config: bytes(&tokenizer_config(vocabulary, context, scored)),
            generation_config: bytes(&generation_config(vocabulary)),
            ..HuggingFaceFiles::default()
        }
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

fn added_token(vocabulary: &Vocabulary, id: u32, token: &str, kind: TokenKind) -> Value {
    json!({
        "id": id,
        "content": token,
        "single_word": false,
        "lstrip": vocabulary.strip_before.contains(&id),
        "rstrip": vocabulary.strip_after.contains(&id),
        "normalized": false,
        "special": matches!(kind, TokenKind::Control | TokenKind::Unknown),
    })
}

fn tokenizer(vocabulary: &Vocabulary) -> Value {
    let byte_level = vocabulary.model == BYTE_LEVEL;
    let all = tokens(vocabulary);
    let beside = all
        .iter()
        .filter(|(_, _, kind)| matches!(kind, TokenKind::Control | TokenKind::UserDefined));
    let beside = beside.map(|&(id, token, kind)| added_token(vocabulary, id, token, kind));
    let vocab: Map<String, Value> = all
        .iter()
        .map(|&(id, token, _)| (token.to_owned(), json!(id)))
        .collect();
    let (mut pre, mut ignoring) = (Value::Null, false);
    if let Some(known) = vocabulary.pre {
        (pre, ignoring) = pre_tokenizer::to_json(known);
    } else if vocabulary.space_prefix_once {
        pre = json!({
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first",
            "split": false,
        });
    }
    let unknown = vocabulary.unknown.filter(|_| !byte_level);
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": beside.collect::<Vec<_>>(),
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
            "merges": merges(vocabulary),
        },
    })
}

fn normalizer(vocabulary: &Vocabulary) -> Value {
    if vocabulary.model == BYTE_LEVEL || vocabulary.space_prefix_once {
        return Value::Null;
    }
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let mut steps = Vec::new();
    if vocabulary.collapse_spaces {
        steps.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
        steps.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    }
    if vocabulary.add_space_prefix {
        steps.push(json!({"type": "Prepend", "prepend": SPACE}));
    }
    if steps.is_empty() {
        replace
    } else {
        steps.push(replace);
        json!({"type": "Sequence", "normalizers": steps})
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

fn merges(vocabulary: &Vocabulary) -> Vec<[&str; 2]> {
    let byte_level = vocabulary.model == BYTE_LEVEL;
    if vocabulary.scores.is_empty() {
        let merges = vocabulary.merges.iter().zip(vocabulary.merged_tokens());
        // Without effect, and for `tokenizers` the texts of both parts must be that of the result.
        let merges = merges.filter(|(_, result)| {
            !result.is_some_and(|token| !byte_level && vocabulary.is_user_defined(token))
        });
        return merges
            .map(|(&(left, right), _)| [vocabulary.text(left), vocabulary.text(right)])
            .collect();
    }
    let all = tokens(vocabulary);
    let all = all.iter().filter(|(_, _, kind)| *kind == TokenKind::Normal);
    let ids: HashMap<&str, u32> = all.clone().map(|&(id, token, _)| (token, id)).collect();
    let mut merges = Vec::new();
    for &(id, token, _) in all {
        let score = vocabulary.scores.get(id as usize).copied().unwrap_or(0.0);
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&a), Some(&b)) = (ids.get(left), ids.get(right)) {
                merges.push((score, id, a, b, [left, right]));
            }
        }
    }
    merges.sort_by(|one, other| {
        let order = other.0.total_cmp(&one.0);
        order.then_with(|| (one.1, one.2, one.3).cmp(&(other.1, other.2, other.3)))
    });
    merges.into_iter().map(|(.., pair)| pair).collect()
}

fn tokenizer_config(vocabulary: &Vocabulary, context: usize, scored: bool) -> Value {
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
    if scored {
        let stripping = tokens(vocabulary).into_iter().filter(|(id, ..)| {
            vocabulary.strip_before.contains(id) || vocabulary.strip_after.contains(id)
        });
        let stripping = stripping
            .map(|(id, token, kind)| (id.to_string(), added_token(vocabulary, id, token, kind)));
        let stripping: Map<String, Value> = stripping.collect();
        if !stripping.is_empty() {
            config["added_tokens_decoder"] = Value::Object(stripping);
        }
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

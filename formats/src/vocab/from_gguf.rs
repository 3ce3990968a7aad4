//! Reader of vocabularies from GGUF metadata.

use std::collections::HashMap;

use super::{BYTE_LEVEL, PreTokenizer, TokenKind, Vocabulary, VocabularyError, check_model};
use crate::gguf::{Contents, GgufError};

/// Besides EOS: end of turn or message, and end of the middle part of an infilling prompt.
pub(crate) const END_KEYS: [&str; 5] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

impl Vocabulary {
    /// Reads the vocabulary from GGUF metadata. Missing entries have the defaults of llama.cpp.
    ///
    /// SentencePiece: BOS 1, EOS 2 and unknown 0 if the vocabulary has such tokens; BOS and a space
    /// before a text, no EOS after it. Scores are required.
    ///
    /// Byte-level BPE: no special tokens; BOS before a text only if all models with the
    /// pre-tokenizer use it. The pre-tokenizer is required, because a guess would silently degrade
    /// the model; `default` is refused.
    pub fn from_gguf(gguf: &Contents) -> Result<Self, VocabularyError> {
        let model: &str = gguf
            .optional("tokenizer.ggml.model")?
            .ok_or(VocabularyError::Absent)?;
        // Other kinds need other entries.
        check_model(model)?;
        let byte_level = model == BYTE_LEVEL;
        let pre = if byte_level {
            Some(pre_tokenizer(gguf)?)
        } else {
            None
        };
        let tokens: &[String] = gguf.required("tokenizer.ggml.tokens")?;
        let (scores, merges) = if byte_level {
            (Vec::new(), merges(gguf, tokens)?)
        } else {
            let scores: &[f32] = gguf.required("tokenizer.ggml.scores")?;
            (scores.to_vec(), Vec::new())
        };
        let kinds = match gguf.optional::<&[i32]>("tokenizer.ggml.token_type")? {
            None => vec![TokenKind::Normal; tokens.len()],
            Some(kinds) => kinds
                .iter()
                .enumerate()
                .map(|(token, &found)| kind(found, token))
                .collect::<Result<_, _>>()?,
        };
        let special = |key, default: u32| -> Result<Option<u32>, GgufError> {
            let default = (!byte_level && (default as usize) < tokens.len()).then_some(default);
            Ok(gguf.optional(key)?.or(default))
        };
        let flag = |key, default| Ok::<_, GgufError>(gguf.optional(key)?.unwrap_or(default));
        let mut end_of_generation = Vec::new();
        for key in END_KEYS {
            end_of_generation.extend(gguf.optional::<u32>(key)?);
        }
        let template: Option<&str> = gguf.optional("tokenizer.chat_template")?;
        let mut vocabulary = Vocabulary {
            model: model.to_owned(),
            tokens: tokens.to_vec(),
            scores,
            kinds,
            bos: special("tokenizer.ggml.bos_token_id", 1)?,
            eos: special("tokenizer.ggml.eos_token_id", 2)?,
            unknown: special("tokenizer.ggml.unknown_token_id", 0)?,
            add_bos: flag(
                "tokenizer.ggml.add_bos_token",
                pre.is_none_or(PreTokenizer::adds_bos),
            )?,
            add_eos: flag("tokenizer.ggml.add_eos_token", false)?,
            // Meaningless in byte-level vocabularies.
            add_space_prefix: !byte_level && flag("tokenizer.ggml.add_space_prefix", true)?,
            merges,
            pre,
            end_of_generation,
            chat_template: template.map(str::to_owned),
            ..Vocabulary::default()
        };
        vocabulary.validate()?;
        if let Some(name) = gguf.optional::<&str>("general.name")? {
            vocabulary.strip_after = stripping_tokens(name, &vocabulary);
        }
        Ok(vocabulary)
    }
}

fn pre_tokenizer(gguf: &Contents) -> Result<PreTokenizer, VocabularyError> {
    let name: &str = gguf
        .optional("tokenizer.ggml.pre")?
        .ok_or(VocabularyError::PreTokenizerMissing)?;
    PreTokenizer::from_name(name).ok_or_else(|| VocabularyError::PreTokenizer {
        found: name.to_owned(),
    })
}

fn merges(gguf: &Contents, tokens: &[String]) -> Result<Vec<(u32, u32)>, VocabularyError> {
    let merges: &[String] = gguf.required("tokenizer.ggml.merges")?;
    let ids: HashMap<&str, u32> = tokens.iter().map(String::as_str).zip(0..).collect();
    let pair = |merge: &str| {
        // The first character may itself be a space.
        let space = 1 + merge.bytes().skip(1).position(|byte| byte == b' ')?;
        let (left, right) = (merge.get(..space)?, merge.get(space + 1..)?);
        Some((*ids.get(left)?, *ids.get(right)?))
    };
    merges
        .iter()
        .enumerate()
        .map(|(rank, merge)| {
            pair(merge).ok_or_else(|| VocabularyError::Merge {
                merge: rank,
                found: merge.clone(),
            })
        })
        .collect()
}

fn kind(found: i32, token: usize) -> Result<TokenKind, VocabularyError> {
    u8::try_from(found)
        .ok()
        .and_then(|kind| TokenKind::try_from(kind).ok())
        .ok_or(VocabularyError::Kind { token, found })
}

/// GGUF has no entry for the special tokens of Phi-3 that strip the following whitespace; llama.cpp
/// recognises the models by name.
fn stripping_tokens(name: &str, vocabulary: &Vocabulary) -> Vec<u32> {
    const NOT_STRIPPING: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
    let name = name.to_lowercase();
    let phi_3 = name.contains("phi-3") || name.contains("phi3");
    if !phi_3
        || !vocabulary
            .tokens
            .iter()
            .any(|text| text == NOT_STRIPPING[2])
    {
        return Vec::new();
    }
    let tokens = (0..).zip(&vocabulary.tokens).zip(&vocabulary.kinds);
    tokens
        .filter(|((_, text), kind)| {
            let special = matches!(
                kind,
                TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown
            );
            text.as_str() == "</s>" || special && !NOT_STRIPPING.contains(&text.as_str())
        })
        .map(|((id, _), _)| id)
        .collect()
}

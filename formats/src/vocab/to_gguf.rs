//! Writer of vocabularies as GGUF metadata.

use std::collections::{HashMap, HashSet};

use super::from_gguf::END_KEYS;
use super::splits::all_splits;
use super::{BYTE_LEVEL, PreTokenizer, SPACE, TokenKind, UnicodeForm, Vocabulary};
use crate::gguf::{Array, Value};

impl Vocabulary {
    /// Returns the metadata entries of the vocabulary, named as by llama.cpp's converter. As there,
    /// user-defined tokens of SentencePiece have spaces for U+2581.
    pub fn to_gguf(&self) -> Vec<(String, Value)> {
        let byte_level = self.model == BYTE_LEVEL;
        let text = |text: &str| Value::String(text.to_owned());
        let kinds = self.kinds.iter().map(|&kind| i32::from(u8::from(kind)));
        let mut entries = vec![
            ("tokenizer.ggml.model", text(&self.model)),
            (
                "tokenizer.ggml.pre",
                text(self.pre.map_or("default", PreTokenizer::name)),
            ),
            (
                "tokenizer.ggml.tokens",
                Value::Array(Array::String(self.tokens_in_gguf())),
            ),
            (
                "tokenizer.ggml.token_type",
                Value::Array(Array::I32(kinds.collect())),
            ),
        ];
        if byte_level {
            let merges = self.merges.iter();
            let merges =
                merges.map(|&(left, right)| format!("{} {}", self.text(left), self.text(right)));
            entries.push((
                "tokenizer.ggml.merges",
                Value::Array(Array::String(merges.collect())),
            ));
        } else {
            let scores = if self.merges.is_empty() {
                self.scores.clone()
            } else {
                self.scores_from_merges()
            };
            entries.push(("tokenizer.ggml.scores", Value::Array(Array::F32(scores))));
            let prefix = Value::Bool(self.add_space_prefix);
            entries.push(("tokenizer.ggml.add_space_prefix", prefix));
        }
        for (key, id) in [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.unknown_token_id", self.unknown),
        ] {
            entries.extend(id.map(|id| (key, Value::U32(id))));
        }
        entries.push(("tokenizer.ggml.add_bos_token", Value::Bool(self.add_bos)));
        entries.push(("tokenizer.ggml.add_eos_token", Value::Bool(self.add_eos)));
        let ends = END_KEYS.into_iter().zip(&self.end_of_generation);
        entries.extend(ends.map(|(key, id)| (key, Value::U32(*id))));
        if let Some(template) = &self.chat_template {
            entries.push(("tokenizer.chat_template", text(template)));
        }
        let entries = entries.into_iter();
        entries
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    /// Returns the texts of the tokens in a GGUF.
    pub fn tokens_in_gguf(&self) -> Vec<String> {
        let byte_level = self.model == BYTE_LEVEL;
        let tokens = self.tokens.iter().zip(&self.kinds);
        let text = |(text, kind): (&String, &TokenKind)| match kind {
            TokenKind::UserDefined if !byte_level => text.replace(SPACE, " "),
            _ => text.clone(),
        };
        tokens.map(text).collect()
    }

    /// Returns the properties that GGUF cannot express, as nouns.
    pub fn properties_lost_in_gguf(&self) -> Vec<String> {
        let byte_level = self.model == BYTE_LEVEL;
        let default = |id: Option<u32>| id.is_none() && !byte_level && self.tokens.len() > 2;
        let form = self.normalization.map_or("none", UnicodeForm::name);
        let form = format!("Unicode normalisation ({form})");
        [
            (self.collapse_spaces, "collapsing runs of spaces to one"),
            (
                self.space_prefix_once,
                "space prefix only at the start of a text that has no space (Metaspace, prepend_scheme first)",
            ),
            (
                self.space_prefix_if_absent,
                "no space prefix before a text that begins with a space (prepend_scheme always)",
            ),
            (
                self.split_before_spaces,
                "splitting before spaces (Metaspace, split)",
            ),
            (self.normalization.is_some(), form.as_str()),
            (
                !self.match_normalized.is_empty(),
                "added tokens with normalized: true",
            ),
            (
                self.has_literal_spaces(),
                "user-defined tokens that contain U+2581",
            ),
            (
                !self.strip_before.is_empty() || !self.strip_after.is_empty(),
                "lstrip and rstrip of added tokens",
            ),
            (
                self.end_of_generation.len() > END_KEYS.len(),
                "all tokens that end a generated text",
            ),
            (
                default(self.bos) || default(self.eos) || default(self.unknown),
                "absence of BOS, EOS or the unknown token",
            ),
            (
                !byte_level && !self.merges.is_empty() && !self.merges_are_scores(),
                "merges that no scores of tokens stand for",
            ),
        ]
        .into_iter()
        .filter(|(lost, _)| *lost)
        .map(|(_, what)| what.to_owned())
        .collect()
    }

    /// `None` if there is no token with its text.
    pub(super) fn merged_tokens(&self) -> Vec<Option<u32>> {
        let ids: HashMap<&str, u32> = self.tokens.iter().map(String::as_str).zip(0..).collect();
        let merges = self.merges.iter();
        merges
            .map(|&(left, right)| self.merge_result(&ids, left, right))
            .collect()
    }

    /// Returns scores equivalent to the merges if [`merges_are_scores`](Self::merges_are_scores):
    /// the earlier a merge forms a token, the higher its score.
    fn scores_from_merges(&self) -> Vec<f32> {
        let mut scores = vec![-(self.merges.len() as f32); self.tokens.len()];
        for (rank, token) in self.merged_tokens().into_iter().enumerate().rev() {
            if let Some(score) = token.and_then(|token| scores.get_mut(token as usize)) {
                *score = -(rank as f32);
            }
        }
        scores
    }

    /// Returns true if the merges are equivalent to scores: every pair of tokens that forms a
    /// merged token is a merge, and merges of the same token are adjacent.
    fn merges_are_scores(&self) -> bool {
        let Some(mut made) = self
            .merged_tokens()
            .into_iter()
            .collect::<Option<Vec<u32>>>()
        else {
            return false;
        };
        // Matched before a text is split or merged.
        let is_user_defined =
            |token| self.kinds.get(token as usize) == Some(&TokenKind::UserDefined);
        made.retain(|&token| !is_user_defined(token));
        let mut runs = made.clone();
        runs.dedup();
        let distinct: HashSet<u32> = made.iter().copied().collect();
        if runs.len() != distinct.len() {
            return false;
        }
        let texts: Vec<&str> = self.tokens.iter().map(String::as_str).collect();
        let merges: HashSet<(u32, u32)> = self.merges.iter().copied().collect();
        all_splits(&texts, |token, left, right| {
            let pair = (left as u32, right as u32);
            !distinct.contains(&(token as u32)) || merges.contains(&pair)
        })
    }
}

#[cfg(test)]
mod tests;

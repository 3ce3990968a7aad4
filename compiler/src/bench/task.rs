//! Tasks of a benchmark.

use std::fmt;

use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;

/// Kind of prompt; the texts ship with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptKind {
    /// A function to write.
    Coding,
    /// A problem to solve step by step.
    Reasoning,
    /// An explanation.
    Factual,
    /// A story to begin.
    Creative,
}

htc_formats::names!(PromptKind {
    Coding "coding",
    Reasoning "reasoning",
    Factual "factual",
    Creative "creative",
});

impl PromptKind {
    /// Returns the text of the prompt.
    pub const fn text(self) -> &'static str {
        match self {
            PromptKind::Coding => include_str!("prompts/coding.txt"),
            PromptKind::Reasoning => include_str!("prompts/reasoning.txt"),
            PromptKind::Factual => include_str!("prompts/factual.txt"),
            PromptKind::Creative => include_str!("prompts/creative.txt"),
        }
    }
}

/// Task of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    kind: TaskKind,
    tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskKind {
    Prompt(PromptKind),
    Context(usize),
}

impl Task {
    /// Reads a prompt and writes `tokens` tokens.
    pub const fn prompt(kind: PromptKind, tokens: usize) -> Task {
        let kind = TaskKind::Prompt(kind);
        Task { kind, tokens }
    }

    /// Reads `length` tokens of text and writes `tokens` after them.
    pub const fn context(length: usize, tokens: usize) -> Task {
        let kind = TaskKind::Context(length);
        Task { kind, tokens }
    }

    /// Returns the kind of prompt; `None` for a context of a given length.
    pub const fn kind(self) -> Option<PromptKind> {
        match self.kind {
            TaskKind::Prompt(kind) => Some(kind),
            TaskKind::Context(_) => None,
        }
    }

    /// Returns the number of tokens to write.
    pub const fn tokens(self) -> usize {
        self.tokens
    }

    /// Returns the prompt tokens. A context repeats the concatenated prompts.
    pub fn prompt_tokens(self, tokenizer: &Tokenizer) -> Vec<u32> {
        match self.kind {
            TaskKind::Prompt(kind) => {
                tokenizer.encode(kind.text().trim_end(), AddSpecialTokens::Prompt)
            }
            TaskKind::Context(length) => {
                let all = PromptKind::ALL.map(PromptKind::text).concat();
                let with_bos = tokenizer.encode(&all, AddSpecialTokens::Prompt);
                let text = tokenizer.encode(&all, AddSpecialTokens::TextOnly);
                with_bos
                    .into_iter()
                    .chain(text.into_iter().cycle())
                    .take(length)
                    .collect()
            }
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TaskKind::Prompt(kind) => write!(f, "the prompt `{}`", kind.name()),
            TaskKind::Context(length) => write!(f, "a context of {length} tokens"),
        }
    }
}

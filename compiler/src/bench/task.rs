//! Tasks of a benchmark.

use std::fmt;

use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use serde::Serialize;

/// Kind of prompt; the texts ship with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A function to write.
    Coding,
    /// A problem to solve step by step.
    Reasoning,
    /// An explanation.
    Factual,
    /// A story to begin.
    Creative,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Coding, Kind::Reasoning, Kind::Factual, Kind::Creative];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Coding => "coding",
            Kind::Reasoning => "reasoning",
            Kind::Factual => "factual",
            Kind::Creative => "creative",
        }
    }

    /// Returns the text of the prompt.
    pub const fn text(self) -> &'static str {
        match self {
            Kind::Coding => include_str!("prompts/coding.txt"),
            Kind::Reasoning => include_str!("prompts/reasoning.txt"),
            Kind::Factual => include_str!("prompts/factual.txt"),
            Kind::Creative => include_str!("prompts/creative.txt"),
        }
    }
}

/// Task of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    what: What,
    tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Prompt(Kind),
    Context(usize),
}

impl Task {
    /// Reads a prompt and writes `tokens` tokens.
    pub const fn prompt(kind: Kind, tokens: usize) -> Task {
        let what = What::Prompt(kind);
        Task { what, tokens }
    }

    /// Reads `length` tokens of text and writes `tokens` after them.
    pub const fn context(length: usize, tokens: usize) -> Task {
        let what = What::Context(length);
        Task { what, tokens }
    }

    /// Returns the kind of prompt; `None` for a context of a given length.
    pub const fn kind(self) -> Option<Kind> {
        match self.what {
            What::Prompt(kind) => Some(kind),
            What::Context(_) => None,
        }
    }

    /// Returns the number of tokens to write.
    pub const fn tokens(self) -> usize {
        self.tokens
    }

    /// Returns the prompt tokens, with BOS if used. A context repeats the concatenated prompts.
    pub fn read(self, tokenizer: &Tokenizer) -> Vec<u32> {
        match self.what {
            What::Prompt(kind) => tokenizer.encode(kind.text().trim_end(), AddSpecial::Prompt),
            What::Context(length) => {
                let all = Kind::ALL.map(Kind::text).concat();
                let with_bos = tokenizer.encode(&all, AddSpecial::Prompt);
                let text = tokenizer.encode(&all, AddSpecial::Nothing);
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
        match self.what {
            What::Prompt(kind) => write!(f, "the prompt `{}`", kind.name()),
            What::Context(length) => write!(f, "a context of {length} tokens"),
        }
    }
}

//! What is measured.

use std::fmt;

use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use serde::Serialize;

/// A kind of prompt: a text of our own that ships with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A function to write.
    Coding,
    /// A problem to solve step by step.
    Reasoning,
    /// Something to explain.
    Factual,
    /// A story to begin.
    Creative,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Coding, Kind::Reasoning, Kind::Factual, Kind::Creative];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Coding => "coding",
            Kind::Reasoning => "reasoning",
            Kind::Factual => "factual",
            Kind::Creative => "creative",
        }
    }

    /// The prompt.
    pub const fn text(self) -> &'static str {
        match self {
            Kind::Coding => include_str!("prompts/coding.txt"),
            Kind::Reasoning => include_str!("prompts/reasoning.txt"),
            Kind::Factual => include_str!("prompts/factual.txt"),
            Kind::Creative => include_str!("prompts/creative.txt"),
        }
    }
}

/// One thing that is measured of both.
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
    /// Read a prompt and write so many tokens.
    pub const fn prompt(kind: Kind, tokens: usize) -> Task {
        let what = What::Prompt(kind);
        Task { what, tokens }
    }

    /// Read so many tokens of text and write so many behind them.
    pub const fn context(length: usize, tokens: usize) -> Task {
        let what = What::Context(length);
        Task { what, tokens }
    }

    /// The kind of its prompt; `None` for a context of a given length.
    pub const fn kind(self) -> Option<Kind> {
        match self.what {
            What::Prompt(kind) => Some(kind),
            What::Context(_) => None,
        }
    }

    /// Tokens to write.
    pub const fn tokens(self) -> usize {
        self.tokens
    }

    /// What is read, BOS included where the model asks for one. A context is filled with the prompts, one behind
    /// the other and from the beginning again.
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

//! Arguments of `htc schema`.

use clap::{Args, ValueEnum};

/// Arguments of `htc schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Document to describe
    #[arg(value_enum)]
    pub document: Document,
}

/// JSON document that a command writes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Document {
    /// `htc analyse --json`
    Analysis,
    /// `htc bench --json`
    Benchmark,
    /// `htc eval --json`
    Evaluation,
    /// Each line of `htc run --events`
    Event,
    /// `htc export --json`
    Export,
    /// `htc compile --dry-run --report`
    Forecast,
    /// `htc inspect --json`
    Inspection,
    /// `htc compile --report`
    Report,
    /// `htc run --json`
    Run,
    /// `htc tokenize --json`
    Tokens,
    /// `htc verify --json`
    Verification,
}

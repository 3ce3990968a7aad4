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
    /// `htc clean --json`
    Cleaning,
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

impl Document {
    /// Returns the name and version of the schema.
    pub const fn schema_name(self) -> &'static str {
        match self {
            Document::Analysis => "htc-analysis-3",
            Document::Benchmark => crate::bench::record::SCHEMA,
            Document::Cleaning => "htc-cleaning-1",
            Document::Evaluation => "htc-evaluation-1",
            Document::Event => "htc-event-1",
            Document::Export => "htc-export-1",
            Document::Forecast => "htc-forecast-1",
            Document::Inspection => "htc-inspection-1",
            Document::Report => "htc-report-1",
            Document::Run => "htc-run-1",
            Document::Tokens => "htc-tokens-1",
            Document::Verification => "htc-verification-1",
        }
    }
}

//! The options of `htc analyse`.

use std::path::PathBuf;

use clap::Args;

use super::{ThreadArgs, heading};
use crate::options::CalibrationOptions;

/// Arguments of `htc analyse`.
#[derive(Debug, Args)]
pub struct AnalyseArgs {
    /// Model to look at: a .gguf (of several files the first), or a folder with config.json and
    /// .safetensors
    #[arg(value_name = "MODEL")]
    pub input: PathBuf,
    /// File to write the result to (JSON)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub calibration: CalibrationOptions,
    /// Print the result as JSON on standard output
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub threads: ThreadArgs,
    /// Replace FILE if it exists
    #[arg(long, requires = "output", help_heading = heading::CHECKS)]
    pub force: bool,
}

//! Arguments of `htc report`.

use std::path::PathBuf;

use clap::Args;

use super::output_path;

/// Arguments of `htc report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// What to show, in any mix: reports of `htc compile --report`, what `htc analyse --json` and
    /// `htc eval --json` wrote, .htz artifacts; each is recognised by what is in it
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Page to write (.html)
    #[arg(short, long, value_name = "FILE", value_parser = output_path())]
    pub output: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    pub force: bool,
}

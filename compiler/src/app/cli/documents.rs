//! Arguments of commands that write the documents of the command line itself.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::output_path;

/// Arguments of `htc completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell that reads them
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Arguments of `htc man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Existing folder to write the pages to (htc.1, htc-compile.1 and so on)
    #[arg(short, long, value_name = "DIR", value_parser = output_path())]
    pub output: PathBuf,
    /// Replace pages that exist
    #[arg(long)]
    pub force: bool,
}

//! Arguments of `htc clean`.

use std::path::PathBuf;

use clap::Args;

use crate::make::work::MAX_IDLE_AGE;

/// Arguments of `htc clean`.
#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Folders in which artifacts are or were to be [default: the current one]
    #[arg(value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Folder of the statistics [default: htc in the user's cache folder]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Only what was last written to this number of days ago; 0 for everything that no htc uses now
    #[arg(long, value_name = "DAYS", default_value_t = MAX_IDLE_AGE.as_secs() / (24 * 60 * 60), allow_negative_numbers = true)]
    pub older_than: u64,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

//! Options of the statistics cache.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::heading;
use crate::make::work::MAX_IDLE_AGE;
use crate::request::DEFAULT_LOCK_TIMEOUT;

/// How a cache is shared.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = heading::OUTPUT)]
pub struct SharingArgs {
    /// Take statistics from the cache that another user wrote, who may have written anything
    #[arg(long, hide_short_help = true)]
    pub trust_cache: bool,
    /// Wait at most so long for another htc that makes the same statistics [default: 3600]
    #[arg(
        long,
        value_name = "SECONDS",
        hide_short_help = true,
        allow_negative_numbers = true
    )]
    pub lock_timeout: Option<u64>,
}

impl SharingArgs {
    /// Returns the lock timeout.
    pub fn lock_timeout(&self) -> Duration {
        self.lock_timeout
            .map_or(DEFAULT_LOCK_TIMEOUT, Duration::from_secs)
    }
}

/// Arguments of `htc clean`.
#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Folders in which artifacts are or were to be [default: the current one]
    #[arg(value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Folder of the statistics [default: htc in the user's cache folder]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Only what was last written to so many days ago; 0 for everything that no htc uses now
    #[arg(long, value_name = "DAYS", default_value_t = MAX_IDLE_AGE.as_secs() / (24 * 60 * 60), allow_negative_numbers = true)]
    pub older_than: u64,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

//! `htc clean`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use htc_formats::folder::user_cache;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Failure, print_json};
use crate::app::cli::{CleanArgs, Document};
use crate::app::terminal::display_path;
use crate::pipeline::clean::{CleanRequest, Leftover, clean};
use crate::system::error::FileError;
use crate::system::show::format_bytes;

const DAY: u64 = 24 * 60 * 60;

/// What was removed, or would be.
#[derive(JsonSchema, Serialize)]
pub(super) struct Record {
    /// True if nothing was removed.
    dry_run: bool,
    /// Folders that were removed, or would be.
    removed: Vec<RemovedFolder>,
    /// Their bytes together.
    bytes: u64,
}

/// Folder of unfinished work or of statistics.
#[derive(JsonSchema, Serialize)]
struct RemovedFolder {
    /// Path; what is not UTF-8 is replaced.
    path: String,
    /// Bytes of its files.
    bytes: u64,
    /// Whole days since it was written to.
    days: u64,
}

pub(super) fn execute(args: &CleanArgs) -> Result<(), Failure> {
    let folders = if args.folders.is_empty() {
        vec![PathBuf::from(".")]
    } else {
        args.folders.clone()
    };
    let request = CleanRequest {
        folders,
        cache: args.cache.clone().or_else(user_cache),
        age: Duration::from_secs(args.older_than.saturating_mul(DAY)),
        dry_run: args.dry_run,
    };
    let mut refused: Option<(PathBuf, io::ErrorKind)> = None;
    let mut removed = Vec::new();
    clean(&request, |left| match &left.removed {
        Ok(()) => removed.push(RemovedFolder {
            path: left.path.to_string_lossy().into_owned(),
            bytes: left.bytes,
            days: days(left),
        }),
        Err(error) => {
            say!(
                "htc: warning: {}: not removed: {error}",
                display_path(&left.path)
            );
            refused.get_or_insert((left.path.clone(), error.kind()));
        }
    })?;
    let record = Record {
        dry_run: args.dry_run,
        bytes: removed.iter().map(|folder| folder.bytes).sum(),
        removed,
    };
    if args.json {
        print_json(Document::Cleaning, &record)?;
    } else {
        print(args, &record)?;
    }
    match refused {
        None => Ok(()),
        Some((path, kind)) => Err(FileError::write(&path)(kind.into()).into()),
    }
}

fn print(args: &CleanArgs, record: &Record) -> Result<(), Failure> {
    let verb = if record.dry_run {
        "would remove"
    } else {
        "removed"
    };
    for folder in &record.removed {
        answer!(
            "{verb} {} ({}, {} days old)",
            display_path(Path::new(&folder.path)),
            format_bytes(folder.bytes),
            folder.days
        )?;
    }
    match record.removed.len() {
        0 => answer!(
            "nothing is {} days old or older; --older-than 0 is for everything that no htc uses now",
            args.older_than
        ),
        count => answer!("{verb} {count} of them, {}", format_bytes(record.bytes)),
    }
}

fn days(left: &Leftover) -> u64 {
    let passed = left
        .modified
        .and_then(|at| SystemTime::now().duration_since(at).ok());
    passed.map_or(0, |passed| passed.as_secs() / DAY)
}

//! `htc clean`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::Failure;
use crate::app::cli::CleanArgs;
use crate::app::terminal::display_path;
use crate::pipeline::clean::{CleanRequest, Leftover, clean};
use crate::system::error::FileError;
use crate::system::show::format_bytes;
use htc_formats::folder::user_cache;

const DAY: u64 = 24 * 60 * 60;

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
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    let (mut count, mut bytes, mut refused, mut unwritten) = (0_usize, 0, None, None);
    clean(&request, |left| match &left.removed {
        Ok(()) => {
            count += 1;
            bytes += left.bytes;
            let line = answer!(
                "{verb} {} ({}, {} days old)",
                display_path(&left.path),
                format_bytes(left.bytes),
                days(left)
            );
            unwritten = unwritten.take().or(line.err());
        }
        Err(error) => {
            say!(
                "htc: warning: {}: not removed: {error}",
                display_path(&left.path)
            );
            refused.get_or_insert((left.path.clone(), error.kind()));
        }
    })?;
    match count {
        0 => answer!(
            "nothing is {} days old or older; --older-than 0 is for everything that no htc uses now",
            args.older_than
        ),
        _ => answer!("{verb} {count} of them, {}", format_bytes(bytes)),
    }?;
    match refused {
        None => unwritten.map_or(Ok(()), Err),
        Some((path, kind)) => Err(FileError::write(&path)(kind.into()).into()),
    }
}

fn days(left: &Leftover) -> u64 {
    let passed = left
        .modified
        .and_then(|at| SystemTime::now().duration_since(at).ok());
    passed.map_or(0, |passed| passed.as_secs() / DAY)
}

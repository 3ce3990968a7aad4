//! `htc report`.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::Failure;
use crate::app::cli::ReportArgs;
use crate::page::{self, input::Inputs};
use crate::system::disk::{self, folder_of};

pub(super) fn execute(args: &ReportArgs) -> Result<(), Failure> {
    check(args)?;
    let mut inputs = Inputs::default();
    for path in &args.inputs {
        inputs.read(path)?;
    }
    let html = page::page(&inputs)?;
    write(&args.output, &html).map_err(|source| Failure::Write {
        path: args.output.clone(),
        source,
    })
}

/// What would be lost is found before the work is done.
fn check(args: &ReportArgs) -> Result<(), Failure> {
    let path = &args.output;
    if args
        .inputs
        .iter()
        .any(|input| crate::system::disk::same_place(input, path))
    {
        return Err(Failure::PageOverInput(path.clone()));
    }
    if !args.force && path.symlink_metadata().is_ok() {
        return Err(Failure::PlanExists(path.clone()));
    }
    match fs::metadata(folder_of(path)) {
        Ok(_) => Ok(()),
        Err(source) => Err(Failure::Write {
            path: path.clone(),
            source,
        }),
    }
}

fn write(path: &Path, html: &str) -> std::io::Result<()> {
    disk::replace(path, |to| to.write_all(html.as_bytes()))
}

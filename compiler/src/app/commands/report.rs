//! `htc report`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::app::cli::ReportArgs;
use crate::page::{self, input::Inputs};
use crate::system::disk;

pub(super) fn execute(args: &ReportArgs) -> Result<(), Failure> {
    let inputs: Vec<&Path> = args.inputs.iter().map(PathBuf::as_path).collect();
    check_output(&args.output, &inputs, args.force)?;
    let mut inputs = Inputs::default();
    for path in &args.inputs {
        inputs.read(path)?;
    }
    let html = page::page(&inputs)?;
    write(&args.output, &html, args.force).map_err(|source| Failure::Write {
        path: args.output.clone(),
        source,
    })
}

pub(super) fn check_output(path: &Path, inputs: &[&Path], force: bool) -> Result<(), Failure> {
    if inputs.iter().any(|input| disk::is_same_file(input, path)) {
        return Err(Failure::PageOverInput(path.into()));
    }
    if !force && path.symlink_metadata().is_ok() {
        return Err(Failure::PlanExists(path.into()));
    }
    disk::check_writable(path).map_err(|source| Failure::Write {
        path: path.into(),
        source,
    })
}

pub(super) fn write(path: &Path, html: &str, force: bool) -> std::io::Result<()> {
    disk::write(path, force, |to| to.write_all(html.as_bytes()))
}

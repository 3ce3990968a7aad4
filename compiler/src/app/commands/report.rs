//! `htc report`.

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
    let html = page::page(&inputs).ok_or(Failure::PageTooLarge)?;
    Ok(disk::write(&args.output, &html, args.force)?)
}

pub(super) fn check_output(path: &Path, inputs: &[&Path], force: bool) -> Result<(), Failure> {
    if inputs.iter().any(|input| disk::is_same_file(input, path)) {
        return Err(Failure::PageOverInput(path.into()));
    }
    super::check_output(path, force)
}

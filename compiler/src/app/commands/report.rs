//! `htc report`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::app::cli::ReportArgs;
use crate::app::terminal;
use crate::page::{self, input::Inputs};
use crate::system::disk;

pub(super) fn execute(args: &ReportArgs) -> Result<(), Failure> {
    let paths: Vec<&Path> = args.inputs.iter().map(PathBuf::as_path).collect();
    check_output(&args.output, &paths, args.force)?;
    let mut inputs = Inputs::default();
    for path in &args.inputs {
        inputs.read(path)?;
    }
    if !inputs.need_two_pages() {
        let html = page::main_page(&inputs, None).ok_or(Failure::PageTooLarge)?;
        return Ok(disk::write(&args.output, &html, args.force)?);
    }
    let analysis = analysis_path(&args.output)?;
    check_output(&analysis, &paths, args.force)?;
    let html = page::main_page(&inputs, analysis.file_name());
    let names = args.output.file_name().unwrap_or_default();
    let html_of_analysis = page::analysis_page(&inputs, names);
    let (Some(html), Some(html_of_analysis)) = (html, html_of_analysis) else {
        return Err(Failure::PageTooLarge);
    };
    let pages = [(&*args.output, &*html), (&*analysis, &*html_of_analysis)];
    disk::write_both(pages, args.force)?;
    say!("the analysis: {}", terminal::display_path(&analysis));
    Ok(())
}

/// Returns the path of the page of the analysis: `report-analysis.html` beside `report.html`.
fn analysis_path(output: &Path) -> Result<PathBuf, Failure> {
    let (Some(stem), false) = (
        output.file_stem(),
        fs::metadata(output).is_ok_and(|found| !found.is_file()),
    ) else {
        return Err(Failure::PageWithoutFolder(output.into()));
    };
    let mut name = OsString::from(stem);
    name.push("-analysis");
    if let Some(extension) = output.extension() {
        name.push(".");
        name.push(extension);
    }
    Ok(output.with_file_name(name))
}

pub(super) fn check_output(path: &Path, inputs: &[&Path], force: bool) -> Result<(), Failure> {
    if inputs.iter().any(|input| disk::is_same_file(input, path)) {
        return Err(Failure::PageOverInput(path.into()));
    }
    super::check_output(path, force)
}

//! `htc export`.

use super::progress::with_progress;
use super::{Failure, print_json};
use crate::app::cli::{Document, ExportArgs};
use crate::export;

pub(super) fn execute(args: &ExportArgs) -> Result<(), Failure> {
    let options = args.options().map_err(Failure::Usage)?;
    let report = with_progress(|watch| export::export(&options, watch))?;
    if args.json {
        return print_json(Document::Export, &report);
    }
    say!("{report}");
    Ok(())
}

//! `htc export`.

use super::progress::with_progress;
use super::{Failure, print_json};
use crate::app::cli::ExportArgs;
use crate::export;

pub(super) fn execute(args: &ExportArgs) -> Result<(), Failure> {
    let report = with_progress(|watch| export::export(&args.options(), watch))?;
    if args.json {
        return print_json(&report);
    }
    say!("{report}");
    Ok(())
}

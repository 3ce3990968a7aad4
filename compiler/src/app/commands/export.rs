//! `htc export`.

use super::progress::ProgressDisplay;
use super::{Failure, print_json};
use crate::app::cli::ExportArgs;
use crate::app::interrupt::Interrupt;
use crate::event::{Event, Progress};
use crate::export::{self, ExportError};

pub(super) fn execute(args: &ExportArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::install();
    let progress = ProgressDisplay::new(interrupt.clone());
    let tell = |event: Event| progress.show(event);
    let watch = Progress::new(&tell, interrupt.cancel());
    let report = export::export(&args.options(), watch);
    progress.clear();
    let report = report.map_err(|error| match error {
        ExportError::Cancelled(_) => Failure::Interrupted(interrupt.message()),
        error => error.into(),
    })?;
    if args.json {
        return print_json(&report);
    }
    say!("{report}");
    Ok(())
}

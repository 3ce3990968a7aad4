//! Progress display on a terminal.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Failure, interrupted};
use crate::app::interrupt::Interrupt;
use crate::app::terminal::shorten_message;
use crate::event::{Event, Progress};
use crate::report::format_seconds;
use crate::system::show::format_bytes;

/// Runs work with a display of its progress, which Ctrl-C cancels.
pub(super) fn with_progress<T, E: Into<Failure>>(
    work: impl FnOnce(Progress) -> Result<T, E>,
) -> Result<T, Failure> {
    show_progress(false, work)
}

/// As [`with_progress`]; the quiet display shows warnings alone.
pub(super) fn show_progress<T, E: Into<Failure>>(
    quiet: bool,
    work: impl FnOnce(Progress) -> Result<T, E>,
) -> Result<T, Failure> {
    let interrupt = Interrupt::install();
    let display = ProgressDisplay::new(interrupt.clone(), quiet);
    let tell = |event: Event| display.show(event);
    let done = work(Progress::new(&tell, interrupt.cancel()));
    display.bar.finish_and_clear();
    done.map_err(|error| interrupted(error, &interrupt))
}

/// Template of a bar for windows of a text.
pub(super) const WINDOWS: &str = "{bar:30} {pos}/{len} windows, {eta} left";

/// Returns a bar for steps, in the template's layout.
pub(super) fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::no_length();
    bar.set_style(style(template));
    bar
}

struct ProgressDisplay {
    bar: ProgressBar,
    state: Mutex<DisplayState>,
    interrupt: Interrupt,
    quiet: bool,
}

#[derive(Default)]
struct DisplayState {
    /// Estimated seconds of the whole work.
    estimate: Option<f64>,
    /// Candidates that were begun.
    candidates: usize,
}

impl ProgressDisplay {
    fn new(interrupt: Interrupt, quiet: bool) -> ProgressDisplay {
        let bar = if quiet {
            ProgressBar::hidden()
        } else {
            bar("{spinner} {elapsed_precise} {msg}")
        };
        if !bar.is_hidden() {
            // Large units take a while: the clock keeps running.
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        ProgressDisplay {
            bar,
            state: Mutex::default(),
            interrupt,
            quiet,
        }
    }

    fn state(&self) -> MutexGuard<'_, DisplayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stage with this number of steps; the clock is that of the whole work.
    fn begin(&self, stage: &str, steps: usize) {
        let state = self.state();
        let candidate = match state.candidates {
            0 => String::new(),
            number => format!(", candidate {number}"),
        };
        let estimate = state.estimate.map_or(String::new(), |seconds| {
            format!(" of about {}", format_seconds(seconds))
        });
        let bar = &self.bar;
        bar.set_message("");
        bar.set_style(style(&format!(
            "{stage}{candidate} {{bar:25}} {{pos}}/{{len}}  {{elapsed_precise}}{estimate}  {{msg}}"
        )));
        // At once, so that no line shows the position of the stage before.
        bar.update(|state| {
            state.set_pos(0);
            state.set_len(steps as u64);
        });
    }

    fn show(&self, event: Event) {
        let bar = &self.bar;
        match event {
            Event::Measuring(what, steps) => self.begin(what.name(), steps),
            Event::EstimatedSeconds(seconds) => {
                self.state().estimate = Some(seconds);
                // Printed only with a progress bar.
                bar.println(format!("about {}", format_seconds(seconds)));
            }
            Event::EstimatedBytes { memory, disk } => bar.println(format!(
                "at most {} of memory beside the mapped source, {} of disk",
                format_bytes(memory),
                format_bytes(disk)
            )),
            Event::Gradients(steps) => self.begin("gradients", steps),
            Event::Tuning(steps) => self.begin("tuning", steps),
            Event::Exporting(tensors) => self.begin("exporting", tensors),
            Event::Digest => bar.set_message("reading the source"),
            Event::Calibrating {
                windows,
                passes,
                cached_passes,
            } => {
                self.interrupt.set_calibrating();
                self.begin("calibration", windows * passes);
                bar.set_position((windows * cached_passes) as u64);
            }
            Event::Window => bar.inc(1),
            Event::Warning(said) => {
                bar.suspend(|| say!("htc: warning: {}", shorten_message(said)));
            }
            Event::Note(_) if self.quiet => {}
            Event::Note(said) => {
                bar.suspend(|| say!("htc: note: {}", shorten_message(said)));
            }
            Event::KeptFolder(folder) => self.interrupt.set_kept_folder(folder),
            Event::StepCount(steps) => self.begin("encoding", steps),
            Event::Done(what) => {
                bar.inc(1);
                bar.set_message(shorten_message(what));
            }
            Event::Flushing => bar.set_message("sealing"),
            Event::Trial { .. } => self.state().candidates += 1,
            Event::Evaluate { done, total } => {
                if done == 1 {
                    self.begin("measuring", total);
                }
                bar.set_position(done as u64);
            }
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

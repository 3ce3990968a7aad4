//! Progress display on a terminal.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Failure, interrupted};
use crate::app::interrupt::Interrupt;
use crate::app::terminal::shorten_message;
use crate::event::{Event, Progress};
use crate::report::format_seconds;

/// Runs work with a display of its progress, which Ctrl-C cancels.
pub(super) fn with_progress<T, E: Into<Failure>>(
    work: impl FnOnce(Progress) -> Result<T, E>,
) -> Result<T, Failure> {
    let interrupt = Interrupt::install();
    let display = ProgressDisplay::new(interrupt.clone());
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
    trial: Mutex<String>,
    interrupt: Interrupt,
}

impl ProgressDisplay {
    fn new(interrupt: Interrupt) -> ProgressDisplay {
        let bar = bar("{spinner} {elapsed_precise} {msg}");
        if !bar.is_hidden() {
            // Large units take a while: the clock keeps running.
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        ProgressDisplay {
            bar,
            trial: Mutex::default(),
            interrupt,
        }
    }

    fn trial(&self) -> MutexGuard<'_, String> {
        self.trial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, event: Event) {
        let bar = &self.bar;
        let steps = |steps: usize, what: &str| {
            bar.set_length(steps as u64);
            bar.set_position(0);
            bar.set_style(style(&format!(
                "{what} {{bar:30}} {{pos}}/{{len}} {{elapsed_precise}} {{msg}}"
            )));
        };
        match event {
            Event::Measuring(what, all) => steps(all, what.name()),
            // Printed only with a progress bar.
            Event::EstimatedSeconds(seconds) => {
                bar.println(format!("about {}", format_seconds(seconds)));
            }
            Event::Gradients(left) => steps(left, "gradients"),
            Event::Tuning(left) => steps(left, "tuning"),
            Event::Exporting(tensors) => steps(tensors, "tensors"),
            Event::Digest => bar.set_message("reading the source"),
            Event::Calibrating {
                windows,
                passes,
                cached_passes: found,
            } => {
                steps(windows * passes, "windows");
                bar.set_position((windows * found) as u64);
                bar.set_message("calibrating");
            }
            Event::Window => bar.inc(1),
            Event::Warning(said) => {
                bar.suspend(|| say!("htc: warning: {}", shorten_message(said)));
            }
            Event::Note(said) => {
                bar.suspend(|| say!("htc: note: {}", shorten_message(said)));
            }
            Event::KeptFolder(folder) => self.interrupt.set_kept_folder(folder),
            Event::StepCount(jobs) => {
                let trial = self.trial();
                if trial.is_empty() {
                    steps(jobs, "factors")
                } else {
                    steps(jobs, &format!("factors ({trial})"))
                }
            }
            Event::Done(what) => {
                bar.inc(1);
                bar.set_message(shorten_message(what));
            }
            Event::Flushing => bar.set_message("sealing"),
            Event::Trial { treatment, ratio } => {
                *self.trial() = format!("{treatment}, ratio {ratio:.3}");
            }
            Event::Evaluate { done, total: all } => {
                if done == 1 {
                    steps(all, "held-out windows");
                }
                bar.set_position(done as u64);
                bar.set_message("measuring");
            }
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

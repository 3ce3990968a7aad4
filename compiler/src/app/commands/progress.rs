//! Progress display on a terminal.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::style::ProgressTracker;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::{Failure, interrupted};
use crate::app::interrupt::Interrupt;
use crate::app::terminal::shorten_message;
use crate::event::{CostEstimate, Event, OverallProgress, Progress, Task};
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

/// Of work whose time is estimated. The text on the step, last, is cut where the terminal ends.
const OVERALL: &str = "{bar:12} {percent}%, {left}  {elapsed_precise}  {stage}  {wide_msg}";

/// Of a stage, where the time of the whole work is not known.
const STAGE: &str = "{bar:12} {elapsed_precise}  {stage}  {wide_msg}";

/// Of work whose steps are not known.
const SPINNER: &str = "{spinner} {elapsed_precise}  {stage}  {wide_msg}";

/// Positions of a bar for the whole work.
const RESOLUTION: f64 = 1000.0;

/// Returns a bar for steps, in the template's layout.
pub(super) fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::no_length();
    bar.set_style(style(template));
    bar
}

struct ProgressDisplay {
    bar: ProgressBar,
    overall: SharedProgress,
    begun: Instant,
    interrupt: Interrupt,
    quiet: bool,
}

impl ProgressDisplay {
    fn new(interrupt: Interrupt, quiet: bool) -> ProgressDisplay {
        let (overall, begun) = (SharedProgress::default(), Instant::now());
        let bar = if quiet {
            ProgressBar::hidden()
        } else {
            ProgressBar::no_length()
        };
        let display = ProgressDisplay {
            bar,
            overall,
            begun,
            interrupt,
            quiet,
        };
        display.set_template(SPINNER);
        if !display.bar.is_hidden() {
            // Large units take a while: the clock keeps running.
            display.bar.enable_steady_tick(Duration::from_millis(200));
        }
        display
    }

    fn set_template(&self, template: &str) {
        let with = |show| LineField {
            overall: self.overall.clone(),
            begun: self.begun,
            show,
        };
        let style = style(template);
        let style = style.with_key("left", with(show_remaining));
        self.bar
            .set_style(style.with_key("stage", with(show_stage)));
    }

    fn show(&self, event: Event) {
        let bar = &self.bar;
        match event {
            Event::Warning(said) => {
                bar.suspend(|| say!("htc: warning: {}", shorten_message(said)));
            }
            Event::Note(_) if self.quiet => {}
            Event::Note(said) => {
                bar.suspend(|| say!("htc: note: {}", shorten_message(said)));
            }
            Event::KeptFolder(folder) => self.interrupt.set_kept_folder(folder),
            _ => self.advance(event),
        }
    }

    fn advance(&self, event: Event) {
        if let Event::Begin { task, .. } = event
            && task == Task::Calibration
        {
            self.interrupt.set_calibrating();
        }
        let now = self.begun.elapsed();
        let (is_first, fraction, current) = {
            let mut overall = self.overall.lock();
            let is_first = overall.fraction().is_none();
            overall.update(&event, now);
            (is_first, overall.fraction(), overall.current())
        };
        match event {
            // Printed only with a progress bar.
            Event::Estimated(estimate) if is_first => self.bar.println(describe(estimate)),
            Event::Begin { .. } => self.bar.set_message(""),
            Event::Done(what) => self.bar.set_message(shorten_message(what)),
            _ => {}
        }
        let (template, position, length) = match (fraction, current) {
            (Some(fraction), _) => (OVERALL, (RESOLUTION * fraction) as u64, RESOLUTION as u64),
            (None, Some((_, done, steps))) if steps > 0 => (STAGE, done as u64, steps as u64),
            _ => (SPINNER, 0, 0),
        };
        if !matches!(event, Event::Done(_)) {
            self.set_template(template);
        }
        // At once, so that no line shows the position of the stage before.
        self.bar.update(|state| {
            state.set_len(length);
            state.set_pos(position);
        });
    }
}

/// Returns the line on the predicted costs, `about 3 min, at most 540 MB of memory ...`.
fn describe(estimate: &CostEstimate) -> String {
    format!(
        "about {}, at most {} of memory beside the mapped source, {} of disk",
        format_seconds(estimate.seconds()),
        format_bytes(estimate.memory),
        format_bytes(estimate.disk)
    )
}

/// Progress shared with the drawing thread.
#[derive(Clone, Default)]
struct SharedProgress(Arc<Mutex<OverallProgress>>);

impl SharedProgress {
    fn lock(&self) -> MutexGuard<'_, OverallProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Field of the line, written anew whenever it is drawn.
#[derive(Clone)]
struct LineField {
    overall: SharedProgress,
    begun: Instant,
    show: fn(&OverallProgress, Duration) -> String,
}

impl ProgressTracker for LineField {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, _: &ProgressState, _: Instant) {}

    fn reset(&mut self, _: &ProgressState, _: Instant) {}

    fn write(&self, _: &ProgressState, to: &mut dyn Write) {
        let shown = (self.show)(&self.overall.lock(), self.begun.elapsed());
        _ = to.write_str(&shown);
    }
}

fn show_remaining(overall: &OverallProgress, now: Duration) -> String {
    overall.remaining(now).map_or_else(String::new, |left| {
        match left.as_secs_f64() {
            // Written anew several times a second: without tenths.
            seconds if seconds < 10.0 => format!("{seconds:.0} s left"),
            seconds => format!("about {} left", format_seconds(seconds)),
        }
    })
}

/// Returns `encoding, candidate 2 of 3, 12/45`.
fn show_stage(overall: &OverallProgress, _: Duration) -> String {
    let Some((task, done, steps)) = overall.current() else {
        return "starting".to_owned();
    };
    let mut shown = task.name().to_owned();
    if let Some((number, expected)) = overall.candidate()
        && matches!(task, Task::Encoding | Task::Gauges)
    {
        shown.push_str(&format!(", candidate {number} of {expected}"));
    }
    if steps > 0 {
        shown.push_str(&format!(" {done}/{steps}"));
    }
    shown
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests;

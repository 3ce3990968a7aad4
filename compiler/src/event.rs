//! What a stage tells while it works, and how it is told to stop.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::request::Treatment;

/// What is being done, for a progress display.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// So many steps of a measurement follow, each told as [`Event::Done`].
    Measuring(Measurement, usize),
    /// The whole work is expected to take so many seconds.
    Expected(f64),
    /// A backward pass has so many steps left, each told as [`Event::Done`].
    Gradients(usize),
    /// A tuning has so many steps left at most, each told as [`Event::Done`].
    Tuning(usize),
    /// The source is being read for its digest.
    Digest,
    /// So many windows go through so many layers and then to the head, of which passes the first `found` are in
    /// the cache.
    Calibrating {
        /// Windows.
        windows: usize,
        /// Layers, and one for the head.
        passes: usize,
        /// Passes in the cache.
        found: usize,
    },
    /// A window has gone through a layer, or to the head.
    Window,
    /// Something the user should know.
    Warning(&'a str),
    /// Something that was done on the way.
    Note(&'a str),
    /// What is finished is kept in this folder until the same compilation goes on; `None` when there is
    /// nothing to keep any more.
    Keeping(Option<&'a Path>),
    /// So many tensors are written for another program, each told as [`Event::Done`].
    Exporting(usize),
    /// So many steps follow.
    Planned(usize),
    /// A step is done: the layer and the slots it was about, or a tensor passed through.
    Done(&'a str),
    /// The artifact is forced to the disk.
    Sealing,
    /// A candidate is made and measured.
    Trial {
        /// How its weights are treated.
        treatment: Treatment,
        /// Parameters after over before, on the selected slots.
        ratio: f64,
    },
    /// So many windows of the text that was held out are measured.
    Evaluate {
        /// Windows done.
        done: usize,
        /// Windows.
        all: usize,
    },
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Measurement {
    /// The spectra of units, for an allocator.
    Spectra,
    /// What each matrix would lose in each type.
    Curves,
    /// The intrinsic dimensions of the residual stream behind each layer.
    Depth,
    /// Coordinates of each layer in which its weights truncate best.
    Gauges,
    /// What inputs contribute, by which they are put in order.
    Order,
    /// Whatever an analysis looks at.
    Analysis,
}

impl Measurement {
    /// What a progress display calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Measurement::Spectra => "spectra",
            Measurement::Curves => "losses by type",
            Measurement::Depth => "dimensions",
            Measurement::Gauges => "gauges",
            Measurement::Order => "order",
            Measurement::Analysis => "analysis",
        }
    }
}

/// Asks for an end of the work, from any thread and as often as one likes; clones ask for the same.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks. Stages look at it between two steps: a unit, a window, a tensor.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The work ended because somebody asked for it; what is finished is kept.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("interrupted")]
pub struct Cancelled;

/// Who is told of the work, and who may end it.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    tell: &'a (dyn Fn(Event) + Sync),
    cancel: Option<&'a Cancel>,
}

impl<'a> Watch<'a> {
    /// Tells `tell`, which any thread may call; ends when `cancel` asks for it.
    pub fn new(tell: &'a (dyn Fn(Event) + Sync), cancel: &'a Cancel) -> Self {
        let cancel = Some(cancel);
        Watch { tell, cancel }
    }

    /// Tells nobody, and is not to be ended.
    pub fn nobody() -> Watch<'static> {
        Watch {
            tell: &|_| {},
            cancel: None,
        }
    }

    /// The same end, told through another function.
    #[must_use]
    pub fn told_by<'b>(self, tell: &'b (dyn Fn(Event) + Sync)) -> Watch<'b>
    where
        'a: 'b,
    {
        let cancel = self.cancel;
        Watch { tell, cancel }
    }

    /// Tells.
    pub fn tell(&self, event: Event) {
        (self.tell)(event);
    }

    /// Tells that a step is done.
    ///
    /// # Errors
    /// [`Cancelled`] where the work is to end.
    pub fn done(&self, what: &str) -> Result<(), Cancelled> {
        self.tell(Event::Done(what));
        self.check()
    }

    /// # Errors
    /// [`Cancelled`] where the work is to end.
    pub fn check(&self) -> Result<(), Cancelled> {
        match self.cancel {
            Some(cancel) if cancel.is_cancelled() => Err(Cancelled),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("cancel", &self.cancel)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_clone_ends_the_same_work_at_its_next_step() {
        let (cancel, said) = (Cancel::default(), Mutex::new(Vec::new()));
        let tell = |event: Event| said.lock().unwrap().push(format!("{event:?}"));
        let watch = Watch::new(&tell, &cancel);
        assert_eq!(watch.done("one"), Ok(()));
        cancel.clone().cancel();
        assert_eq!(watch.done("two"), Err(Cancelled));
        assert_eq!(watch.told_by(&|_| {}).check(), Err(Cancelled));
        assert_eq!(Watch::nobody().check(), Ok(()));
        assert_eq!(*said.lock().unwrap(), ["Done(\"one\")", "Done(\"two\")"]);
    }
}

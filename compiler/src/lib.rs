//! Offline compression compiler for transformer language models.
//!
//! [`pipeline`] tells the story: read, calibrate, plan, factorise, seal, choose. What is wanted is a
//! [`request`]; what is being done is told as [`event`]s; what came of it is a [`report`].
//!
//! Modules are layers: each may use those above it in this list, and none below it. The arithmetic is a
//! crate of its own, [`math`], which knows none of them.
//!
//! 1. `system`: disk, memory, clocks, bounded texts, random numbers, work on several threads
//! 2. `request`: what is asked for, with its defaults
//! 3. `event`: progress and cancellation
//! 4. `calibrate`: text through the model; statistics of what every slot reads
//! 5. `plan`: what becomes of every slot, from shapes, budget and evidence
//! 6. `unit`: one slot or group from the source's bytes to stored tensors, with its error
//! 7. `profile`: what an allocator looks at, measured on the model
//! 8. `geometry`: the spectra of what is stored
//! 9. `layout`: the artifact's tensors in their order, and its manifest
//! 10. `make`: one artifact from one plan, from where an earlier run was interrupted
//! 11. `measure`: perplexity, KL divergence, agreement, with their intervals
//! 12. `choose`: candidates, executed on text that was held out
//! 13. `estimate`: bytes, memory and time before the work
//! 14. `analyse`: what a model looks like to a compressor; decides nothing
//! 15. `report`: what a compilation did, for programs and people
//! 16. `page`: reports and analyses as a page of HTML
//! 17. `pipeline`: the whole flow, the only place where the stages' errors meet
//! 18. `app`: command line, commands, chat, progress bars, Ctrl-C

//! # From another program
//!
//! [`Compiler`] has the command line's options and defaults; without the feature `cli`, which is on by
//! default, the crate builds without a command line, progress bars, chat templates and pages.
//!
//! ```toml
//! [build-dependencies]
//! htc = { version = "0.1", default-features = false }
//! ```

/// Prints a line for people on standard error. That nobody can read it any more (a closed pipe, a
/// full disk) is no reason to fail.
#[cfg(feature = "cli")]
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($argument)*);
    }};
}

pub mod analyse;
#[cfg(feature = "cli")]
pub mod app;
pub mod calibrate;
pub mod choose;
pub mod estimate;
pub mod event;
pub mod geometry;
pub mod layout;
pub mod make;
pub mod measure;
#[cfg(feature = "cli")]
pub mod page;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod report;
pub mod request;
pub mod system;
pub mod unit;

pub use htc_math as math;

pub use event::{Cancel, Event};
pub use pipeline::{CompileError, Compiler};
pub use report::Report;

//! Offline compression compiler for transformer language models.
//!
//! [`pipeline`] tells the story: read, calibrate, plan, factorise, seal, choose. What is wanted is a
//! [`request`]; what is being done is told as [`event`]s; what came of it is a [`report`].
//!
//! Modules are layers: each may use those above it in this list, and none below it.
//!
//! 1. `system`: disk, memory, clocks, bounded texts, random numbers, work on several threads
//! 2. `request`: what is asked for, with its defaults
//! 3. `event`: progress and cancellation
//! 4. `math`: decompositions, gauges, biases, sinks: matrices in, matrices out
//! 5. `calibrate`: text through the model; statistics of what every slot reads
//! 6. `plan`: what becomes of every slot, from shapes, budget and evidence
//! 7. `unit`: one slot or group from the source's bytes to stored tensors, with its error
//! 8. `profile`: what an allocator looks at, measured on the model
//! 9. `geometry`: the spectra of what is stored
//! 10. `layout`: the artifact's tensors in their order, and its manifest
//! 11. `make`: one artifact from one plan, from where an earlier run was interrupted
//! 12. `measure`: perplexity, KL divergence, agreement, with their intervals
//! 13. `choose`: candidates, executed on text that was held out
//! 14. `estimate`: bytes, memory and time before the work
//! 15. `analyse`: what a model looks like to a compressor; decides nothing
//! 16. `report`: what a compilation did, for programs and people
//! 17. `page`: reports and analyses as a page of HTML
//! 18. `pipeline`: the whole flow, the only place where the stages' errors meet
//! 19. `app`: command line, commands, chat, progress bars, Ctrl-C

/// Prints a line for people on standard error. That nobody can read it any more (a closed pipe, a
/// full disk) is no reason to fail.
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($argument)*);
    }};
}

pub mod analyse;
pub mod app;
pub mod calibrate;
pub mod choose;
pub mod estimate;
pub mod event;
pub mod geometry;
pub mod layout;
pub mod make;
pub mod math;
pub mod measure;
pub mod page;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod report;
pub mod request;
pub mod system;
pub mod unit;

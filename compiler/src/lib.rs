//! Compresses transformer language models offline: a GGUF or a folder with safetensors goes in, one sealed
//! `.htz` comes out, which [`htc_loader`] executes. Every matrix gets codes in the type that loses least for the
//! file's bytes, or becomes factors of low rank, alone or with others over one basis; what that loses is measured.
//!
//! ```no_run
//! # fn main() -> Result<(), htc::CompileError> {
//! let report = htc::Compiler::new("model.gguf", "model.htz").run()?;
//! println!("{report}");
//! # Ok(()) }
//! ```
//!
//! That is the smallest artifact within 1 % of the model's perplexity, on a mix of texts that ships with the
//! program.
//!
//! # What happens
//!
//! 1. The model is opened and its digest computed: [`htc_formats::source::ModelFile`].
//! 2. The text flows through it, and what every matrix reads is kept as statistics in a cache, so that
//!    the next compilation finds them: [`calibrate`].
//! 3. A [`plan`] decides what becomes of every matrix, by shapes, the budget and what was measured. It is
//!    JSON that may be edited, and the same plan gives the same bytes.
//! 4. Every [`unit`](mod@unit) of the plan is factorised and stored, in the order in which the model executes; what is
//!    finished survives an interruption: [`mod@make`].
//! 5. Candidates that only differ in what cannot be computed, such as the gauge or the ratio that holds a
//!    limit, are executed on text that was held out, and the best is kept: [`choose`].
//! 6. The norms and rows of what was chosen are tuned on the source's logits, where that measures better: [`tune`].
//! 7. The [`Report`] says what was done and what it cost.
//!
//! The same input with the same options gives the same bytes, on any number of threads.
//!
//! # Where to look
//!
//! | for | look at |
//! |-----|---------|
//! | what can be asked for | the methods of [`Compiler`]; each is an option of the command line, with its default |
//! | how large and how long it will be | [`Compiler::forecast`] |
//! | progress and an end before the end | [`Compiler::run_with`], [`Event`], [`Compiler::cancelled_by`], [`Cancel`] |
//! | what went wrong | [`CompileError`]: one line with the file or the option, called as its method, and a remedy |
//! | what a model looks like to a compressor | [`analyse::analyse`] |
//! | how good a model is on a text, and how far from another | [`measure::evaluate`] |
//! | how fast a model is beside another | [`bench::run`] |
//! | what the decompositions compute, and from which papers | [`math`] |
//! | an artifact as a GGUF or as a folder for transformers | [`export::export`] |
//! | what lies in an artifact | [`htc_formats::htz`] |
//!
//! # From a build script
//!
//! Without the feature `cli`, which is on by default, the crate builds without a command line, progress bars,
//! chat templates and pages:
//!
//! ```toml
//! [build-dependencies]
//! htc = { version = "0.1", default-features = false }
//! ```
//!
//! A build script names what its artifact depends on, and compiles where that has changed:
//!
//! ```no_run
//! # fn main() -> Result<(), htc::CompileError> {
//! let compiler = htc::Compiler::new("model.gguf", "model.htz").overwrite(true);
//! for input in compiler.inputs()? {
//!     println!("cargo::rerun-if-changed={}", input.display());
//! }
//! compiler.run()?;
//! # Ok(()) }
//! ```
//!
//! `examples/build_script.rs` is the whole of it.
//!
//! # Layers
//!
//! Modules are layers: each may use those above it in this list, and none below it. The arithmetic is a
//! crate of its own, [`math`], which knows none of them.
//!
//! 1. `system`: disk, memory, clocks, bounded texts, random numbers, work on several threads
//! 2. `request`: what is asked for, with its defaults
//! 3. `event`: progress and cancellation
//! 4. `device`: what executes models, whichever backend that is
//! 5. `calibrate`: text through the model; statistics of what every slot reads
//! 6. `gradient`: a backward pass; second moments of the gradients at what every matrix gives
//! 7. `order`: in which order a model is stored; tensors and statistics in it
//! 8. `codes`: from weights and the second moment of what they read to codes, with feedback
//! 9. `plan`: what becomes of every slot, from shapes, budget and evidence
//! 10. `unit`: one slot or group from the source's bytes to stored tensors, with its error
//! 11. `profile`: what an allocator looks at, measured on the model
//! 12. `geometry`: the spectra of what is stored
//! 13. `layout`: the artifact's tensors in their order, and its manifest
//! 14. `make`: one artifact from one plan, from where an earlier run was interrupted
//! 15. `measure`: perplexity, KL divergence, agreement, with their intervals
//! 16. `bench`: speed and energy in pairs with a baseline, their statistics, and what is to hold
//! 17. `tune`: norms and rows by gradient descent on the source's logits, when every matrix is stored
//! 18. `choose`: candidates, executed on text that was held out
//! 19. `estimate`: bytes, memory and time before the work
//! 20. `analyse`: what a model looks like to a compressor; decides nothing
//! 21. `export`: an artifact as a GGUF, or as a folder with safetensors
//! 22. `report`: what a compilation did, for programs and people
//! 23. `page`: reports and analyses as a page of HTML
//! 24. `pipeline`: the whole flow, the only place where the stages' errors meet
//! 25. `app`: command line, commands, chat, progress bars, Ctrl-C

/// Prints lines for people on standard error: `app::terminal::say`.
#[cfg(feature = "cli")]
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::app::terminal::say(format_args!($($argument)*))
    };
}

pub mod analyse;
#[cfg(feature = "cli")]
pub mod app;
pub mod bench;
pub mod calibrate;
pub mod choose;
pub mod codes;
pub mod device;
pub mod estimate;
pub mod event;
pub mod export;
pub mod geometry;
pub mod gradient;
pub mod layout;
pub mod make;
pub mod measure;
pub mod order;
#[cfg(feature = "cli")]
pub mod page;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod report;
pub mod request;
pub mod system;
pub mod tune;
pub mod unit;

pub use htc_math as math;

pub use event::{Cancel, Event};
pub use pipeline::{CompileError, Compiler};
pub use report::Report;

//! Offline compression compiler for transformer language models.
//!
//! It reads a GGUF file or a folder with safetensors and writes one sealed `.htz` artifact, which
//! [`htc_loader`] executes. Each matrix is stored in the code that loses least for the bytes of the
//! file, or as factors of low rank, alone or with others over a shared basis. The loss is measured.
//!
//! ```no_run
//! # fn main() -> Result<(), htc::CompileError> {
//! let report = htc::Compiler::new("model.gguf", "model.htz").run()?;
//! println!("{report}");
//! # Ok(()) }
//! ```
//!
//! By default this gives the smallest artifact within 1 % of the model's perplexity, calibrated on
//! a mix of texts that ships with the program.
//!
//! # Stages
//!
//! 1. Open the model and compute its digest: [`htc_formats::source::ModelFile`].
//! 2. Run the calibration text through the model and cache the statistics of the inputs of every
//!    matrix, for later compilations: [`calibrate`].
//! 3. Decide the form of every matrix from shapes, budget and measurements. This [`plan`] is JSON
//!    that can be edited; the same plan gives the same bytes.
//! 4. Factorise and store every [`unit`](mod@unit) of the plan in the order of execution. Finished
//!    work survives an interruption: [`mod@make`].
//! 5. Execute candidates that differ only in choices without a closed form, such as the gauge or
//!    the ratio that meets a limit, on held-out text and keep the best: [`choose`].
//! 6. Tune norms and rows of the chosen candidate on the source's logits, if that measures better:
//!    [`tune`].
//! 7. Return a [`Report`] of the decisions and their cost.
//!
//! The same input with the same options gives the same bytes, on any number of threads.
//!
//! # Entry points
//!
//! | task | see |
//! |------|-----|
//! | options and their defaults | the methods of [`Compiler`]; each is an option of the command line |
//! | predicted size and time | [`Compiler::forecast`] |
//! | progress and cancellation | [`Compiler::run_with`], [`Event`], [`Compiler::cancelled_by`], [`CancellationToken`] |
//! | errors | [`CompileError`]: one line with the file or the option (named as its method) and a remedy; [`CompileError::kind`] for exit codes |
//! | analysis of a model before compression | [`analyse::analyse`] |
//! | quality of a model on a text, and distance from another model | [`measure::evaluate`] |
//! | speed of a model relative to another | [`bench::run`] |
//! | the decompositions and the papers they come from | [`math`] |
//! | an artifact as a GGUF or as a folder for transformers | [`export::export`] |
//! | contents of an artifact | [`htc_formats::htz`] |
//!
//! # From a build script
//!
//! Without the default feature `cli` the crate builds without command line, progress bars, chat
//! templates and HTML pages:
//!
//! ```toml
//! [build-dependencies]
//! htc = { version = "0.1", default-features = false }
//! ```
//!
//! A build script lists the files that its artifact depends on and compiles when they have changed:
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
//! The complete script is in `examples/build_script.rs`.
//!
//! # Layers
//!
//! Modules are layers: each may use those above it in this list, and none below it.
//!
//! 1. `system`: disk, memory, clocks, bounded texts, random numbers, thread pools
//! 2. `options`: typed options and their defaults, as flags and as JSON
//! 3. `event`: progress and cancellation
//! 4. `device`: execution of models on any backend
//! 5. `calibrate`: runs text through the model; statistics of the input of every projection
//! 6. `gradient`: backward pass; second moments of the gradients at the output of every matrix
//! 7. `order`: channel permutation of the stored model, and tensors and statistics permuted by it
//! 8. `codes`: quantises weights with GPTQ error feedback, from the second moment of their inputs
//! 9. `plan`: form of every projection, from shapes, budget and evidence
//! 10. `unit`: one projection or group from the source's bytes to stored tensors, with its error
//! 11. `profile`: measurements of the model for the allocators
//! 12. `geometry`: spectra of the stored weights
//! 13. `layout`: order of the artifact's tensors, and its manifest
//! 14. `planner`: the plans of a model at any size, from evidence measured once
//! 15. `make`: one artifact from one plan, resumed after an interruption
//! 16. `measure`: perplexity, KL divergence, agreement, with confidence intervals
//! 17. `bench`: speed and energy in pairs with a baseline, their statistics, and assertions
//! 18. `tune`: gradient descent on norms and row scales against the source's logits
//! 19. `choose`: execution of candidates on held-out text
//! 20. `estimate`: bytes, memory and time before the work
//! 21. `analyse`: properties of a model that matter for compression; decides nothing
//! 22. `export`: an artifact as a GGUF, or as a folder with safetensors
//! 23. `report`: results of a compilation, for programs and people
//! 24. `page`: reports and analyses as an HTML page
//! 25. `pipeline`: the whole flow, and the only module that combines the errors of all stages
//! 26. `app`: command line, commands, chat, progress bars, Ctrl-C

/// Prints lines on standard output: the answer of a command.
#[cfg(feature = "cli")]
macro_rules! answer {
    ($($argument:tt)*) => {
        $crate::app::terminal::print_answer(format_args!($($argument)*))
            .map_err($crate::app::commands::Failure::Output)
    };
}

/// Prints lines on standard error.
#[cfg(feature = "cli")]
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::app::terminal::print_message(format_args!($($argument)*))
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
pub mod options;
pub mod order;
#[cfg(feature = "cli")]
pub mod page;
pub mod pipeline;
pub mod plan;
pub mod planner;
pub mod profile;
pub mod report;
pub mod system;
pub mod tune;
pub mod unit;

pub use htc_math as math;

pub use event::{CancellationToken, Event};
pub use pipeline::{CompileError, Compiler, ErrorKind};
pub use report::Report;

/// The example of the README compiles and holds.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

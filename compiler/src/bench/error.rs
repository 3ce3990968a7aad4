//! Errors of benchmarks, their gates, sensors and records.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use htc_loader::ExecError;
use htc_loader::live::LiveError;
use thiserror::Error;

use super::gates::Metric;
use super::llama_cpp::PROGRAM;
use super::slope::MAX_FILES;
use crate::event::Cancelled;
use crate::system::error::FileError;

/// Errors of a benchmark.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum BenchError {
    /// The task does not fit into the model's context.
    #[error(
        "{model}: {task} with {tokens} tokens to write takes {needed} positions, and the model has {context}; give `{option}` fewer"
    )]
    TooLong {
        model: String,
        task: String,
        tokens: usize,
        needed: usize,
        context: usize,
        option: &'static str,
    },
    /// Generation failed in this process.
    #[error("{model}: {error}")]
    Generate { model: String, error: ExecError },
    /// The clock did not advance during a run.
    #[error(
        "{model}: {task} took no time that this system's clock shows; ask for more tokens with `tokens`"
    )]
    NoTime { model: String, task: String },
    /// The sensor does not answer any more.
    #[error(transparent)]
    Sensor(#[from] LiveError),
    /// A file of gates or a record cannot be read, or does not suit.
    #[error(transparent)]
    File(#[from] FileError),
    /// Cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The list of gates is empty.
    #[error("{}: holds no gate; give a list with one at least", .0.display())]
    NoGates(PathBuf),
    /// The benchmark does not measure the metric of a gate.
    #[error("`gates`: {metric} {missing}; {remedy}, or leave this gate out")]
    NotMeasured {
        metric: Metric,
        missing: &'static str,
        remedy: &'static str,
    },
    /// All gates are for other ranks.
    #[error(
        "`gates`: none of them is for {found}: {ranks}; give gates without a rank, or another model"
    )]
    OtherRanks { found: String, ranks: String },
    /// Too many files.
    #[error("{0} records of energy, expected at most {MAX_FILES}; give fewer")]
    TooManyRecords(usize),
    /// The same record is given twice.
    #[error("{}: the same record twice, whose pairs would count twice; give each once", .0.display())]
    DuplicateRecord(PathBuf),
    /// Two records differ in machine, program, sensor, threads or KV cache type.
    #[error("{}: its {what} is {found}, and that of {} is {expected}; give records of one machine, program and sensor, with the same number of threads and KV cache type", path.display(), first.display())]
    Differs {
        path: PathBuf,
        first: PathBuf,
        what: &'static str,
        found: String,
        expected: String,
    },
    /// The slope is not positive.
    #[error(
        "{}: expected more joules for more bytes, found a slope of {slope:e} J per byte over {pairs} pairs; measure more pairs, \
         longer outputs, or sizes that are further apart", path.display()
    )]
    NoSlope {
        path: PathBuf,
        slope: f64,
        pairs: usize,
    },
    /// The program was not found.
    #[error(
        "{}: no {PROGRAM} there, nor in a folder `bin` in it; give that program of llama.cpp, or the folder of a build of it", .0.display()
    )]
    ProgramNotFound(PathBuf),
    /// The program cannot be started.
    #[error("{}: cannot be started: {error}; give a {PROGRAM} that this machine executes", path.display())]
    StartProgram { path: PathBuf, error: io::Error },
    /// The program is not `llama-bench`.
    #[error("{}: its help knows no -p, -n and -o, which {PROGRAM}'s does; give that program", .0.display())]
    NotLlamaBench(PathBuf),
    /// The program failed.
    #[error("{}: ended with {status}: {stderr_line}; try it by itself: {command}", path.display())]
    ProgramFailed {
        path: PathBuf,
        status: String,
        stderr_line: String,
        command: String,
    },
    /// The program exceeded the time limit.
    #[error("{}: not finished after {} s; ask for less, or give `time_limit` more", path.display(), limit.as_secs())]
    ProgramTooLong { path: PathBuf, limit: Duration },
    /// The output is not the expected JSON.
    #[error(
        "{}: expected JSON with a result of -p {prompt} -n {tokens}, found {found}; give a {PROGRAM} of llama.cpp", path.display()
    )]
    InvalidOutput {
        path: PathBuf,
        prompt: usize,
        tokens: usize,
        found: String,
    },
}

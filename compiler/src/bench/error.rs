//! Errors of benchmarks, their gates, sensors and records.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use htc_loader::ExecError;
use htc_loader::live::LiveError;
use thiserror::Error;

use super::gates::{MAX_FILE as MAX_GATES_FILE, MAX_GATES, Metric};
use super::llama_cpp::PROGRAM;
use super::slope::{MAX_FILE as MAX_RECORD, MAX_FILES, MAX_PAIRS};
use crate::event::Cancelled;

/// Errors of a benchmark.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The task does not fit into the model's context.
    #[error(
        "{model}: {task} with {tokens} tokens to write takes {needed} positions, and the model has {context}; give `{option}` fewer"
    )]
    TooLong {
        /// Model name.
        model: String,
        /// Task description.
        task: String,
        /// Tokens to write.
        tokens: usize,
        /// Required positions.
        needed: usize,
        /// Context length of the model.
        context: usize,
        /// Option that reduces the length.
        option: &'static str,
    },
    /// Generation failed in this process.
    #[error("{model}: {error}")]
    Generate {
        /// Model name.
        model: String,
        /// Cause.
        error: ExecError,
    },
    /// The model cannot be executed in this process.
    #[error("{model}: {error}")]
    Exec {
        /// Model name.
        model: String,
        /// Cause.
        error: ExecError,
    },
    /// The clock did not advance during a run.
    #[error(
        "{model}: {task} took no time that this system's clock shows; ask for more tokens with `tokens`"
    )]
    NoTime {
        /// Model name.
        model: String,
        /// Task description.
        task: String,
    },
    /// The sensor does not answer any more.
    #[error(transparent)]
    Sensor(#[from] LiveError),
    /// Cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The file of gates cannot be read.
    #[error("{}: cannot be read: {error}; give a file of gates, or `paper`, the built-in set", path.display())]
    ReadGates {
        /// File path.
        path: PathBuf,
        /// I/O error.
        error: io::Error,
    },
    /// The file of gates has too many bytes or gates.
    #[error("{}: a file of gates has at most {MAX_GATES_FILE} bytes and {MAX_GATES} gates; give fewer", .0.display())]
    GatesTooLarge(PathBuf),
    /// The list of gates is empty.
    #[error("{}: holds no gate; give a list with one at least", .0.display())]
    NoGates(PathBuf),
    /// The file is not a list of gates.
    #[error(
        "{}: expected a list of gates such as {{\"metric\": \"decode_ratio\", \"at_least\": 0.95}}, found at line {line}, column {column}: {message}", path.display()
    )]
    GatesSchema {
        /// File path.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
        /// Message.
        message: String,
    },
    /// The benchmark does not measure the metric of a gate.
    #[error("`gates`: {metric} {missing}; {remedy}, or leave this gate out")]
    NotMeasured {
        /// Metric.
        metric: Metric,
        /// The missing input.
        missing: &'static str,
        /// Remedy.
        remedy: &'static str,
    },
    /// All gates are for other ranks.
    #[error(
        "`gates`: none of them is for {found}: {ranks}; give gates without a rank, or another model"
    )]
    OtherRanks {
        /// Description of the measured model.
        found: String,
        /// Ranks of the gates.
        ranks: String,
    },
    /// The benchmark record cannot be read.
    #[error("{}: cannot be read: {error}; give the `json` of `htc bench`", path.display())]
    ReadRecord {
        /// File path.
        path: PathBuf,
        /// I/O error.
        error: io::Error,
    },
    /// The record has too many bytes or pairs.
    #[error("{}: a record of a benchmark has at most {MAX_RECORD} bytes and {MAX_PAIRS} pairs; measure fewer pairs", .0.display())]
    RecordTooLarge(PathBuf),
    /// Too many files.
    #[error("{0} records of energy, expected at most {MAX_FILES}; give fewer")]
    TooManyRecords(usize),
    /// The same record is given twice.
    #[error("{}: the same record twice, whose pairs would count twice; give each once", .0.display())]
    DuplicateRecord(PathBuf),
    /// The file is not a benchmark record.
    #[error(
        "{}: expected the JSON of `htc bench`, found at line {line}, column {column}: {property}; measure again", path.display()
    )]
    RecordSchema {
        /// File path.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
        /// Message.
        property: String,
    },
    /// The record lacks the data for a slope.
    #[error("{}: expected {expected}, found {found}; {remedy}", path.display())]
    Unsuitable {
        /// File path.
        path: PathBuf,
        /// Required content.
        expected: &'static str,
        /// Actual content.
        found: String,
        /// Remedy.
        remedy: &'static str,
    },
    /// Two records differ in machine, program, sensor, threads or KV cache type.
    #[error("{}: its {what} is {found}, and that of {} is {expected}; give records of one machine, program and sensor, with the same number of threads and KV cache type", path.display(), first.display())]
    Differs {
        /// File path.
        path: PathBuf,
        /// First file path.
        first: PathBuf,
        /// Property that differs.
        what: &'static str,
        /// Value in this file.
        found: String,
        /// Value in the first file.
        expected: String,
    },
    /// The slope is not positive.
    #[error(
        "{}: expected more joules for more bytes, found a slope of {slope:e} J per byte over {pairs} pairs; measure more pairs, \
         longer outputs, or sizes that are further apart", path.display()
    )]
    NoSlope {
        /// First file path.
        path: PathBuf,
        /// The slope.
        slope: f64,
        /// Number of pairs.
        pairs: usize,
    },
    /// The program was not found.
    #[error(
        "{}: no {PROGRAM} there, nor in a folder `bin` in it; give that program of llama.cpp, or the folder of a build of it", .0.display()
    )]
    ProgramNotFound(PathBuf),
    /// The program cannot be started.
    #[error("{}: cannot be started: {error}; give a {PROGRAM} that this machine executes", path.display())]
    StartProgram {
        /// Program path.
        path: PathBuf,
        /// I/O error.
        error: io::Error,
    },
    /// The program is not `llama-bench`.
    #[error("{}: its help knows no -p, -n and -o, which {PROGRAM}'s does; give that program", .0.display())]
    NotLlamaBench(PathBuf),
    /// The program failed.
    #[error("{}: ended with {status}: {stderr_line}; try it by itself: {command}", path.display())]
    ProgramFailed {
        /// Program path.
        path: PathBuf,
        /// Exit status.
        status: String,
        /// Last line of its error output.
        stderr_line: String,
        /// The command line.
        command: String,
    },
    /// The program exceeded the time limit.
    #[error("{}: not finished after {} s; ask for less, or give `time_limit` more", path.display(), limit.as_secs())]
    ProgramTooLong {
        /// Program path.
        path: PathBuf,
        /// Limit.
        limit: Duration,
    },
    /// The output is not the expected JSON.
    #[error(
        "{}: expected JSON with a result of -p {prompt} -n {tokens}, found {found}; give a {PROGRAM} of llama.cpp", path.display()
    )]
    InvalidOutput {
        /// Program path.
        path: PathBuf,
        /// Prompt tokens.
        prompt: usize,
        /// Tokens to write.
        tokens: usize,
        /// Description of the output.
        found: String,
    },
}

//! Subcommands, one module each.
//!
//! JSON and generated text go to standard output, messages for users to standard error.

mod analyse;
mod bench;
mod chat;
mod clean;
mod compile;
mod conversation;
mod documents;
mod eval;
mod export;
mod failure;
mod generation;
mod inspect;
mod plan;
mod progress;
mod report;
mod run;
mod schema;
mod tokenize;
mod verify;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use htc_formats::gguf::Gguf;
use htc_formats::htz::Htz;
use htc_formats::map::MappedFile;
use htc_formats::source::is_in_folder;
use htc_kernels::cuda::DeviceError;
use htc_loader::backend::PlannedSession;
use htc_loader::device::{DeviceWork, Executor};
use htc_loader::dial::{ActiveFraction, ActiveSetting};
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Backend, ExecError, Model, Pool};
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::cli::{Command, DeviceArgs, Document};
use crate::app::interrupt::Interrupt;
use crate::app::terminal::{self, ignore_closed_pipe, shorten_message};
use crate::app::version;
use crate::calibrate::PassError;
use crate::system::error::FileError;
use crate::system::show::{format_bytes, format_count};
use crate::system::text::{self, Corpus};
use crate::system::{disk, memory};
pub use failure::{Failure, InFile, Task};

/// Executes a subcommand.
///
/// # Errors
/// [`Failure`], for display.
pub fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::Compile(args) => compile::execute(&args),
        Command::Plan(args) => plan::execute(&args),
        Command::Analyse(args) => analyse::execute(&args),
        Command::Eval(args) => eval::execute(&args),
        Command::Bench(args) => bench::execute(&args),
        Command::Report(args) => report::execute(&args),
        Command::Run(args) => run::execute(&args),
        Command::Chat(args) => chat::execute(&args),
        Command::Export(args) => export::execute(&args),
        Command::Clean(args) => clean::execute(&args),
        Command::Inspect(args) => inspect::execute(&args),
        Command::Verify(args) => verify::execute(&args),
        Command::Tokenize(args) => tokenize::execute(&args),
        Command::Schema(args) => schema::execute(&args),
        Command::Completions(args) => documents::print_completions(&args),
        Command::Man(args) => documents::write_manual(&args),
        Command::RenderChatTemplate => crate::app::chat::serve().map_err(Failure::Served),
    }
}

fn interrupted(error: impl Into<Failure>, interrupt: &Interrupt) -> Failure {
    let error = error.into();
    match interrupt.kept_folder() {
        _ if error.is_cancelled() => Failure::Interrupted(interrupt.message()),
        Some(folder) => Failure::Kept {
            error: Box::new(error),
            folder,
        },
        None => error,
    }
}

/// Prints an error on one line.
pub fn print_error(message: &str) {
    say!("htc: {}", shorten_message(message));
}

/// Prints the version on standard output, and returns the exit code.
pub fn print_version() -> ExitCode {
    match answer!("{}", version::describe()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            print_error(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Converts a usage error to one line.
pub fn one_line(message: &str) -> String {
    let said = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .map(|line| {
            line.strip_prefix("tip: ")
                .map_or(format!(" {line}"), |tip| format!("; {tip}"))
        })
        .collect::<String>();
    format!("{}; see --help", said.trim_start())
}

enum Opened {
    Gguf(Gguf),
    Htz(Box<Htz>),
    Folder(PathBuf),
}

fn open_container(path: &Path) -> Result<Opened, Failure> {
    if path.is_dir() {
        return Ok(Opened::Folder(path.to_owned()));
    }
    if is_in_folder(path) {
        return Ok(Opened::Folder(disk::folder_of(path).to_owned()));
    }
    let map = MappedFile::open(path)?;
    if map.starts_with(&htc_formats::htz::MAGIC) {
        Ok(Opened::Htz(Box::new(Htz::open(path)?)))
    } else {
        Ok(Opened::Gguf(Gguf::open(path)?))
    }
}

fn print_device_remarks(executor: &impl Executor) {
    if let Some(remark) = executor.remark() {
        say!("htc: warning: {}", shorten_message(&remark));
    }
}

/// Checks that sessions fit into the memory: a small file may claim any number of heads.
fn check_memory(path: &Path, sessions: &[PlannedSession], threads: usize) -> Result<(), Failure> {
    let bytes = sessions.iter().map(|session| {
        let hyper = session.model.hyper();
        memory::session_bytes(hyper, session.positions, threads, session.kind)
    });
    let needed = bytes.fold(0, u64::saturating_add);
    match memory::available() {
        Some(free) if needed > free => Err(Failure::Memory {
            path: path.into(),
            needed,
            free,
        }),
        _ => Ok(()),
    }
}

fn open_model(path: &Path) -> Result<Arc<Model>, Failure> {
    loaded(path, Model::open(path)).map(Arc::new)
}

/// Runs work on the requested device. With automatic choice and no GPU, prints the reason
/// afterwards.
fn on_device<T>(
    args: DeviceArgs,
    pool: &Arc<Pool>,
    work: impl DeviceWork<Outcome = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut missing = None;
    // A machine without a driver is the usual case, of which nobody has to hear.
    let told = |error: &ExecError| {
        let cause = match error {
            ExecError::Device(cause) => cause.downcast_ref(),
            _ => None,
        };
        if cause != Some(&DeviceError::NoDriverLibrary) {
            missing = Some(error.to_string());
        }
    };
    let done = args.device.execute(pool, told, work)??;
    if let Some(why) = missing {
        say!("on the processor: {why}");
    }
    Ok(done)
}

fn open_included_source(path: &Path, model: &Model) -> Result<Arc<Model>, Failure> {
    let source = loaded(path, model.source())?;
    let source = source.ok_or_else(|| Failure::NoSealedSource(path.to_owned()))?;
    Ok(Arc::new(source))
}

fn loaded<T>(path: &Path, model: Result<T, ExecError>) -> Result<T, Failure> {
    match model {
        // Names its file itself.
        Err(ExecError::Source(error)) => Err(error.into()),
        model => model.map_err(Failure::Load).in_file(path),
    }
}

/// An error of an evaluation names the file at fault.
fn evaluated<T>(
    result: Result<T, PassError>,
    [model, reference, text]: [&Path; 3],
) -> Result<T, Failure> {
    let path = match &result {
        Err(PassError::TextTooShort { .. }) => text,
        Err(PassError::Reference(_)) => reference,
        _ => model,
    };
    result.in_file(path)
}

fn setting_for_fraction(
    model: &Model,
    fraction: Option<ActiveFraction>,
) -> Result<ActiveSetting, ExecError> {
    let fraction = fraction.map(|fraction| model.dial().setting_for(fraction));
    Ok(fraction.transpose()?.unwrap_or(ActiveSetting::FULL))
}

fn describe_setting<B: Backend>(model: &Model<B>, setting: ActiveSetting) -> String {
    let dial = model.dial();
    let used = setting.refinements.min(dial.refinements());
    let all = dial.refinements();
    let refinements = match all {
        0 => String::new(),
        _ => format!("{used} of {}, ", format_count(all, "refinement")),
    };
    format!(
        "{refinements}{} of weights for every token ({:.1} % of {})",
        format_bytes(dial.active_bytes(setting)),
        100.0 * dial.fraction(setting),
        format_bytes(dial.active_bytes(ActiveSetting::FULL)),
    )
}

fn open_tokenizer(path: &Path, model: &Model) -> Result<Tokenizer, Failure> {
    let vocabulary = model.file().vocabulary.clone();
    vocabulary.and_then(Tokenizer::new).in_file(path)
}

/// Checks that a new file can be written, or a file replaced if that is forced.
fn check_output(path: &Path, force: bool) -> Result<(), Failure> {
    if !force && path.symlink_metadata().is_ok() {
        return Err(Failure::OutputExists(path.into()));
    }
    Ok(disk::check_writable(path)?)
}

/// JSON document with the name of its schema.
#[derive(JsonSchema, Serialize)]
struct Versioned<T> {
    /// Name and version of the schema that `htc schema` prints.
    schema: &'static str,
    /// Version of the program that wrote the document.
    htc: &'static str,
    #[serde(flatten)]
    value: T,
}

impl<T> Versioned<T> {
    fn new(document: Document, value: T) -> Self {
        Versioned {
            schema: document.schema_name(),
            htc: env!("CARGO_PKG_VERSION"),
            value,
        }
    }
}

fn print_json(document: Document, value: &impl Serialize) -> Result<(), Failure> {
    print_value(&Versioned::new(document, value))
}

fn print_value(value: &impl Serialize) -> Result<(), Failure> {
    answered(terminal::write_json(value, io::stdout().lock()))
}

fn write_json(
    path: &Path,
    document: Document,
    value: &impl Serialize,
    replace: bool,
) -> Result<(), Failure> {
    let value = Versioned::new(document, value);
    let json = serde_json::to_string_pretty(&value).map_err(io::Error::from);
    let json = json.map_err(FileError::write(path))? + "\n";
    Ok(disk::write(path, &json, replace)?)
}

/// Returns the failure of a write to standard output, unless its reader has gone.
fn answered(written: io::Result<()>) -> Result<(), Failure> {
    written.or_else(ignore_closed_pipe).map_err(Failure::Output)
}

/// Reads a text to measure on, and prints remarks on it.
fn read_corpus(path: &Path) -> Result<String, Failure> {
    let Corpus { text, remarks } = text::read_corpus(path)?;
    for remark in remarks {
        say!("htc: note: {remark}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests;

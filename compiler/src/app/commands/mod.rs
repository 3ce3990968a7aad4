//! Subcommands, one module each.
//!
//! JSON and generated text go to standard output, messages for users to standard error.

mod analyse;
mod bench;
mod clean;
mod compile;
mod eval;
mod export;
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
use std::sync::Arc;

use htc_formats::gguf::Gguf;
use htc_formats::htz::{Digest, Htz, HtzError};
use htc_formats::learnt::TrainedDraftError;
use htc_formats::map::{MapError, MappedFile};
use htc_formats::source::{SourceError, is_in_folder};
use htc_formats::vocab::VocabularyError;
use htc_loader::device::{DeviceChoiceError, DeviceWork, Executor};
use htc_loader::dial::{ActiveFraction, ActiveSetting};
use htc_loader::generate::GenerateError;
use htc_loader::live::LiveError;
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Backend, ExecError, LoadError, Model, Pool};
use thiserror::Error;

use crate::app::chat::{self, ChatError};
use crate::app::cli::{Command, DeviceArgs};
use crate::app::flags;
use crate::app::interrupt::{INTERRUPTED, Interrupt};
use crate::app::terminal::{self, shorten_message};
use crate::bench::BenchError;
use crate::bench::gates::GateError;
use crate::bench::slope::SlopeError;
use crate::calibrate::CalibrateError;
use crate::export::ExportError;
use crate::geometry::probe::ProbeError;
use crate::measure::EvaluateError;
use crate::page::PageError;
use crate::page::input::InputError;
use crate::pipeline::CompileError;
use crate::pipeline::clean::CleanError;
use crate::plan::json::PlanFileError;
use crate::system::memory;
use crate::system::show::{format_bytes, format_count};
use crate::system::text::TextError;

/// Exit code of a failure of files or of the machine.
pub const FAILURE: u8 = 1;
/// Exit code of wrong usage.
pub const USAGE: u8 = 2;

/// Error of a command, with a one-line message.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant is what its message says")]
pub enum Failure {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("{0}")]
    Interrupted(String),
    #[error(
        "{error}; what is finished is kept in {}, and the same command goes on with it",
        terminal::display_path(folder)
    )]
    Kept {
        error: Box<Failure>,
        folder: PathBuf,
    },
    #[error(transparent)]
    Device(#[from] DeviceChoiceError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Htz(#[from] HtzError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{}: {error}", path.display())]
    Load { path: PathBuf, error: LoadError },
    #[error("{}: {error}", path.display())]
    Vocabulary {
        path: PathBuf,
        error: VocabularyError,
    },
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("{}: {error}", path.display())]
    Evaluate { path: PathBuf, error: EvaluateError },
    #[error("{}: {error}", path.display())]
    Generate { path: PathBuf, error: GenerateError },
    #[error("{}: it was made from a model with the digest {expected}, and {} has {found}; give that model", draft.display(), verifier.display())]
    OtherSource {
        draft: PathBuf,
        verifier: PathBuf,
        expected: Digest,
        found: Digest,
    },
    #[error("{}: not an artifact, so that nothing says which model it was made from; draft with it by `htc run MODEL --speculate`", .0.display())]
    NoSource(PathBuf),
    #[error("{}: the weights of no source lie in it; give the model itself instead of `source`, or compile it with --with-source", .0.display())]
    NoSealedSource(PathBuf),
    #[error(
        "--verifier lets the artifact itself draft; --speculate takes a fraction of it there, not a model"
    )]
    TwoDrafts,
    #[error(
        "--adapt, --adapt-state and --draft-length are of a draft, and there is none; give --speculate or --verifier"
    )]
    NoDraft,
    #[error("--adapt-state is of what a draft learns; give --adapt oja or gradient")]
    StateWithoutAdaptation,
    #[error(transparent)]
    AdaptationState(#[from] TrainedDraftError),
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error("the model cannot follow its device: {0}")]
    Monitoring(String),
    #[error(transparent)]
    Sampling(#[from] GenerateError),
    #[error(transparent)]
    Pool(#[from] htc_kernels::PoolError),
    #[error("{}: {error}", path.display())]
    Chat { path: PathBuf, error: ChatError },
    #[error(
        "the words spell {token:?}, or a part of it, which the model reads as a control token, and its chat template changes them so that they cannot be told from its own; say it otherwise"
    )]
    SpeltControlToken { token: String },
    #[error("{}: executing it takes {} of memory beside the mapped file, {} are free; give fewer tokens, or a smaller model", path.display(), format_bytes(*needed), format_bytes(*free))]
    Memory {
        path: PathBuf,
        needed: u64,
        free: u64,
    },
    #[error("{0}")]
    Served(String),
    #[error("no prompt: give -p TEXT, --prompt-file FILE, or pipe a text into standard input")]
    NoPrompt,
    #[error("{}: a model carries no digests to verify; compile it to a .htz first", .0.display())]
    NoDigests(PathBuf),
    #[error("{}: {faults} of {items} parts are damaged, the first: {first}, or compile it anew", path.display())]
    Damaged {
        path: PathBuf,
        faults: usize,
        items: usize,
        first: HtzError,
    },
    #[error("--layer {layer}: {} has {}, counted from 0; give a lower one", path.display(), format_count(*layers, "layer"))]
    NoSuchLayer {
        path: PathBuf,
        layer: usize,
        layers: usize,
    },
    #[error("{}: every digest is right, but layer {layer} has other spectra than the artifact says ({projections}); compile it anew", path.display())]
    Probe {
        path: PathBuf,
        layer: usize,
        projections: String,
    },
    #[error("{}: {error}", path.display())]
    Spectra { path: PathBuf, error: ProbeError },
    #[error(
        "{option}: --dry-run does not measure, which a limit on factors requires; omit one of them, or pass --method quantise"
    )]
    DrySearch { option: &'static str },
    #[error("{}: exists already; give another -o, or replace it with --force", .0.display())]
    PlanExists(PathBuf),
    #[error(transparent)]
    Page(#[from] InputError),
    #[error(transparent)]
    Report(#[from] PageError),
    #[error("{}: this is one of the files that are read; give another -o", .0.display())]
    PageOverInput(PathBuf),
    #[error("--report {}: exists already; give another name, or replace it with --force", .0.display())]
    ReportExists(PathBuf),
    #[error("--report {}: this is {what}; give another name", path.display())]
    ReportPath { path: PathBuf, what: &'static str },
    #[error("{}: cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Clean(#[from] CleanError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Slope(#[from] SlopeError),
    #[error("{failed} of {all} gates failed, the first: {first}")]
    Gates {
        failed: usize,
        all: usize,
        first: String,
    },
    #[error("{}: no GGUF, and llama.cpp executes nothing else; give it one with --against-model FILE", .0.display())]
    NotGguf(PathBuf),
    #[error(
        "--against-model: it says what llama.cpp executes, with --against llama.cpp:BIN; give a model to --against itself"
    )]
    AgainstModel,
    #[error("standard output: {0}")]
    Output(io::Error),
}

impl Failure {
    /// Returns [`USAGE`] if another command line is the remedy.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Kept { error, .. } => error.exit_code(),
            Failure::Compile(CompileError::PlanFile(PlanFileError::Read { .. })) => FAILURE,
            Failure::Compile(
                CompileError::Plan(_)
                | CompileError::PlanFile(_)
                | CompileError::Planes { .. }
                | CompileError::KernelsNotBuilt
                | CompileError::Device(DeviceChoiceError::NotBuilt { .. })
                | CompileError::SameFile(_)
                | CompileError::NoSuchLayer { .. }
                | CompileError::Options(_)
                | CompileError::Calibrate(
                    CalibrateError::FewTokens { .. }
                    | CalibrateError::LongContext { .. }
                    | CalibrateError::HeldOutIsText(_)
                    | CalibrateError::DuplicateText(_)
                    | CalibrateError::InvalidWeight(_),
                ),
            )
            | Failure::Device(DeviceChoiceError::NotBuilt { .. })
            | Failure::NoPrompt
            | Failure::NoSource(_)
            | Failure::NoSealedSource(_)
            | Failure::TwoDrafts
            | Failure::Live(
                LiveError::Thresholds { .. }
                | LiveError::MinFraction(_)
                | LiveError::Hysteresis { .. }
                | LiveError::Recovery(_)
                | LiveError::PowerCap(_),
            )
            | Failure::NoDraft
            | Failure::StateWithoutAdaptation
            | Failure::Bench(BenchError::TooLong { .. })
            | Failure::Gate(GateError::NotMeasured { .. } | GateError::OtherRanks { .. })
            | Failure::NotGguf(_)
            | Failure::AgainstModel
            | Failure::PageOverInput(_)
            | Failure::Export(
                ExportError::SameFile(_) | ExportError::NotAFloat(_) | ExportError::NoFactors,
            )
            | Failure::DrySearch { .. }
            | Failure::NoSuchLayer { .. }
            | Failure::Chat {
                error: ChatError::NoTemplate,
                ..
            }
            | Failure::ReportPath { .. } => USAGE,
            Failure::Interrupted(_) => INTERRUPTED,
            _ => FAILURE,
        }
    }

    /// Returns further details, one per line.
    pub fn details(&self) -> Vec<String> {
        match self {
            Failure::Kept { error, .. } => error.details(),
            Failure::Compile(CompileError::PlanFile(PlanFileError::Misfits {
                misfits, ..
            })) if misfits.count > 1 => misfits.to_string().lines().map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the message with options as on the command line.
    pub fn message(&self) -> String {
        let message = match self {
            Failure::Kept { error, folder } => {
                return format!("{}; {}", error.message(), kept_note(folder));
            }
            // Their backticks quote keys of files, which may equal option names.
            Failure::Htz(_)
            | Failure::Source(_)
            | Failure::Load { .. }
            | Failure::Vocabulary { .. }
            | Failure::Damaged { .. }
            | Failure::Page(_)
            | Failure::Gate(GateError::Schema { .. })
            | Failure::Live(_)
            | Failure::Slope(SlopeError::Schema { .. } | SlopeError::Differs { .. })
            | Failure::Export(ExportError::Htz(_) | ExportError::Reopened(_))
            | Failure::Compile(
                CompileError::Source(_)
                | CompileError::Vocabulary { .. }
                | CompileError::Seal(_)
                | CompileError::PlanFile(
                    PlanFileError::Syntax { .. } | PlanFileError::Misfits { .. },
                ),
            ) => self.to_string(),
            _ => flags::with_option_names(&self.to_string()),
        };
        match self.option() {
            Some(remedy) => format!("{message} ({remedy})"),
            None => message,
        }
    }

    fn option(&self) -> Option<&'static str> {
        match self {
            Failure::Kept { error, .. } => error.option(),
            Failure::Compile(CompileError::Seal(HtzError::Exists { .. }))
            | Failure::Export(ExportError::Htz(HtzError::Exists { .. })) => Some("--force"),
            Failure::Evaluate {
                error:
                    EvaluateError::Exec(ExecError::KvRange { .. })
                    | EvaluateError::Reference(ExecError::KvRange { .. }),
                ..
            }
            | Failure::Generate {
                error: GenerateError::Exec(ExecError::KvRange { .. }),
                ..
            } => Some("--kv f32"),
            _ => None,
        }
    }
}

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
        Command::Export(args) => export::execute(&args),
        Command::Clean(args) => clean::execute(&args),
        Command::Inspect(args) => inspect::execute(&args),
        Command::Verify(args) => verify::execute(&args),
        Command::Tokenize(args) => tokenize::execute(&args),
        Command::Schema(args) => schema::execute(&args),
        Command::RenderChatTemplate => chat::serve().map_err(Failure::Served),
    }
}

fn kept_note(folder: &Path) -> String {
    let folder = terminal::display_path(folder);
    format!("what is finished is kept in {folder}, and the same command goes on with it")
}

fn interrupted(error: CompileError, interrupt: &Interrupt) -> Failure {
    match (error, interrupt.kept_folder()) {
        (CompileError::Cancelled(_), _) => Failure::Interrupted(interrupt.message()),
        (error, Some(folder)) => Failure::Kept {
            error: Box::new(error.into()),
            folder,
        },
        (error, None) => error.into(),
    }
}

/// Prints an error on one line.
pub fn print_error(message: &str) {
    say!("htc: {}", shorten_message(message));
}

/// Converts a usage error to one line.
pub fn one_line(message: &str) -> String {
    let said: Vec<&str> = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    format!("{}; see --help", said.join(" "))
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
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        return Ok(Opened::Folder(folder.unwrap_or(Path::new(".")).to_owned()));
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

/// A small file may claim any number of heads.
fn check_memory(path: &Path, needed: u64) -> Result<(), Failure> {
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
    let model = Model::open(path).map(Arc::new);
    model.map_err(|error| load_failure(path, error))
}

/// Runs work on the requested device. With automatic choice and no GPU, prints the reason
/// afterwards.
fn on_device<T>(
    args: DeviceArgs,
    pool: &Arc<Pool>,
    work: impl DeviceWork<Outcome = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut missing = None;
    let told = |error: &DeviceChoiceError| missing = Some(error.to_string());
    let done = args.device.execute(pool, told, work)??;
    if let Some(why) = missing {
        say!("on the processor: {why}");
    }
    Ok(done)
}

fn open_included_source(path: &Path, model: &Model) -> Result<Arc<Model>, Failure> {
    let source = model.source().map_err(|error| load_failure(path, error))?;
    let source = source.ok_or_else(|| Failure::NoSealedSource(path.to_owned()))?;
    Ok(Arc::new(source))
}

fn load_failure(path: &Path, error: LoadError) -> Failure {
    match error {
        LoadError::Source(error) => Failure::Source(error),
        error => Failure::Load {
            path: path.into(),
            error,
        },
    }
}

fn setting_for_fraction(
    model: &Model,
    fraction: Option<ActiveFraction>,
) -> Result<ActiveSetting, ExecError> {
    fraction.map_or(Ok(ActiveSetting::FULL), |fraction| {
        model.dial().setting_for(fraction)
    })
}

fn describe_setting<B: Backend>(model: &Model<B>, setting: ActiveSetting) -> String {
    let dial = model.dial();
    let used = setting.refinements.min(dial.refinements());
    let all = dial.refinements();
    let refinements = match all {
        0 => String::new(),
        _ => format!("{used} of {all} refinements, "),
    };
    format!(
        "{refinements}{} of weights for every token ({:.1} % of {})",
        format_bytes(dial.active_bytes(setting)),
        100.0 * dial.fraction(setting),
        format_bytes(dial.active_bytes(ActiveSetting::FULL)),
    )
}

fn open_tokenizer(path: &Path, model: &Model) -> Result<Tokenizer, Failure> {
    let vocabulary = model
        .file()
        .vocabulary
        .clone()
        .map_err(|error| Failure::Vocabulary {
            path: path.into(),
            error,
        })?;
    Tokenizer::new(vocabulary).map_err(|error| Failure::Vocabulary {
        path: path.into(),
        error,
    })
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    terminal::write_json(value, io::stdout().lock())
        .or_else(ignore_closed_pipe)
        .map_err(Failure::Output)
}

fn ignore_closed_pipe(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn usage_errors_are_one_line() {
        let message = "error: invalid value '0' for '--rank <N|full>': a rank is\n\n  tip: x\n\nUsage: htc\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(message),
            "error: invalid value '0' for '--rank <N|full>': a rank is tip: x; see --help"
        );
    }
}

//! Errors of commands: their messages and exit codes.

use std::io;
use std::path::{Path, PathBuf};

use htc_formats::htz::{Digest, HtzError};
use htc_formats::open::OpenError;
use htc_formats::source::SourceError;
use htc_formats::vocab::VocabularyError;
use htc_loader::ExecError;
use htc_loader::live::LiveError;
use thiserror::Error;

use crate::app::cli::Command;
use crate::app::{flags, terminal};
use crate::bench::BenchError;
use crate::calibrate::PassError;
use crate::export::ExportError;
use crate::page::template::MAX_PAGE;
use crate::pipeline::{CompileError, ErrorKind};
use crate::plan::PlanError;
use crate::system::error::FileError;
use crate::system::show::{format_bytes, format_count};
use crate::unit::MakeError;

/// Error of a command, with a one-line message.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant is what its message says")]
pub enum Failure {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("{0}")]
    Interrupted(String),
    #[error("{error}; {}", kept_note(folder))]
    Kept {
        error: Box<Failure>,
        folder: PathBuf,
    },
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Htz(#[from] HtzError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{}: {error}", path.display())]
    InFile { path: PathBuf, error: Box<Failure> },
    /// A model cannot be loaded.
    #[error(transparent)]
    Load(ExecError),
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Evaluate(#[from] PassError),
    #[error("{}: it was made from a model with the digest {expected}, and {} has {found}; give that model", draft.display(), verifier.display())]
    OtherSource {
        draft: PathBuf,
        verifier: PathBuf,
        expected: Digest,
        found: Digest,
    },
    #[error("{}: not an artifact, so that nothing says which model it was made from; draft with it by `htc run MODEL --draft`", .0.display())]
    NoSource(PathBuf),
    #[error("{}: this artifact does not contain its source's weights; pass the source model, or compile it again with --with-source", .0.display())]
    NoSealedSource(PathBuf),
    #[error(
        "--verifier lets the artifact itself draft; --draft takes a fraction of it there, not a model"
    )]
    TwoDrafts,
    #[error("--adapt, --adapt-state and --draft-length require --draft or --verifier")]
    NoDraft,
    #[error("--adapt-state requires --adapt oja or --adapt gradient")]
    StateWithoutAdaptation,
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error("the model cannot follow its device: {0}")]
    Monitoring(String),
    #[error(transparent)]
    Pool(#[from] htc_kernels::PoolError),
    #[error(
        "the model has no chat template, or an empty one; `htc run` without --chat continues a text as it is"
    )]
    NoTemplate,
    #[error(
        "the model's chat template fails: {0}; `htc run` without --chat continues a text as it is"
    )]
    Template(String),
    #[error("the process for the chat template cannot be used: {0}")]
    TemplateProcess(io::Error),
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
    #[error("no prompt: give -p TEXT, -f FILE, or pipe a text into standard input")]
    NoPrompt,
    #[error("{0} is empty; give -p TEXT, -f FILE, or pipe a text into standard input")]
    EmptyPrompt(String),
    /// A measured number is infinite or NaN.
    #[error("{}: {name} is {value}, expected a finite number: the loss is too large for the model to have learnt such text; check the model with `htc verify`, and the text", path.display())]
    NotFinite {
        path: PathBuf,
        name: &'static str,
        value: f64,
    },
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
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error(
        "{option}: --dry-run does not measure, which a limit on factors requires; omit one of them, or pass --method quantise"
    )]
    DrySearch { option: &'static str },
    #[error("{}: exists already; give another -o, or replace it with --force", .0.display())]
    OutputExists(PathBuf),
    #[error(
        "the page would have more than {MAX_PAGE} bytes, which no browser shows well; give fewer files at a time"
    )]
    PageTooLarge,
    #[error("{}: this is one of the files that are read; give another -o", .0.display())]
    PageOverInput(PathBuf),
    #[error("{}: expected a file, because the analysis is a second page beside it; give -o FILE.html, or the analyses in a command of their own", .0.display())]
    PageWithoutFolder(PathBuf),
    #[error("--report {}: exists already; give another name, or replace it with --force", .0.display())]
    ReportExists(PathBuf),
    #[error("--report {}: this is {what}; give another name", path.display())]
    ReportPath { path: PathBuf, what: &'static str },
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Bench(#[from] BenchError),
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
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("--ctx-size {asked}: the model was trained for {limit} positions; give at most that")]
    ContextSize { asked: usize, limit: usize },
    #[error("{0}")]
    Usage(&'static str),
}

/// Names the file of an error.
pub trait InFile<T> {
    /// Puts the path before the message of an error.
    fn in_file(self, path: &Path) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> InFile<T> for Result<T, E> {
    fn in_file(self, path: &Path) -> Result<T, Failure> {
        self.map_err(|error| Failure::InFile {
            path: path.into(),
            error: Box::new(error.into()),
        })
    }
}

impl Failure {
    /// Returns the error without the file that it is in.
    fn cause(&self) -> &Failure {
        match self {
            Failure::InFile { error, .. } => error.cause(),
            _ => self,
        }
    }

    /// Returns true if the user cancelled the work.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(
            self.cause(),
            Failure::Compile(CompileError::Cancelled(_))
                | Failure::Export(ExportError::Cancelled(_))
                | Failure::Bench(BenchError::Cancelled(_))
                | Failure::Evaluate(PassError::Cancelled(_))
        )
    }

    /// Returns the kind, on which the exit code depends.
    pub fn kind(&self) -> ErrorKind {
        match self.cause() {
            Failure::Kept { error, .. } => error.kind(),
            Failure::Compile(error) => error.kind(),
            Failure::Interrupted(_) => ErrorKind::Interrupted,
            Failure::Exec(ExecError::NotBuilt { .. })
            | Failure::NoPrompt
            | Failure::EmptyPrompt(_)
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
            | Failure::ContextSize { .. }
            | Failure::Usage(_)
            | Failure::StateWithoutAdaptation
            | Failure::Bench(
                BenchError::TooLong { .. }
                | BenchError::NotMeasured { .. }
                | BenchError::OtherRanks { .. },
            )
            | Failure::NotGguf(_)
            | Failure::AgainstModel
            | Failure::PageOverInput(_)
            | Failure::PageWithoutFolder(_)
            | Failure::Export(
                ExportError::SameFile(_) | ExportError::NotAFloat(_) | ExportError::NoFactors,
            )
            | Failure::DrySearch { .. }
            | Failure::NoSuchLayer { .. }
            | Failure::NoTemplate
            | Failure::ReportPath { .. } => ErrorKind::Usage,
            _ => ErrorKind::Failure,
        }
    }

    /// Returns further details, one per line.
    pub fn details(&self) -> Vec<String> {
        match self {
            Failure::Kept { error, .. } => error.details(),
            Failure::Compile(CompileError::Plan(PlanError::FileMisfits { misfits, .. }))
                if misfits.count > 1 =>
            {
                misfits.to_string().lines().map(str::to_owned).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns `cannot DO FILE: REASON`, with options as on the command line; only the reason if
    /// the command was interrupted, or its work was done and found a fault.
    pub fn message(&self, task: &Task) -> String {
        match self {
            Failure::Interrupted(_)
            | Failure::Served(_)
            | Failure::Gates { .. }
            | Failure::Damaged { .. }
            | Failure::Probe { .. } => self.reason(),
            _ => task.failed(&self.reason()),
        }
    }

    fn reason(&self) -> String {
        let message = self.to_string();
        match self.cause() {
            Failure::Kept { error, folder } => {
                format!("{}; {}", error.reason(), kept_note(folder))
            }
            // Their backticks quote keys of files, which may equal option names.
            Failure::Htz(_)
            | Failure::Source(_)
            | Failure::Load(_)
            | Failure::Vocabulary(_)
            | Failure::Damaged { .. }
            | Failure::Live(_)
            | Failure::File(
                FileError::Syntax { .. }
                | FileError::Damaged { .. }
                | FileError::Version { .. }
                | FileError::Artifact(_),
            )
            | Failure::Bench(
                BenchError::File(FileError::Syntax { .. })
                | BenchError::Sensor(_)
                | BenchError::Differs { .. },
            )
            | Failure::Export(ExportError::Htz(_) | ExportError::Reopened(_))
            | Failure::Compile(
                CompileError::Source(_)
                | CompileError::Vocabulary { .. }
                | CompileError::Seal(_)
                | CompileError::Plan(PlanError::FileSyntax { .. } | PlanError::FileMisfits { .. }),
            ) => message,
            Failure::Evaluate(
                PassError::Evaluate(ExecError::KvRange { .. })
                | PassError::Reference(ExecError::KvRange { .. }),
            )
            | Failure::Exec(ExecError::KvRange { .. })
            | Failure::Bench(BenchError::Generate {
                error: ExecError::KvRange { .. },
                ..
            }) => format!("{message}, else keep the KV cache in float32 (--kv f32)"),
            // There the option has another name than in a compilation.
            Failure::Evaluate(PassError::TextTooShort { .. }) => {
                message.replace("`context`", "--ctx-size")
            }
            _ => flags::with_option_names(&message),
        }
    }
}

fn kept_note(folder: &Path) -> String {
    let folder = terminal::display_path(folder);
    format!("what is finished is kept in {folder}, and the same command goes on with it")
}

/// The task of a command, for messages of its failure.
#[derive(Clone, Debug)]
pub struct Task {
    verb: &'static str,
    file: Option<PathBuf>,
}

impl Task {
    /// Returns the task of a command.
    pub fn from_command(command: &Command) -> Task {
        let (verb, file) = match command {
            Command::Compile(args) => ("compile", Some(&*args.input)),
            Command::Plan(args) => ("plan", Some(&*args.input)),
            Command::Analyse(args) => ("analyse", Some(&*args.input)),
            Command::Eval(args) => ("evaluate", Some(&*args.model)),
            Command::Bench(args) => ("benchmark", Some(&*args.model)),
            Command::Run(args) => ("run", Some(args.model.path())),
            Command::Chat(args) => ("talk with", Some(args.model.path())),
            Command::Export(args) => ("export", Some(&*args.artifact)),
            Command::Inspect(args) => ("inspect", Some(&*args.file)),
            Command::Verify(args) => ("verify", Some(&*args.file)),
            Command::Tokenize(args) => ("tokenize with", Some(&*args.model)),
            Command::Report(_) => ("make the page", None),
            Command::Clean(_) => ("clean up", None),
            Command::Schema(_) => ("print the schema", None),
            Command::Completions(_) => ("print the completions", None),
            Command::Man(_) => ("write the manual", None),
            Command::RenderChatTemplate => ("render the chat template", None),
        };
        let file = file.map(Path::to_owned);
        Task { verb, file }
    }

    fn failed(&self, reason: &str) -> String {
        let verb = self.verb;
        let Some(file) = &self.file else {
            return format!("cannot {verb}: {reason}");
        };
        let file = file.display().to_string();
        let reason = reason
            .strip_prefix(&file)
            .and_then(|of| of.strip_prefix(": "))
            .unwrap_or(reason);
        format!("cannot {verb} {file}: {reason}")
    }
}

#[cfg(test)]
mod tests;

//! Errors of a compilation.

use std::path::PathBuf;

use htc_formats::htz::HtzError;
use htc_formats::source::SourceError;
use htc_formats::vocab::VocabularyError;
use htc_kernels::PoolError;
use htc_loader::ExecError;
use thiserror::Error;

use crate::calibrate::PassError;
use crate::choose::TrialError;
use crate::event::Cancelled;
use crate::options::OptionError;
use crate::plan::PlanError;
use crate::system::show::format_count;
use crate::unit::MakeError;

/// Errors of a compilation. Options are named as methods of [`Compiler`](crate::Compiler), in
/// backticks.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum CompileError {
    /// The source is missing, damaged or not supported.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The source is already an artifact.
    #[error("{}: an artifact already; compile from the model it was made from", .0.display())]
    AlreadyCompiled(PathBuf),
    /// The source has no usable vocabulary.
    #[error("{}: {error}", path.display())]
    Vocabulary {
        path: PathBuf,
        error: VocabularyError,
    },
    /// GPU kernels cannot be compiled.
    #[error("{0}; give other architectures with `kernels`, or none")]
    Kernels(String),
    /// NVRTC is not installed.
    #[error(
        "{0}, which compiles kernels for GPUs; install it where the system finds libnvrtc, as PyPI's nvidia-cuda-nvrtc has it, or leave `kernels` out"
    )]
    NoKernelCompiler(String),
    /// Kernels are requested from a build without the feature cuda.
    #[error(
        "this build compiles no kernels for GPUs; build it with the feature cuda, or go without them"
    )]
    KernelsNotBuilt,
    /// The device does not exist, or its memory is too small.
    #[error("`device`: {0}")]
    Device(ExecError),
    /// The thread pool cannot be created.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Input and output are the same file.
    #[error("{}: the output is the same file as the input, or one of the input's; give another `output`", .0.display())]
    SameFile(PathBuf),
    /// The output exists.
    #[error("{}: exists already; give another `output`, or replace it with `overwrite`", .0.display())]
    OutputExists(PathBuf),
    /// The source changed during the compilation.
    #[error("{}: it changed while it was compiled; nothing is sealed. Let nothing write to it, and compile it again", .0.display())]
    SourceChanged(PathBuf),
    /// A pass of a text through the model failed.
    #[error(transparent)]
    Pass(PassError),
    /// No plan satisfies the request.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The request cannot be stored as two planes.
    #[error("`planes` 2: {why}")]
    Planes { why: &'static str },
    /// Options contradict each other or the plan.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// The disk space does not suffice for the artifact.
    #[error("{}: no space: {needed} bytes are needed, {free} are free there; free some, give another `output`, or compress more", path.display())]
    NoSpace {
        path: PathBuf,
        needed: u64,
        free: u64,
    },
    /// The memory does not suffice.
    #[error(
        "no memory: about {needed} bytes are needed, {available} are available; end other programs, or give fewer `threads`"
    )]
    NoMemory { needed: u64, available: u64 },
    /// A unit, a stored tensor or a thread fails.
    #[error(transparent)]
    Make(MakeError),
    /// The layer to probe does not exist.
    #[error(
        "`probe_layer` {layer}: the model has {}, counted from 0; give a lower one", format_count(*layers, "layer")
    )]
    NoSuchLayer { layer: usize, layers: usize },
    /// The search over candidates failed.
    #[error(transparent)]
    Trial(TrialError),
    /// The compilation was cancelled; the same one resumes from the finished work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The artifact cannot be written.
    #[error(transparent)]
    Seal(HtzError),
}

/// Kind of an error, by its remedy. It gives the exit code of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A file or the machine is at fault: exit code 1.
    Failure,
    /// Other options are the remedy: exit code 2.
    Usage,
    /// The work was interrupted: exit code 130, by shell convention 128 + SIGINT.
    Interrupted,
}

impl ErrorKind {
    /// Returns the exit code.
    pub const fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Failure => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Interrupted => 130,
        }
    }
}

impl CompileError {
    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            CompileError::Cancelled(_) => ErrorKind::Interrupted,
            CompileError::Plan(PlanError::ReadFile { .. }) => ErrorKind::Failure,
            CompileError::Plan(_)
            | CompileError::Planes { .. }
            | CompileError::KernelsNotBuilt
            | CompileError::Device(ExecError::NotBuilt { .. })
            | CompileError::SameFile(_)
            | CompileError::NoSuchLayer { .. }
            | CompileError::Options(_)
            | CompileError::Pass(
                PassError::FewTokens { .. }
                | PassError::LongContext { .. }
                | PassError::HeldOutIsText(_)
                | PassError::DuplicateText(_)
                | PassError::InvalidWeight(_),
            ) => ErrorKind::Usage,
            _ => ErrorKind::Failure,
        }
    }
}

impl From<HtzError> for CompileError {
    fn from(error: HtzError) -> Self {
        match error {
            HtzError::Exists { path } => CompileError::OutputExists(path),
            error => CompileError::Seal(error),
        }
    }
}

impl From<MakeError> for CompileError {
    fn from(error: MakeError) -> Self {
        match error {
            MakeError::Cancelled(error) => error.into(),
            MakeError::Seal(error) => error.into(),
            MakeError::KvBasesWithoutText => PlanError::KvBasesNeedCalibration.into(),
            error => CompileError::Make(error),
        }
    }
}

impl From<PassError> for CompileError {
    fn from(error: PassError) -> Self {
        match error {
            PassError::Cancelled(error) => error.into(),
            error => CompileError::Pass(error),
        }
    }
}

impl From<TrialError> for CompileError {
    fn from(error: TrialError) -> Self {
        match error {
            TrialError::Make(error) => error.into(),
            TrialError::Plan(error) => error.into(),
            TrialError::Treatment(error) => error.into(),
            TrialError::WriteRecord(error) => error.into(),
            TrialError::Pass(error) => error.into(),
            TrialError::Cancelled(error) => error.into(),
            error => CompileError::Trial(error),
        }
    }
}

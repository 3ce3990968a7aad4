//! Errors of a compilation.

use std::path::PathBuf;

use htc_formats::htz::HtzError;
use htc_formats::source::{ModelFile, SourceError};
use htc_formats::vocab::VocabularyError;
use htc_kernels::PoolError;
use htc_loader::device::DeviceChoiceError;
use thiserror::Error;

use crate::analyse::AnalyseError;
use crate::calibrate::CalibrateError;
use crate::choose::TrialError;
use crate::event::Cancelled;
use crate::geometry::probe::ProbeError;
use crate::gradient::GradientError;
use crate::make::MakeError;
use crate::measure::EvaluateError;
use crate::options::OptionError;
use crate::order::PermutationError;
use crate::plan::PlanError;
use crate::plan::json::PlanFileError;
use crate::system::show::format_count;
use crate::tune::TuneError;
use crate::unit::UnitError;
use crate::unit::UnitsError;

/// Errors of a compilation. Options are named as methods of [`Compiler`](crate::Compiler), in
/// backticks.
#[derive(Debug, Error)]
#[non_exhaustive]
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
        /// The source.
        path: PathBuf,
        /// The fault.
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
    Device(#[from] DeviceChoiceError),
    /// The thread pool cannot be created.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Input and output are the same file.
    #[error("{}: the output is the same file as the input, or one of the input's; give another `output`", .0.display())]
    SameFile(PathBuf),
    /// The source changed during the compilation.
    #[error("{}: it changed while it was compiled; nothing is sealed. Let nothing write to it, and compile it again", .0.display())]
    SourceChanged(PathBuf),
    /// The calibration failed.
    #[error(transparent)]
    Calibrate(CalibrateError),
    /// The backward pass failed.
    #[error(transparent)]
    Gradient(GradientError),
    /// Tuned scales do not match their matrix.
    #[error(transparent)]
    Scales(MakeError),
    /// No plan satisfies the request.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The request cannot be stored as two planes.
    #[error("`planes` 2: {why}")]
    Planes {
        /// The reason, with a remedy.
        why: &'static str,
    },
    /// Options contradict each other or the plan.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// The plan file does not match this model.
    #[error(transparent)]
    PlanFile(#[from] PlanFileError),
    /// The disk space does not suffice for the artifact.
    #[error("{}: no space: {needed} bytes are needed, {free} are free there; free some, give another `output`, or compress more", path.display())]
    NoSpace {
        /// The artifact.
        path: PathBuf,
        /// Bytes of the artifact, or of two if candidates are compared.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// The memory does not suffice.
    #[error(
        "no memory: about {needed} bytes are needed, {available} are available; end other programs, or give fewer `threads`"
    )]
    NoMemory {
        /// Maximum of the needed bytes, without the mapped source.
        needed: u64,
        /// Available bytes.
        available: u64,
    },
    /// A projection cannot be factorised.
    #[error("{}: {error}", path.display())]
    Unit {
        /// The source.
        path: PathBuf,
        /// The fault of the projection.
        error: UnitError,
    },
    /// A thread cannot be started.
    #[error("no thread can be started: {0}; end other programs or raise the limit of processes")]
    Thread(#[from] std::io::Error),
    /// The depth sink cannot be measured.
    #[error(transparent)]
    Analyse(Box<AnalyseError>),
    /// The layer to probe does not exist.
    #[error(
        "`probe_layer` {layer}: the model has {}, counted from 0; give a lower one", format_count(*layers, "layer")
    )]
    NoSuchLayer {
        /// The requested layer.
        layer: usize,
        /// Number of layers of the model.
        layers: usize,
    },
    /// The spectra of the stored weights cannot be computed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The search over candidates failed.
    #[error(transparent)]
    Trial(TrialError),
    /// The compilation was cancelled; the same one resumes from the finished work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The artifact cannot be written.
    #[error(transparent)]
    Seal(#[from] HtzError),
}

impl CompileError {
    pub(super) fn from_permutation_error(
        source: &ModelFile,
        error: PermutationError,
    ) -> CompileError {
        let path = source.path.clone();
        let error = match error {
            PermutationError::Missing(role) => UnitError::Missing(role),
            PermutationError::Block { tensor, source } => UnitError::Block { tensor, source },
            PermutationError::Thread(error) => return error.into(),
            PermutationError::Cancelled(error) => return error.into(),
        };
        CompileError::Unit { path, error }
    }
}

impl From<UnitsError> for CompileError {
    fn from(error: UnitsError) -> Self {
        match error {
            UnitsError::Unit { path, error } => CompileError::Unit { path, error },
            UnitsError::Thread(error) => error.into(),
            UnitsError::Cancelled(error) => error.into(),
        }
    }
}

impl From<MakeError> for CompileError {
    fn from(error: MakeError) -> Self {
        match error {
            MakeError::Units(error) => error.into(),
            MakeError::Probe(error) => error.into(),
            MakeError::Seal(error) => error.into(),
            MakeError::KvBasesWithoutText => PlanError::KvBasesNeedCalibration.into(),
            error @ MakeError::ScaleRows { .. } => CompileError::Scales(error),
        }
    }
}

impl From<CalibrateError> for CompileError {
    fn from(error: CalibrateError) -> Self {
        match error {
            CalibrateError::Cancelled(error) => error.into(),
            error => CompileError::Calibrate(error),
        }
    }
}

impl From<GradientError> for CompileError {
    fn from(error: GradientError) -> Self {
        match error {
            GradientError::Calibrate(error) => error.into(),
            GradientError::Cancelled(error) => error.into(),
            error => CompileError::Gradient(error),
        }
    }
}

impl From<AnalyseError> for CompileError {
    fn from(error: AnalyseError) -> Self {
        match error {
            AnalyseError::Weights(error) => error.into(),
            AnalyseError::Thread(error) => error.into(),
            AnalyseError::Cancelled(error) => error.into(),
            error => CompileError::Analyse(Box::new(error)),
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
            TrialError::Cancelled(error)
            | TrialError::Tune(
                TuneError::Cancelled(error) | TuneError::Gradient(GradientError::Cancelled(error)),
            ) => error.into(),
            TrialError::Evaluate(EvaluateError::Cancelled(error)) => error.into(),
            error => CompileError::Trial(error),
        }
    }
}

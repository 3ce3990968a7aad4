//! Why a compilation fails.

use std::path::PathBuf;

use htc_formats::htz::HtzError;
use htc_formats::source::{ModelFile, SourceError};
use htc_formats::vocab::VocabularyError;
use htc_kernels::PoolError;
use htc_loader::device::ChoiceError;
use thiserror::Error;

use crate::analyse::AnalyseError;
use crate::calibrate::CalibrateError;
use crate::choose::TrialError;
use crate::event::Cancelled;
use crate::geometry::probe::ProbeError;
use crate::gradient::GradientError;
use crate::make::MakeError;
use crate::measure::EvaluateError;
use crate::order::FindError;
use crate::plan::PlanError;
use crate::plan::json::PlanFileError;
use crate::request::TreatmentError;
use crate::tune::TuneError;
use crate::unit::UnitError;
use crate::unit::UnitsError;

/// Why a compilation fails. Each message is one line with the file or option concerned; an option is
/// called as the method of [`Compiler`](crate::Compiler), in backticks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The source is missing, damaged or not supported.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The source is an artifact already.
    #[error("{}: an artifact already; compile from the model it was made from", .0.display())]
    AlreadyCompiled(PathBuf),
    /// The source has no usable vocabulary.
    #[error("{}: {error}", path.display())]
    Vocabulary {
        /// The source.
        path: PathBuf,
        /// What is wrong with it.
        error: VocabularyError,
    },
    /// Kernels for GPUs cannot be compiled.
    #[error("{0}; give other architectures with `kernels`, or none")]
    Kernels(String),
    /// There is no compiler for GPUs.
    #[error(
        "{0}, which compiles kernels for GPUs; install it where the system finds libnvrtc, as PyPI's nvidia-cuda-nvrtc has it, or leave `kernels` out"
    )]
    NoKernelCompiler(String),
    /// Kernels are asked for of a build that has no compiler for them.
    #[error(
        "this build compiles no kernels for GPUs; build it with the feature cuda, or go without them"
    )]
    KernelsNotBuilt,
    /// There is no such device, or no room on it.
    #[error("`device`: {0}")]
    Device(#[from] ChoiceError),
    /// The system gives no threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Input and output are the same file.
    #[error("{}: the output is the same file as the input, or one of the input's; give another `output`", .0.display())]
    SameFile(PathBuf),
    /// The source is not what it was at the beginning.
    #[error("{}: it changed while it was compiled; nothing is sealed. Let nothing write to it, and compile it again", .0.display())]
    SourceChanged(PathBuf),
    /// The calibration failed.
    #[error(transparent)]
    Calibrate(CalibrateError),
    /// The backward pass failed.
    #[error(transparent)]
    Gradient(GradientError),
    /// Tuned scales do not fit the matrix that they are of.
    #[error(transparent)]
    Scales(MakeError),
    /// No plan satisfies the request.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What was asked for has no planes.
    #[error("`planes` 2: {why}")]
    Planes {
        /// Why, and what has.
        why: &'static str,
    },
    /// Weights cannot be treated so.
    #[error(transparent)]
    Treatment(#[from] TreatmentError),
    /// The file with the plan is none for this model.
    #[error(transparent)]
    PlanFile(#[from] PlanFileError),
    /// The artifact cannot fit the file system.
    #[error("{}: no space: {needed} bytes are needed, {free} are free there; free some, give another `output`, or compress more", path.display())]
    NoSpace {
        /// The artifact.
        path: PathBuf,
        /// Bytes of the artifact, or of two where candidates are compared.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// The machine has not as much memory.
    #[error(
        "no memory: about {needed} bytes are needed, {available} are available; end other programs, or give fewer `threads`"
    )]
    NoMemory {
        /// What is needed at most, beside the mapped source.
        needed: u64,
        /// What is available.
        available: u64,
    },
    /// A slot cannot be factorised.
    #[error("{}: {error}", path.display())]
    Unit {
        /// The source.
        path: PathBuf,
        /// What is wrong with the slot.
        error: UnitError,
    },
    /// The system gives no thread to work with.
    #[error("no thread can be started: {0}; end other programs or raise the limit of processes")]
    Thread(#[from] std::io::Error),
    /// The depth sink cannot be measured.
    #[error(transparent)]
    Analyse(Box<AnalyseError>),
    /// There is no such layer to probe.
    #[error(
        "`probe_layer` {layer}: the model has {layers} layers, counted from 0; give a lower one"
    )]
    NoSuchLayer {
        /// The layer asked for.
        layer: usize,
        /// Those of the model.
        layers: usize,
    },
    /// The spectra of what is stored cannot be computed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No candidate is chosen.
    #[error(transparent)]
    Trial(TrialError),
    /// Somebody asked for an end; what is finished is kept, and the same compilation goes on with it.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The artifact cannot be written.
    #[error(transparent)]
    Seal(#[from] HtzError),
}

impl CompileError {
    /// Of a source that no order is found for.
    pub(super) fn of_order(source: &ModelFile, error: FindError) -> CompileError {
        let path = source.path.clone();
        let error = match error {
            FindError::Missing(role) => UnitError::Missing(role),
            FindError::Block { tensor, source } => UnitError::Block { tensor, source },
            FindError::Thread(error) => return error.into(),
            FindError::Cancelled(error) => return error.into(),
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
            MakeError::KvBasesWithoutText => PlanError::KvBasesWithoutText.into(),
            error @ (MakeError::Bands { .. } | MakeError::Block { .. }) => {
                CompileError::Scales(error)
            }
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
            TrialError::Note(error) => error.into(),
            TrialError::Cancelled(error)
            | TrialError::Tune(
                TuneError::Cancelled(error) | TuneError::Gradient(GradientError::Cancelled(error)),
            ) => error.into(),
            TrialError::Evaluate(EvaluateError::Cancelled(error)) => error.into(),
            error => CompileError::Trial(error),
        }
    }
}

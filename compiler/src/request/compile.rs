//! Compilation options.

use std::path::{Path, PathBuf};

use htc_formats::htz::GpuArchitecture;
use htc_loader::device::DeviceChoice;

use super::{CalibrationOptions, PlanRequest, QualityGoal, TargetMachine, TreatmentRequest};
use crate::system::disk::is_same_file;

/// Fraction of an elastic artifact's bytes in its bases. With less, the whole loses more than an
/// artifact without residuals; with more, less can be skipped.
pub(crate) const BASE_FRACTION: f64 = 0.6;

/// Options of a compilation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompileOptions {
    /// Path of the source model.
    pub input: PathBuf,
    /// Path of the artifact.
    pub output: PathBuf,
    /// Source of the plan.
    pub planning: PlanSource,
    /// Calibration, if any.
    pub calibration: Option<CalibrationOptions>,
    /// Explicit treatment of weights; the plan and the defaults supply the rest.
    pub treatment: TreatmentRequest,
    /// Quality goal that is reached by measuring.
    pub goal: QualityGoal,
    /// Number of planes: 1, or 2 for an elastic artifact with bases and residuals.
    pub planes: u8,
    /// Includes the source weights in the artifact, for speculative decoding with the compressed
    /// weights as draft. Sizes and limits exclude them.
    pub include_source: bool,
    /// GPU architectures to compile kernels for. The kernels are stored in the artifact, so the
    /// target needs no compiler. Sizes and limits exclude them.
    pub kernels: Vec<GpuArchitecture>,
    /// Layer recorded for a probe; by default the depth sink.
    pub probe_layer: Option<usize>,
    /// Device for calibration and evaluation of candidates.
    pub device: DeviceChoice,
    /// Threads for factorisation.
    pub threads: usize,
    /// Replaces an existing output.
    pub overwrite: bool,
}

impl CompileOptions {
    /// Returns true if a path leads to the text or to the plan.
    pub(crate) fn is_input(&self, path: &Path) -> bool {
        let of_plan = match &self.planning {
            PlanSource::File(plan) => is_same_file(plan, path),
            PlanSource::Compute { .. } => false,
        };
        let calibration = self.calibration.as_ref();
        of_plan || calibration.is_some_and(|options| options.is_text_file(path))
    }
}

/// Source of a plan.
#[derive(Clone, Debug)]
pub enum PlanSource {
    /// Computed plan.
    Compute {
        /// Requested options.
        request: PlanRequest,
        /// Target machine of the artifact.
        target: TargetMachine,
    },
    /// Plan file; see [`crate::plan::json`].
    File(PathBuf),
}

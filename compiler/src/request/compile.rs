//! What to compile, and into what.

use std::path::{Path, PathBuf};

use htc_formats::htz::Architecture;
use htc_loader::device::DeviceChoice;

use super::{CalibrationOptions, Goal, Request, Target, TreatmentRequest};
use crate::system::disk::same_place;

/// The part of an elastic artifact's bytes that its bases take. Less, and the whole is further from an artifact without
/// planes; more, and there is less to leave out.
pub(crate) const BASES: f64 = 0.6;

/// What to compile.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompileOptions {
    /// The model.
    pub input: PathBuf,
    /// The artifact.
    pub output: PathBuf,
    /// Where the plan comes from.
    pub planning: Planning,
    /// What to calibrate on, if at all.
    pub calibration: Option<CalibrationOptions>,
    /// How weights are to be treated, where that is not left to the plan and to the defaults.
    pub treatment: TreatmentRequest,
    /// What is to be reached by measuring.
    pub goal: Goal,
    /// Planes: 1, or 2 for an elastic artifact, of bases and of what they lack.
    pub planes: u8,
    /// Whether the source's weights lie in the artifact, too, behind those that they were compressed to, so that what executes it
    /// may check with the one what it drafts with the other. No size and no limit knows of them.
    pub with_source: bool,
    /// Architectures of GPUs that kernels are compiled for, which then lie in the artifact: what executes it there needs no
    /// compiler. No size and no limit knows of them.
    pub kernels: Vec<Architecture>,
    /// The layer that the artifact names for a probe; the depth sink where none is named.
    pub probe_layer: Option<usize>,
    /// What executes the model while it is calibrated on, and candidates while they are measured.
    pub device: DeviceChoice,
    /// Threads that factorise.
    pub threads: usize,
    /// Replace an existing output.
    pub overwrite: bool,
}

impl CompileOptions {
    /// Whether a path leads to the text or to the plan.
    pub(crate) fn reads(&self, path: &Path) -> bool {
        let of_plan = match &self.planning {
            Planning::File(plan) => same_place(plan, path),
            Planning::Make { .. } => false,
        };
        let calibration = self.calibration.as_ref();
        of_plan || calibration.is_some_and(|options| options.reads(path))
    }
}

/// Where a plan comes from.
#[derive(Clone, Debug)]
pub enum Planning {
    /// It is made.
    Make {
        /// What is asked for.
        request: Request,
        /// The machine that the artifact is for.
        target: Target,
    },
    /// It is read from a file; see [`crate::plan::json`].
    File(PathBuf),
}

//! Compilation options.

use std::path::{Path, PathBuf};

use htc_formats::htz::GpuArchitecture;
use htc_loader::device::DeviceChoice;

#[cfg(feature = "cli")]
use super::flags::{self, heading};
use super::{
    Allocator, CalibrationOptions, Effort, LimitOptions, Method, OptionError, PlanOptions,
    PlanRequest, QualityLimit, QualityPreset, Switch, TargetMachine, TextSource, TreatmentOptions,
};
use crate::system::disk::is_same_file;

/// Fraction of an elastic artifact's bytes in its bases. With less, the whole loses more than an
/// artifact without residuals; with more, less can be skipped.
pub(crate) const BASE_FRACTION: f64 = 0.6;

/// Requested options of a compilation or of a plan; the defaults of some depend on others.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct CompileRequest {
    #[cfg_attr(feature = "cli", command(flatten))]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub limits: LimitOptions,
    #[cfg_attr(feature = "cli", command(flatten))]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub calibration: CalibrationOptions,
    #[cfg_attr(feature = "cli", command(flatten))]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub plan: PlanOptions,
}

impl CompileRequest {
    /// Returns the source of the plan: `file` if there is one, else the resolved plan options.
    ///
    /// # Errors
    /// [`OptionError`] if options contradict each other.
    pub fn plan_source(
        &self,
        file: Option<&Path>,
        target: TargetMachine,
    ) -> Result<PlanSource, OptionError> {
        if let Some(file) = file {
            self.calibration(Some(file))?;
            return Ok(PlanSource::File(file.to_owned()));
        }
        self.plan.check()?;
        let calibrated = self.calibration(None)?.is_some();
        self.check_allocator(&target, self.plan.allocator(calibrated))?;
        Ok(PlanSource::Compute {
            request: self.plan.resolve(calibrated),
            target,
        })
    }

    /// Returns the calibration. Without a text it is on the shipped one if the method needs one and
    /// there is no plan `file`.
    ///
    /// # Errors
    /// [`OptionError::RequiresCalibration`] if options require a calibration and there is none.
    pub fn calibration(
        &self,
        file: Option<&Path>,
    ) -> Result<Option<CalibrationOptions>, OptionError> {
        let mut calibration = self.calibration.clone();
        if file.is_none() {
            let by_effort = self.plan.effort.settings().calibration_tokens;
            calibration.tokens = calibration.tokens.or(Some(by_effort));
        }
        let shrinkage = self.plan.treatment.shrinkage.map(|_| "`shrinkage`");
        if calibration.texts.is_empty() {
            if let Some(option) = shrinkage {
                return Err(OptionError::RequiresCalibration { option });
            }
            if file.is_none() && self.plan.method() == Method::Quantise {
                calibration.texts = CalibrationOptions::new(TextSource::Shipped).texts;
            } else if let Some(option) =
                self.calibration.first_given().or(self.limits.first_given())
            {
                return Err(OptionError::RequiresCalibration { option });
            } else {
                return Ok(None);
            }
        }
        Ok(Some(calibration))
    }

    /// Returns the limit. Without a limit, a budget and a plan `file` it is the
    /// [balanced preset](QualityPreset::Balanced) if the method allocates the bytes of the file.
    pub fn limit(&self, file: Option<&Path>) -> QualityLimit {
        let limit = self.limits.limit();
        let open = limit.is_none() && self.plan.budget.is_none() && file.is_none();
        if open && self.plan.method() == Method::Quantise {
            QualityPreset::default().limit()
        } else {
            limit
        }
    }

    fn check_allocator(
        &self,
        target: &TargetMachine,
        allocator: Allocator,
    ) -> Result<(), OptionError> {
        let cachefit = allocator == Allocator::CacheFit;
        let diffplan = allocator == Allocator::DiffPlan;
        let by_depth = matches!(allocator, Allocator::Phase | Allocator::Curvature);
        let given = [
            ("`gpu`", "cachefit", target.l2_bytes.is_some() && !cachefit),
            (
                "`tokens_per_joule`",
                "diffplan",
                target.tokens_per_joule.is_some() && !diffplan,
            ),
            ("`energy`", "diffplan", target.energy.is_some() && !diffplan),
            (
                "`first_positions`",
                "phase or curvature",
                self.plan.first_positions.is_some() && !by_depth,
            ),
        ];
        match given.into_iter().find(|(.., unread)| *unread) {
            Some((option, readers, _)) => Err(OptionError::RequiresAllocator {
                option,
                readers,
                allocator,
            }),
            None => Ok(()),
        }
    }
}

/// Options of an artifact besides its plan.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = heading::METHOD))]
pub struct ArtifactOptions {
    /// 2 for an elastic artifact: bases in about 60 % of the bytes, and residuals, of which htc run
    /// and htc eval may read any fraction (--fraction)
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "1|2",
            default_value_t = 1,
            hide_default_value = true,
            hide_short_help = true,
            conflicts_with = "plan",
            value_parser = clap::value_parser!(u8).range(1..=2)
        )
    )]
    pub planes: u8,
    /// Include the source's weights in OUT, so that htc run OUT --draft 1 --verifier source
    /// drafts with the compressed weights and writes the source's own text; sizes and limits
    /// exclude them
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub with_source: bool,
    /// Compile GPU kernels for these architectures into OUT, e.g. sm_80,sm_89,sm_90,sm_120, so that
    /// no compiler is needed at run time. Requires NVRTC (libnvrtc), but no GPU; sizes and limits
    /// exclude them
    #[cfg_attr(
        feature = "cli",
        arg(
            id = "cuda_arch",
            long = "cuda-arch",
            value_name = "ARCHITECTURES",
            value_delimiter = ',',
            hide_short_help = true
        )
    )]
    pub kernels: Vec<GpuArchitecture>,
    /// Steps for tuning norms and row scales on the source's logits after all matrices are stored,
    /// as long as the held-out loss improves; 0 for none [default: 20, with --effort fast 0, with
    /// high 120; 0 with research methods]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "STEPS",
            hide_short_help = true,
            allow_negative_numbers = true,
            value_parser = flags::count(0..=100_000)
        )
    )]
    pub tune: Option<usize>,
    /// Make and measure the next smaller and the next larger file in one GGUF type, as baselines in
    /// the report [default: on, with --effort fast off; with high all from half to twice its size]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "on|off",
            hide_short_help = true,
            help_heading = heading::CHECKS
        )
    )]
    pub compare: Option<Switch>,
    /// Layer that htc verify --probe checks, from 0 [default: the depth sink, measured with
    /// --calibration, else two thirds of the depth]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "N",
            hide = true,
            env = "HTC_PROBE_LAYER",
            help_heading = heading::CHECKS,
            allow_negative_numbers = true
        )
    )]
    pub probe_layer: Option<usize>,
    /// Device for calibration, measurements and decompositions: cpu, cuda or cuda:N (a number or
    /// GPU-…), auto (a GPU if there is one). The last bits of an artifact depend on the device
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "DEVICE",
            hide_short_help = true,
            help_heading = heading::CHECKS,
            default_value = "cpu"
        )
    )]
    pub device: DeviceChoice,
}

impl Default for ArtifactOptions {
    fn default() -> Self {
        ArtifactOptions {
            planes: 1,
            with_source: false,
            kernels: Vec::new(),
            tune: None,
            compare: None,
            probe_layer: None,
            device: DeviceChoice::Cpu,
        }
    }
}

/// Number of single-type files that are compared by default.
pub(super) const COMPARISON_FILES: usize = 2;

impl ArtifactOptions {
    /// Returns the tuning steps for norms and row scales: as requested, else those of the effort
    /// with codes and 0 with factors.
    pub fn tune_steps(&self, method: Method, effort: Effort) -> usize {
        self.tune.unwrap_or(match method {
            Method::Quantise => effort.settings().tune_steps,
            Method::PerProjection | Method::SharedBasis => 0,
        })
    }

    /// Returns the maximum number of single-type files for comparison: with codes that of the
    /// effort unless switched off, with factors 0.
    pub fn max_comparison_files(&self, method: Method, effort: Effort) -> usize {
        match (method, self.compare) {
            (Method::PerProjection | Method::SharedBasis, _) | (_, Some(Switch::Off)) => 0,
            (Method::Quantise, None) => effort.settings().max_comparison_files,
            (Method::Quantise, Some(Switch::On)) => {
                effort.settings().max_comparison_files.max(COMPARISON_FILES)
            }
        }
    }
}

/// Resolved options of a compilation.
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
    pub treatment: TreatmentOptions,
    /// Maximum loss; if set, the smallest artifact within it is chosen.
    pub limit: QualityLimit,
    /// Options of the artifact besides its plan.
    pub artifact: ArtifactOptions,
    /// Threads for factorisation.
    pub threads: usize,
    /// Replaces an existing output.
    pub overwrite: bool,
}

impl CompileOptions {
    /// Returns the maximum number of single-type files made for comparison; none for a plan from a
    /// file.
    pub(crate) fn max_comparison_files(&self) -> usize {
        match &self.planning {
            PlanSource::Compute { request, .. } => self
                .artifact
                .max_comparison_files(request.method, request.effort),
            PlanSource::File(_) => 0,
        }
    }

    /// Checks options of the artifact that depend on the calibration.
    pub(crate) fn check(&self) -> Result<(), OptionError> {
        self.treatment.resolve(self.calibration.is_some())?;
        let tunes = self.artifact.tune.is_some_and(|steps| steps > 0);
        if tunes && self.calibration.is_none() {
            return Err(OptionError::RequiresCalibration { option: "`tune`" });
        }
        Ok(())
    }

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

//! Builder for compilations from other programs, with the options and defaults of the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use htc_formats::DType;
use htc_formats::htz::GpuArchitecture;
use htc_formats::model::ProjectionKind;
use htc_loader::device::DeviceChoice;

use super::{CompileError, compile, forecast, open};
use crate::event::{CancellationToken, Event, Progress};
use crate::report::{Forecast, Report};
use crate::request::{
    Allocator, BiasArg, Budget, CalibrationOptions, CalibrationText, CodeKinds, CompareArg,
    CompileOptions, DenseTypes, Effort, FirstPositions, GaugeKind, KvBasesArg, LowRankArg,
    MeasuredEnergy, Method, OrderArg, PlanOptions, PlanSource, QualityGoal, QualityPreset,
    RankFloor, RotationArg, ShrinkageArg, SinkProtection, TargetMachine, TextSource,
};

/// Builder of a compilation. Options that are not set have the command line's defaults: the
/// smallest artifact within the balanced preset, on the shipped text.
///
/// Unfinished work is kept next to the artifact and sealed with a secret from the user's state
/// folder. The same compilation resumes from it and ignores files that other users put there.
///
/// ```no_run
/// # fn main() -> Result<(), htc::CompileError> {
/// let report = htc::Compiler::new("model.gguf", "model.htz")
///     .calibration("text.txt")
///     .file_size(120_000_000)
///     .run()?;
/// println!("{} of {} bytes", report.bytes.after, report.bytes.before);
/// # Ok(()) }
/// ```
///
/// A build script lists the files that its artifact depends on:
///
/// ```no_run
/// # fn main() -> Result<(), htc::CompileError> {
/// let compiler = htc::Compiler::new("model.gguf", "out/model.htz").overwrite(true);
/// for file in compiler.inputs()? {
///     println!("cargo::rerun-if-changed={}", file.display());
/// }
/// compiler.run()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is compiled before run()"]
pub struct Compiler {
    input: PathBuf,
    output: PathBuf,
    plan: Option<PathBuf>,
    wishes: PlanOptions,
    target: TargetMachine,
    calibration: CalibrationOptions,
    tokens: Option<usize>,
    goal: QualityGoal,
    planes: u8,
    with_source: bool,
    kernels: Vec<GpuArchitecture>,
    probe_layer: Option<usize>,
    device: DeviceChoice,
    threads: Option<usize>,
    overwrite: bool,
    cancel: CancellationToken,
}

impl Compiler {
    /// Creates a builder that compiles the model `input` to the artifact `output`.
    pub fn new(input: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Self {
        Compiler {
            input: input.into(),
            output: output.into(),
            plan: None,
            wishes: PlanOptions::default(),
            target: TargetMachine::default(),
            calibration: CalibrationOptions {
                texts: Vec::new(),
                ..CalibrationOptions::new(PathBuf::new())
            },
            tokens: None,
            goal: QualityGoal::default(),
            planes: 1,
            with_source: false,
            kernels: Vec::new(),
            probe_layer: None,
            device: DeviceChoice::Cpu,
            threads: None,
            overwrite: false,
            cancel: CancellationToken::default(),
        }
    }

    /// Adds a calibration text: a file or [`TextSource::Shipped`]. It should resemble the texts
    /// that the model will be used for.
    pub fn calibration(self, text: impl Into<TextSource>) -> Self {
        self.weighted_calibration(text, 1.0)
    }

    /// Adds a calibration text whose tokens count `weight` times.
    pub fn weighted_calibration(mut self, text: impl Into<TextSource>, weight: f64) -> Self {
        let source = text.into();
        self.calibration
            .texts
            .push(CalibrationText { source, weight });
        self
    }

    /// Sets the maximum number of tokens of each calibration text.
    pub fn calibration_tokens(mut self, tokens: usize) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Sets the number of tokens in a calibration window; by default 512, or the model's context if
    /// shorter.
    pub fn context(mut self, tokens: usize) -> Self {
        self.calibration.context = Some(tokens);
        self
    }

    /// Sets the cache folder for statistics; by default the user's.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.calibration.cache = Some(folder.into());
        self
    }

    /// Accepts cached statistics that another user wrote. Their contents cannot be trusted
    /// otherwise.
    pub fn trust_cache(mut self, trust: bool) -> Self {
        self.calibration.trust_cache = trust;
        self
    }

    /// Sets the time to wait for another process that computes the same statistics; by default an
    /// hour.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.calibration.lock_timeout = timeout;
        self
    }

    /// Sets the held-out text, 64 windows at most; by default the ends of the calibration texts.
    /// The windows of each text alternate between validation split (first, third, ...) and test
    /// split.
    pub fn held_out(mut self, text: impl Into<PathBuf>) -> Self {
        self.calibration.held_out = Some(text.into());
        self
    }

    /// Sets the approximation method. By default codes, or factors if another option requires them
    /// ([`PlanOptions::method`]).
    pub fn method(mut self, method: Method) -> Self {
        self.wishes.method = Some(method);
        self
    }

    /// Sets the budget as parameters after over before, on the selected projections.
    pub fn ratio(self, ratio: f64) -> Self {
        self.budget(Budget::Ratio(ratio))
    }

    /// Sets the rank of every selected projection.
    pub fn rank(self, rank: usize) -> Self {
        self.budget(Budget::Rank(rank))
    }

    /// Sets the number of values stored for the selected projections.
    pub fn parameters(self, total: u64) -> Self {
        self.budget(Budget::Parameters(total))
    }

    /// Sets the bytes stored for the selected projections.
    pub fn bytes(self, total: u64) -> Self {
        self.budget(Budget::Bytes(total))
    }

    /// Sets the mean rank of the selected projections.
    pub fn mean_rank(self, mean: f64) -> Self {
        self.budget(Budget::MeanRank(mean))
    }

    /// Sets the budget.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.wishes.budget = Some(budget);
        self
    }

    /// Sets the allocator that distributes the budget.
    pub fn allocator(mut self, allocator: Allocator) -> Self {
        self.wishes.allocator = Some(allocator);
        self
    }

    /// Sets the smallest rank of a factorised projection.
    pub fn rank_floor(mut self, floor: RankFloor) -> Self {
        self.wishes.rank_floor = Some(floor);
        self
    }

    /// Sets the largest rank of a factorised projection.
    pub fn rank_cap(mut self, cap: usize) -> Self {
        self.wishes.rank_cap = Some(cap);
        self
    }

    /// Sets whether the first position of every window counts in the variance that some allocators
    /// use.
    pub fn first_positions(mut self, first: FirstPositions) -> Self {
        self.wishes.first_positions = first;
        self
    }

    /// Sets the projections to compress.
    pub fn slots(mut self, slots: impl IntoIterator<Item = ProjectionKind>) -> Self {
        self.wishes.projections = slots.into_iter().collect();
        self
    }

    /// Sets the type of stored factors.
    pub fn factor_type(mut self, dtype: DType) -> Self {
        self.wishes.factor_type = Some(dtype);
        self
    }

    /// Sets the types of dense projections, the embedding and the head; by default those of the
    /// source.
    pub fn dense_types(mut self, types: DenseTypes) -> Self {
        self.wishes.dense_types = types;
        self
    }

    /// Keeps selected projections without factors in the source's type. By default they are stored
    /// in the type of factors.
    pub fn keep_dense(mut self) -> Self {
        self.wishes.keep_dense = true;
        self
    }

    /// Sets the kinds of code that [`Method::Quantise`] chooses from; by default all.
    pub fn codes(mut self, codes: CodeKinds) -> Self {
        self.wishes.codes = Some(codes);
        self
    }

    /// Sets whether [`Method::Quantise`] may store projections as factors of low rank where these
    /// lose less than codes of the same size; by default it may.
    pub fn low_rank(mut self, low_rank: LowRankArg) -> Self {
        self.wishes.low_rank = Some(low_rank);
        self
    }

    /// Sets whether [`Method::Quantise`] rotates matrices before it stores them in column groups;
    /// by default it does.
    pub fn rotation(mut self, rotation: RotationArg) -> Self {
        self.wishes.rotation = Some(rotation);
        self
    }

    /// Sets whether channels are permuted. By default they are with [`Method::Quantise`], unless
    /// the source stores its values in blocks.
    pub fn order(mut self, order: OrderArg) -> Self {
        self.wishes.order = Some(order);
        self
    }

    /// Sets whether the artifact includes bases for an adaptive KV cache, computed from the
    /// calibration, which is required then; by default it does not. The model's output is
    /// unchanged.
    pub fn include_kv_bases(mut self, wanted: bool) -> Self {
        self.wishes.kv_bases = if wanted {
            KvBasesArg::On
        } else {
            KvBasesArg::Off
        };
        self
    }

    /// Sets the L2 cache, in bytes, of the target GPU. [`gpu::find`](crate::plan::gpu::find_by_name)
    /// returns it for many GPUs by name.
    pub fn gpu(mut self, cache: u64) -> Self {
        self.target.l2_bytes = Some(cache);
        self
    }

    /// Sets the tokens per joule that the uncompressed model generates on the target machine.
    pub fn tokens_per_joule(mut self, tokens: f64) -> Self {
        self.target.tokens_per_joule = Some(tokens);
        self
    }

    /// Sets the energy per token on the target machine, as an alternative to
    /// [`tokens_per_joule`](Self::tokens_per_joule), from benchmark records read by
    /// [`slope::read`](crate::bench::slope::read).
    pub fn energy(mut self, measured: MeasuredEnergy) -> Self {
        self.target.energy = Some(Box::new(measured));
        self
    }

    /// Sets the norm in which errors are minimised.
    pub fn gauge(mut self, gauge: GaugeKind) -> Self {
        self.wishes.treatment.gauge = Some(gauge);
        self
    }

    /// Sets the directions that factors must preserve.
    pub fn sink(mut self, sink: SinkProtection) -> Self {
        self.wishes.treatment.sink = Some(sink);
        self
    }

    /// Sets whether biases correct errors.
    pub fn bias(mut self, bias: BiasArg) -> Self {
        self.wishes.treatment.bias = Some(bias);
        self
    }

    /// Sets the shrinkage of the second moment of [`GaugeKind::Whiten`].
    pub fn shrinkage(mut self, shrinkage: ShrinkageArg) -> Self {
        self.wishes.treatment.shrinkage = Some(shrinkage);
        self
    }

    /// Finds the smallest artifact whose perplexity exceeds the source's by at most this fraction:
    /// 0.01 is one percent.
    pub fn max_perplexity_increase(mut self, increase: f64) -> Self {
        self.goal.limit.perplexity_increase = Some(increase);
        self
    }

    /// Finds the smallest artifact within a named limit.
    pub fn preset(mut self, preset: QualityPreset) -> Self {
        self.goal.limit = preset.limit();
        self
    }

    /// Sets the size of the whole artifact in bytes, for [`Method::Quantise`].
    pub fn file_size(self, bytes: u64) -> Self {
        self.budget(Budget::FileSize(bytes))
    }

    /// Sets the size of the whole artifact in bits per parameter of the model, for
    /// [`Method::Quantise`].
    pub fn bits(self, bits: f64) -> Self {
        self.budget(Budget::Bits(bits))
    }

    /// Sets the effort, which trades time for quality.
    pub fn effort(mut self, effort: Effort) -> Self {
        self.wishes.effort = effort;
        self
    }

    /// Finds the smallest artifact whose KL divergence from the source is at most `nats`.
    pub fn max_kl(mut self, nats: f64) -> Self {
        self.goal.limit.kl = Some(nats);
        self
    }

    /// Keeps a requested gauge even if it measures worse than none.
    pub fn keep_gauge(mut self, keep: bool) -> Self {
        self.goal.keep_gauge = keep;
        self
    }

    /// Sets the steps for tuning norms and row scales after all matrices are stored, as long as the
    /// held-out loss improves. By default they are tuned if matrices become codes.
    pub fn tune(mut self, steps: usize) -> Self {
        self.goal.tune = Some(steps);
        self
    }

    /// Sets whether files in a single GGUF type are made and measured as baselines for the report.
    /// By default those closest in size to an artifact in codes are, unless the effort is fast.
    pub fn compare(mut self, compare: CompareArg) -> Self {
        self.goal.compare = Some(compare);
        self
    }

    /// Sets the number of planes. With 2 the artifact is elastic: it has bases and residuals, and a
    /// session may read any fraction of its bytes in between
    /// ([`Session::set_fraction`](htc_loader::Session::set_fraction)). This requires a size or a
    /// limit.
    pub fn planes(mut self, planes: u8) -> Self {
        self.planes = planes;
        self
    }

    /// Also stores the source's weights in the artifact, in the source's types, after the
    /// compressed ones. The artifact then drafts for its source without another file
    /// ([`Model::source`](htc_loader::Model::source)). Sizes and limits refer to the compressed
    /// part.
    pub fn with_source(mut self, with_source: bool) -> Self {
        self.with_source = with_source;
        self
    }

    /// Compiles the GPU kernels for these architectures into the artifact, so that no compiler is
    /// needed at run time. This requires NVRTC, but no GPU.
    pub fn kernels(mut self, architectures: &[GpuArchitecture]) -> Self {
        self.kernels = architectures.to_vec();
        self
    }

    /// Reads the plan from a file instead of making one.
    pub fn plan(mut self, file: impl Into<PathBuf>) -> Self {
        self.plan = Some(file.into());
        self
    }

    /// Sets the layer that the artifact records for probes, from 0; by default the depth sink.
    pub fn probe_layer(mut self, layer: usize) -> Self {
        self.probe_layer = Some(layer);
        self
    }

    /// Sets the device for calibration, measurements and decompositions; by default the CPU. The
    /// last bits of the artifact depend on it.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// Sets the number of threads; by default all cores. The artifact's bytes do not depend on it.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Allows the replacement of an existing artifact.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Stops the compilation when `cancel` is triggered. Finished work is kept, and the same
    /// compilation resumes from it.
    pub fn cancelled_by(mut self, cancel: &CancellationToken) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Returns every file that the artifact is made from: the model, the texts and the plan.
    ///
    /// # Errors
    /// [`CompileError::Source`] if the model cannot be opened.
    pub fn inputs(&self) -> Result<Vec<PathBuf>, CompileError> {
        let source = open(&self.input)?;
        let mut inputs = super::source::source_files(&source);
        inputs.extend(self.plan.clone());
        if !self.calibration.texts.is_empty() {
            inputs.extend(self.calibration.files().map(Path::to_owned));
        }
        Ok(inputs)
    }

    /// Returns the resolved options.
    pub fn options(&self) -> CompileOptions {
        let by_effort = self.wishes.effort.settings().calibration_tokens;
        let asked = CalibrationOptions {
            tokens: self.tokens.unwrap_or(by_effort),
            ..self.calibration.clone()
        };
        let (calibration, goal) = match &self.plan {
            Some(_) => (
                Some(asked).filter(|asked| !asked.texts.is_empty()),
                self.goal,
            ),
            None => (
                self.wishes.calibration(asked),
                self.goal.with_default_preset(&self.wishes),
            ),
        };
        CompileOptions {
            input: self.input.clone(),
            output: self.output.clone(),
            planning: match &self.plan {
                Some(plan) => PlanSource::File(plan.clone()),
                None => PlanSource::Compute {
                    request: self.wishes.resolve(calibration.is_some()),
                    target: self.target.clone(),
                },
            },
            calibration,
            treatment: self.wishes.treatment,
            goal,
            planes: self.planes,
            include_source: self.with_source,
            kernels: self.kernels.clone(),
            probe_layer: self.probe_layer,
            device: self.device,
            threads: self.threads.unwrap_or_else(all_cores),
            overwrite: self.overwrite,
        }
    }

    /// Compiles the model.
    ///
    /// # Errors
    /// [`CompileError`]; the output's name is then unchanged.
    pub fn run(&self) -> Result<Report, CompileError> {
        self.run_with(|_| {})
    }

    /// Compiles the model and reports progress to `tell`, which is called from several threads.
    ///
    /// # Errors
    /// [`CompileError`]; the output's name is then unchanged.
    pub fn run_with(&self, tell: impl Fn(Event) + Sync) -> Result<Report, CompileError> {
        self.check()?;
        compile(&self.options(), Progress::new(&tell, &self.cancel))
    }

    /// Returns the predicted size, memory and time; writes nothing but the calibration cache.
    ///
    /// # Errors
    /// [`CompileError`] for everything that can be refused before the work.
    pub fn forecast(&self) -> Result<Forecast, CompileError> {
        self.check()?;
        forecast(&self.options(), Progress::new(&|_| {}, &self.cancel))
    }

    fn check(&self) -> Result<(), CompileError> {
        match self.plan {
            Some(_) => Ok(()),
            None => Ok(self.wishes.check()?),
        }
    }
}

fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

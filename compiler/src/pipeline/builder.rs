//! Builder for compilations from other programs, with the options and defaults of the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use htc_formats::DType;
use htc_formats::htz::GpuArchitecture;
use htc_formats::model::ProjectionKind;
use htc_loader::device::DeviceChoice;

use super::{CompileError, compile, forecast, open};
use crate::event::{CancellationToken, Event, Progress};
use crate::options::{
    Allocator, ArtifactOptions, BiasArg, Budget, CalibrationText, CodeKinds, CompileOptions,
    CompileRequest, DenseChoice, DenseType, Effort, FirstPositions, GaugeKind, LimitOptions,
    MeasuredEnergy, Method, QualityPreset, RankFloor, ShrinkageArg, SinkProtection, Switch,
    TargetMachine, TextSource,
};
use crate::report::{Forecast, Report};

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
    request: CompileRequest,
    target: TargetMachine,
    artifact: ArtifactOptions,
    threads: Option<usize>,
    overwrite: bool,
    cancel: CancellationToken,
}

/// Defines methods that set one field.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ident: $type:ty) => $($field:ident).+ = $set:expr;)+) => {
        $(
            $(#[$doc])*
            pub fn $name(mut self, $value: $type) -> Self {
                self.$($field).+ = $set;
                self
            }
        )+
    };
}

impl Compiler {
    /// Creates a builder that compiles the model `input` to the artifact `output`.
    pub fn new(input: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Self {
        Compiler {
            input: input.into(),
            output: output.into(),
            plan: None,
            request: CompileRequest::default(),
            target: TargetMachine::default(),
            artifact: ArtifactOptions::default(),
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
        let texts = &mut self.request.calibration.texts;
        texts.push(CalibrationText { source, weight });
        self
    }

    /// Finds the smallest artifact within a named limit.
    pub fn preset(mut self, preset: QualityPreset) -> Self {
        self.request.limits = LimitOptions {
            preset: Some(preset),
            ..LimitOptions::default()
        };
        self
    }

    /// Sets any options of the plan, the calibration and the limit by their fields.
    pub fn set(mut self, set: impl FnOnce(&mut CompileRequest)) -> Self {
        set(&mut self.request);
        self
    }

    setters! {
        /// Sets the maximum number of tokens of each calibration text.
        calibration_tokens(tokens: usize) => request.calibration.tokens = Some(tokens);
        /// Sets the number of tokens in a calibration window; by default 512, or the model's
        /// context if shorter.
        context(tokens: usize) => request.calibration.context = Some(tokens);
        /// Sets the cache folder for statistics; by default the user's.
        cache(folder: impl Into<PathBuf>) => request.calibration.cache = Some(folder.into());
        /// Accepts cached statistics that another user wrote. Their contents cannot be trusted
        /// otherwise.
        trust_cache(trust: bool) => request.calibration.trust_cache = trust;
        /// Sets the time to wait for another process that computes the same statistics; by default
        /// an hour.
        lock_timeout(timeout: Duration) => request.calibration.lock_timeout = timeout;
        /// Sets the held-out text, 64 windows at most; by default the ends of the calibration
        /// texts. The windows of each text alternate between validation split (first, third, ...)
        /// and test split.
        held_out(text: impl Into<PathBuf>) => request.calibration.held_out = Some(text.into());
        /// Sets the approximation method. By default codes, or factors if another option requires
        /// them ([`PlanOptions::method`](crate::options::PlanOptions::method)).
        method(method: Method) => request.plan.method = Some(method);
        /// Sets the budget as parameters after over before, on the selected projections.
        ratio(ratio: f64) => request.plan.budget = Some(Budget::Ratio(ratio));
        /// Sets the rank of every selected projection.
        rank(rank: usize) => request.plan.budget = Some(Budget::Rank(rank));
        /// Sets the number of values stored for the selected projections.
        parameters(total: u64) => request.plan.budget = Some(Budget::Parameters(total));
        /// Sets the bytes stored for the selected projections.
        bytes(total: u64) => request.plan.budget = Some(Budget::Bytes(total));
        /// Sets the mean rank of the selected projections.
        mean_rank(mean: f64) => request.plan.budget = Some(Budget::MeanRank(mean));
        /// Sets the budget.
        budget(budget: Budget) => request.plan.budget = Some(budget);
        /// Sets the allocator that distributes the budget.
        allocator(allocator: Allocator) => request.plan.allocator = Some(allocator);
        /// Sets the smallest rank of a factorised projection.
        rank_floor(floor: RankFloor) => request.plan.rank_floor = Some(floor);
        /// Sets the largest rank of a factorised projection.
        rank_cap(cap: usize) => request.plan.rank_cap = Some(cap);
        /// Sets whether the first position of every window counts in the variance that some
        /// allocators use.
        first_positions(first: FirstPositions) => request.plan.first_positions = Some(first);
        /// Sets the projections to compress.
        projections(projections: impl IntoIterator<Item = ProjectionKind>) => request.plan.projections = projections.into_iter().collect();
        /// Sets the type of stored factors.
        factor_type(dtype: DType) => request.plan.factor_type = Some(dtype);
        /// Sets the type of projections that stay dense, or keeps them as in the source. By default
        /// selected ones are stored in the type of factors.
        dense_type(dense: DenseChoice) => request.plan.dense_type = Some(dense);
        /// Sets the type of the embedding and of an untied head; by default that of the source.
        embedding_type(dtype: DenseType) => request.plan.embedding_type = Some(dtype);
        /// Sets the kinds of code that [`Method::Quantise`] chooses from; by default all.
        codes(codes: CodeKinds) => request.plan.codes.codes = Some(codes);
        /// Sets whether [`Method::Quantise`] may store projections as factors of low rank where
        /// these lose less than codes of the same size; by default it may.
        low_rank(low_rank: impl Into<Switch>) => request.plan.codes.low_rank = Some(low_rank.into());
        /// Sets whether [`Method::Quantise`] rotates matrices before it stores them in column
        /// groups; by default it does.
        rotation(rotation: impl Into<Switch>) => request.plan.codes.rotation = Some(rotation.into());
        /// Sets whether channels are permuted. By default they are with [`Method::Quantise`],
        /// unless the source stores its values in blocks.
        order(order: impl Into<Switch>) => request.plan.layout.order = Some(order.into());
        /// Sets whether the artifact includes bases for an adaptive KV cache, computed from the
        /// calibration, which is required then; by default it does not. The model's output is
        /// unchanged.
        kv_bases(kv_bases: impl Into<Switch>) => request.plan.layout.kv_bases = kv_bases.into();
        /// Sets the L2 cache, in bytes, of the target GPU. [`gpu::find_by_name`](crate::plan::gpu::find_by_name)
        /// returns it for many GPUs by name.
        gpu(cache: u64) => target.l2_bytes = Some(cache);
        /// Sets the tokens per joule that the uncompressed model generates on the target machine.
        tokens_per_joule(tokens: f64) => target.tokens_per_joule = Some(tokens);
        /// Sets the energy per token on the target machine, as an alternative to
        /// [`tokens_per_joule`](Self::tokens_per_joule), from benchmark records read by
        /// [`slope::read`](crate::bench::slope::read).
        energy(measured: MeasuredEnergy) => target.energy = Some(Box::new(measured));
        /// Sets the norm in which errors are minimised.
        gauge(gauge: GaugeKind) => request.plan.treatment.gauge = Some(gauge);
        /// Sets the directions that factors must preserve.
        sink(sink: SinkProtection) => request.plan.treatment.sink = Some(sink);
        /// Sets whether biases correct errors.
        bias(bias: BiasArg) => request.plan.treatment.bias = Some(bias);
        /// Sets the shrinkage of the second moment of [`GaugeKind::Whiten`].
        shrinkage(shrinkage: ShrinkageArg) => request.plan.treatment.shrinkage = Some(shrinkage);
        /// Finds the smallest artifact whose perplexity exceeds the source's by at most this
        /// fraction: 0.01 is one percent.
        max_perplexity_increase(increase: f64) => request.limits.max_perplexity_increase = Some(increase);
        /// Sets the size of the whole artifact in bytes, for [`Method::Quantise`].
        file_size(bytes: u64) => request.plan.budget = Some(Budget::FileSize(bytes));
        /// Sets the size of the whole artifact in bits per parameter of the model, for
        /// [`Method::Quantise`].
        bits(bits: f64) => request.plan.budget = Some(Budget::Bits(bits));
        /// Sets the effort, which trades time for quality.
        effort(effort: Effort) => request.plan.effort = effort;
        /// Finds the smallest artifact whose KL divergence from the source is at most `nats`.
        max_kl(nats: f64) => request.limits.max_kl = Some(nats);
        /// Keeps a requested gauge even if it measures worse than none.
        keep_gauge(keep: bool) => request.plan.treatment.keep_gauge = keep;
        /// Sets the steps for tuning norms and row scales after all matrices are stored, as long as
        /// the held-out loss improves. By default they are tuned if matrices become codes.
        tune(steps: usize) => artifact.tune = Some(steps);
        /// Sets whether files in a single GGUF type are made and measured as baselines for the
        /// report. By default those closest in size to an artifact in codes are, unless the effort
        /// is fast.
        compare(compare: impl Into<Switch>) => artifact.compare = Some(compare.into());
        /// Sets the number of planes. With 2 the artifact is elastic: it has bases and residuals,
        /// and a session may read any fraction of its bytes in between
        /// ([`Session::set_fraction`](htc_loader::Session::set_fraction)). This requires a size or
        /// a limit.
        planes(planes: u8) => artifact.planes = planes;
        /// Also stores the source's weights in the artifact, in the source's types, after the
        /// compressed ones. The artifact then drafts for its source without another file
        /// ([`Model::source`](htc_loader::Model::source)). Sizes and limits refer to the compressed
        /// part.
        with_source(with_source: bool) => artifact.with_source = with_source;
        /// Compiles the GPU kernels for these architectures into the artifact, so that no compiler
        /// is needed at run time. This requires NVRTC, but no GPU.
        kernels(architectures: &[GpuArchitecture]) => artifact.kernels = architectures.to_vec();
        /// Reads the plan from a file instead of making one.
        plan(file: impl Into<PathBuf>) => plan = Some(file.into());
        /// Sets the layer that the artifact records for probes, from 0; by default the depth sink.
        probe_layer(layer: usize) => artifact.probe_layer = Some(layer);
        /// Sets the device for calibration, measurements and decompositions; by default the CPU.
        /// The last bits of the artifact depend on it.
        device(device: DeviceChoice) => artifact.device = device;
        /// Sets the number of threads; by default all cores. The artifact's bytes do not depend on
        /// it.
        threads(threads: usize) => threads = Some(threads);
        /// Allows the replacement of an existing artifact.
        overwrite(overwrite: bool) => overwrite = overwrite;
        /// Stops the compilation when `cancel` is triggered. Finished work is kept, and the same
        /// compilation resumes from it.
        cancelled_by(cancel: &CancellationToken) => cancel = cancel.clone();
    }

    /// Returns every file that the artifact is made from: the model, the texts and the plan.
    ///
    /// # Errors
    /// [`CompileError::Source`] if the model cannot be opened, [`CompileError::Options`] if options
    /// contradict each other.
    pub fn inputs(&self) -> Result<Vec<PathBuf>, CompileError> {
        let source = open(&self.input)?;
        let mut inputs = super::source::source_files(&source);
        inputs.extend(self.plan.clone());
        if let Some(calibration) = self.request.calibration(self.plan.as_deref())? {
            inputs.extend(calibration.files().map(Path::to_owned));
        }
        Ok(inputs)
    }

    /// Returns the resolved options.
    ///
    /// # Errors
    /// [`CompileError::Options`] if options contradict each other.
    pub fn options(&self) -> Result<CompileOptions, CompileError> {
        let plan = self.plan.as_deref();
        Ok(CompileOptions {
            input: self.input.clone(),
            output: self.output.clone(),
            planning: self.request.plan_source(plan, self.target.clone())?,
            calibration: self.request.calibration(plan)?,
            treatment: self.request.plan.treatment,
            limit: self.request.limit(plan),
            artifact: self.artifact.clone(),
            threads: self.threads.unwrap_or_else(all_cores),
            overwrite: self.overwrite,
        })
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
        compile(&self.options()?, Progress::new(&tell, &self.cancel))
    }

    /// Returns the predicted size, memory and time; writes nothing but the calibration cache.
    ///
    /// # Errors
    /// [`CompileError`] for everything that can be refused before the work.
    pub fn forecast(&self) -> Result<Forecast, CompileError> {
        forecast(&self.options()?, Progress::new(&|_| {}, &self.cancel))
    }
}

fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

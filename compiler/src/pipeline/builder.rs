//! Compiling from another program: what the command line offers, with its defaults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use htc_formats::DType;
use htc_formats::htz::Architecture;
use htc_formats::model::Slot;
use htc_loader::device::DeviceChoice;

use super::{CompileError, compile, forecast, open};
use crate::event::{Cancel, Event, Watch};
use crate::report::{Forecast, Report};
use crate::request::{
    Allocator, BiasArg, Budget, CalibrationOptions, CalibrationText, CodeKinds, CompareArg,
    CompileOptions, DenseTypes, Effort, FirstPositions, Floor, GaugeKind, Goal, KvBasesArg,
    LowRankArg, MeasuredEnergy, Method, OrderArg, Planning, Preset, RotationArg, ShrinkageArg,
    SinkProtection, Target, TextSource, Wishes,
};

/// A compilation that is about to be described and run. What is not said has the command line's
/// defaults: the smallest artifact within the balanced preset, on the shipped text.
///
/// What is finished is kept beside the artifact until it is complete, sealed with a secret in the user's
/// state folder: the same compilation goes on with it, and with nothing that somebody else laid there.
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
/// A build script says what its artifact depends on:
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
    wishes: Wishes,
    target: Target,
    /// Without a text there is none.
    calibration: CalibrationOptions,
    /// Of each text, where that is not left to the effort.
    tokens: Option<usize>,
    goal: Goal,
    planes: u8,
    with_source: bool,
    kernels: Vec<Architecture>,
    probe_layer: Option<usize>,
    device: DeviceChoice,
    threads: Option<usize>,
    overwrite: bool,
    cancel: Cancel,
}

impl Compiler {
    /// A model, and the artifact that is to be made of it.
    pub fn new(input: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Self {
        Compiler {
            input: input.into(),
            output: output.into(),
            plan: None,
            wishes: Wishes::default(),
            target: Target::default(),
            calibration: CalibrationOptions {
                texts: Vec::new(),
                ..CalibrationOptions::new(PathBuf::new())
            },
            tokens: None,
            goal: Goal::default(),
            planes: 1,
            with_source: false,
            kernels: Vec::new(),
            probe_layer: None,
            device: DeviceChoice::Cpu,
            threads: None,
            overwrite: false,
            cancel: Cancel::default(),
        }
    }

    /// A text to calibrate on: what the model is to be good at, a file or [`TextSource::Shipped`]. Called
    /// again, it adds another.
    pub fn calibration(self, text: impl Into<TextSource>) -> Self {
        self.weighted_calibration(text, 1.0)
    }

    /// A text to calibrate on, beside others, of which each token counts as many times as `weight` says.
    pub fn weighted_calibration(mut self, text: impl Into<TextSource>, weight: f64) -> Self {
        let source = text.into();
        self.calibration
            .texts
            .push(CalibrationText { source, weight });
        self
    }

    /// Tokens of each calibration text at most.
    pub fn calibration_tokens(mut self, tokens: usize) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Tokens in a window of the calibration; by default 512, or as many as the model reads at most.
    pub fn context(mut self, tokens: usize) -> Self {
        self.calibration.context = Some(tokens);
        self
    }

    /// The folder where statistics are kept and found again; that of the user by default.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.calibration.cache = Some(folder.into());
        self
    }

    /// Takes statistics of the cache that another user wrote, who may have written anything.
    pub fn trust_cache(mut self, trust: bool) -> Self {
        self.calibration.trust_cache = trust;
        self
    }

    /// How long to wait for another process that makes the same statistics; an hour by default.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.calibration.lock_timeout = timeout;
        self
    }

    /// Text to measure on, 64 windows at most; by default the ends of the calibration texts. Of the windows of
    /// each text the first, third and so on decide, and those between them report.
    pub fn held_out(mut self, text: impl Into<PathBuf>) -> Self {
        self.calibration.held_out = Some(text.into());
        self
    }

    /// How matrices are approximated; without it in codes, or in factors where something is asked for that only
    /// those have ([`Wishes::method`]).
    pub fn method(mut self, method: Method) -> Self {
        self.wishes.method = Some(method);
        self
    }

    /// Parameters after over before, on the selected slots.
    pub fn ratio(self, ratio: f64) -> Self {
        self.budget(Budget::Ratio(ratio))
    }

    /// The rank of every selected slot.
    pub fn rank(self, rank: usize) -> Self {
        self.budget(Budget::Rank(rank))
    }

    /// Numbers stored for the selected slots.
    pub fn parameters(self, total: u64) -> Self {
        self.budget(Budget::Parameters(total))
    }

    /// Bytes stored for the selected slots.
    pub fn bytes(self, total: u64) -> Self {
        self.budget(Budget::Bytes(total))
    }

    /// The mean of the ranks of the selected slots.
    pub fn mean_rank(self, mean: f64) -> Self {
        self.budget(Budget::MeanRank(mean))
    }

    /// How much may be kept.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.wishes.budget = Some(budget);
        self
    }

    /// How the budget is shared out.
    pub fn allocator(mut self, allocator: Allocator) -> Self {
        self.wishes.allocator = Some(allocator);
        self
    }

    /// The smallest rank of a factorised slot.
    pub fn rank_floor(mut self, floor: Floor) -> Self {
        self.wishes.floor = Some(floor);
        self
    }

    /// The largest rank of a factorised slot.
    pub fn rank_cap(mut self, cap: usize) -> Self {
        self.wishes.cap = Some(cap);
        self
    }

    /// Whether the first position of every window counts in the variance that some allocators read.
    pub fn first_positions(mut self, first: FirstPositions) -> Self {
        self.wishes.first_positions = first;
        self
    }

    /// The slots to compress.
    pub fn slots(mut self, slots: impl IntoIterator<Item = Slot>) -> Self {
        self.wishes.slots = slots.into_iter().collect();
        self
    }

    /// How factors are stored.
    pub fn factor_type(mut self, dtype: DType) -> Self {
        self.wishes.factor_type = Some(dtype);
        self
    }

    /// How slots that stay dense, the embedding and the head are stored, where they are not to stay as in
    /// the source.
    pub fn dense_types(mut self, types: DenseTypes) -> Self {
        self.wishes.dense = types;
        self
    }

    /// Leaves selected slots that get no factors as in the source; without, they are stored as factors are.
    pub fn keep_dense(mut self) -> Self {
        self.wishes.keep_dense = true;
        self
    }

    /// The kinds of code that [`Method::Quantise`] chooses from; all where nothing is said.
    pub fn codes(mut self, codes: CodeKinds) -> Self {
        self.wishes.codes = Some(codes);
        self
    }

    /// Whether [`Method::Quantise`] may store slots as factors of low rank where these lose less than codes in as
    /// many bytes; it may by default.
    pub fn low_rank(mut self, low_rank: LowRankArg) -> Self {
        self.wishes.low_rank = Some(low_rank);
        self
    }

    /// Whether [`Method::Quantise`] rotates matrices before it stores them in bands; it does by default.
    pub fn rotation(mut self, rotation: RotationArg) -> Self {
        self.wishes.rotation = Some(rotation);
        self
    }

    /// Whether the model is stored in another order than the source's; by default it is with
    /// [`Method::Quantise`], unless the source stores its numbers in blocks.
    pub fn order(mut self, order: OrderArg) -> Self {
        self.wishes.order = Some(order);
        self
    }

    /// Whether the artifact has bases that an adaptive KV cache may begin with, found in what calibration saw, which is needed
    /// then; it has none by default. The model computes the same.
    pub fn kv_bases(mut self, wanted: bool) -> Self {
        self.wishes.kv_bases = match wanted {
            true => KvBasesArg::On,
            false => KvBasesArg::Off,
        };
        self
    }

    /// The second-level cache, in bytes, of the GPU that the artifact is for;
    /// [`gpu::find`](crate::plan::gpu::find) knows that of many by name.
    pub fn gpu(mut self, cache: u64) -> Self {
        self.target.cache = Some(cache);
        self
    }

    /// Tokens that the uncompressed model writes per joule on the machine that the artifact is for.
    pub fn tokens_per_joule(mut self, tokens: f64) -> Self {
        self.target.tokens_per_joule = Some(tokens);
        self
    }

    /// What a token costs on the machine that the artifact is for, in the place of [`tokens_per_joule`](Self::tokens_per_joule), from
    /// records of a benchmark that [`slope::read`](crate::bench::slope::read) has read.
    pub fn energy(mut self, measured: MeasuredEnergy) -> Self {
        self.target.energy = Some(Box::new(measured));
        self
    }

    /// Which errors count.
    pub fn gauge(mut self, gauge: GaugeKind) -> Self {
        self.wishes.treatment.gauge = Some(gauge);
        self
    }

    /// What factors must not lose.
    pub fn sink(mut self, sink: SinkProtection) -> Self {
        self.wishes.treatment.sink = Some(sink);
        self
    }

    /// Whether biases correct.
    pub fn bias(mut self, bias: BiasArg) -> Self {
        self.wishes.treatment.bias = Some(bias);
        self
    }

    /// How far the second moment of [`GaugeKind::Whiten`] is shrunk.
    pub fn shrinkage(mut self, shrinkage: ShrinkageArg) -> Self {
        self.wishes.treatment.shrinkage = Some(shrinkage);
        self
    }

    /// Finds the smallest artifact whose perplexity is at most so much above the source's: 0.01 is
    /// one percent.
    pub fn max_perplexity_increase(mut self, increase: f64) -> Self {
        self.goal.limit.perplexity_increase = Some(increase);
        self
    }

    /// Finds the smallest artifact within a named limit.
    pub fn preset(mut self, preset: Preset) -> Self {
        self.goal.limit = preset.limit();
        self
    }

    /// Bytes of the whole artifact, for [`Method::Quantise`].
    pub fn file_size(self, bytes: u64) -> Self {
        self.budget(Budget::FileSize(bytes))
    }

    /// Bits of the whole artifact for each parameter of the model, for [`Method::Quantise`].
    pub fn bits(self, bits: f64) -> Self {
        self.budget(Budget::Bits(bits))
    }

    /// How much work goes into how close the artifact is.
    pub fn effort(mut self, effort: Effort) -> Self {
        self.wishes.effort = effort;
        self
    }

    /// Finds the smallest artifact whose KL divergence from the source is at most so many nats.
    pub fn max_kl(mut self, nats: f64) -> Self {
        self.goal.limit.kl = Some(nats);
        self
    }

    /// Takes a gauge that was asked for even where it measures worse than none.
    pub fn keep_gauge(mut self, keep: bool) -> Self {
        self.goal.keep_gauge = keep;
        self
    }

    /// Tunes norms and scales of rows in so many steps when every matrix is stored, as long as that gains on held-out text; by default
    /// where matrices become codes.
    pub fn tune(mut self, steps: usize) -> Self {
        self.goal.tune = Some(steps);
        self
    }

    /// Makes files in one type of GGUF and measures them beside an artifact in codes, for the report; by default those
    /// next to it in size, unless the effort is fast.
    pub fn compare(mut self, compare: CompareArg) -> Self {
        self.goal.compare = Some(compare);
        self
    }

    /// Makes an elastic artifact where these are 2: bases, and what they lack beside them, so that what executes it may
    /// touch any part of its bytes between ([`Session::set_fraction`](htc_loader::Session::set_fraction)). It needs a
    /// size.
    pub fn planes(mut self, planes: u8) -> Self {
        self.planes = planes;
        self
    }

    /// Puts the source's weights into the artifact, too, behind those that they were compressed to, in the source's own types: with
    /// them the artifact drafts for its source without another file ([`Model::source`](htc_loader::Model::source)). A
    /// size and a limit are of the compressed part.
    pub fn with_source(mut self, with_source: bool) -> Self {
        self.with_source = with_source;
        self
    }

    /// Compiles the kernels for GPUs of these architectures and puts them into the artifact, which then needs no compiler
    /// where it is executed. It takes NVRTC, and no GPU.
    pub fn kernels(mut self, architectures: &[Architecture]) -> Self {
        self.kernels = architectures.to_vec();
        self
    }

    /// Takes the plan from a file instead of making one.
    pub fn plan(mut self, file: impl Into<PathBuf>) -> Self {
        self.plan = Some(file.into());
        self
    }

    /// The layer that the artifact names for a probe, counted from 0; by default the depth sink.
    pub fn probe_layer(mut self, layer: usize) -> Self {
        self.probe_layer = Some(layer);
        self
    }

    /// What executes the model while it is calibrated on, and candidates while they are measured, and what decomposes its weights; by
    /// default the processor. The last bits of the artifact are those of the device.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// Threads that work; all cores by default. The artifact's bytes do not depend on them.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Replaces an artifact that exists.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Ends the work when `cancel` asks for it; what is finished is kept, and the same compilation
    /// goes on with it.
    pub fn cancelled_by(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Every file that the artifact is made from: those of the model, the texts, the plan.
    ///
    /// # Errors
    /// [`CompileError::Source`] where the model does not open.
    pub fn inputs(&self) -> Result<Vec<PathBuf>, CompileError> {
        let source = open(&self.input)?;
        let mut inputs = super::source::files_of(&source);
        inputs.extend(self.plan.clone());
        if !self.calibration.texts.is_empty() {
            inputs.extend(self.calibration.files().map(Path::to_owned));
        }
        Ok(inputs)
    }

    /// What is asked for, as every stage reads it.
    pub fn options(&self) -> CompileOptions {
        let by_effort = self.wishes.effort.work().calibration_tokens;
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
                self.goal.or_balanced(&self.wishes),
            ),
        };
        CompileOptions {
            input: self.input.clone(),
            output: self.output.clone(),
            planning: match &self.plan {
                Some(plan) => Planning::File(plan.clone()),
                None => Planning::Make {
                    request: self.wishes.request(calibration.is_some()),
                    target: self.target.clone(),
                },
            },
            calibration,
            treatment: self.wishes.treatment,
            goal,
            planes: self.planes,
            with_source: self.with_source,
            kernels: self.kernels.clone(),
            probe_layer: self.probe_layer,
            device: self.device,
            threads: self.threads.unwrap_or_else(all_cores),
            overwrite: self.overwrite,
        }
    }

    /// Compiles.
    ///
    /// # Errors
    /// [`CompileError`]; nothing is left under the output's name then.
    pub fn run(&self) -> Result<Report, CompileError> {
        self.run_with(|_| {})
    }

    /// Compiles and tells of it; `tell` is called from several threads.
    ///
    /// # Errors
    /// [`CompileError`]; nothing is left under the output's name then.
    pub fn run_with(&self, tell: impl Fn(Event) + Sync) -> Result<Report, CompileError> {
        self.check()?;
        compile(&self.options(), Watch::new(&tell, &self.cancel))
    }

    /// What a compilation will take; nothing is written but the cache of a calibration.
    ///
    /// # Errors
    /// [`CompileError`] for whatever can be refused before the work.
    pub fn forecast(&self) -> Result<Forecast, CompileError> {
        self.check()?;
        forecast(&self.options(), Watch::new(&|_| {}, &self.cancel))
    }

    /// Refuses wishes that do not go together; a plan of a file has decided.
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

//! Loads and executes language models. Models are `.htz` artifacts, GGUF files or folders with
//! safetensors.
//!
//! A single step:
//!
//! ```
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecialTokens};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! let model = Model::open(path)?;
//! let tokenizer = model.tokenizer()?;
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let logits = session.step(&tokenizer.encode("Once upon a", AddSpecialTokens::Prompt))?;
//! println!("{}", tokenizer.decode(&[Sampler::greedy().sample(logits)?]));
//! # Ok(()) }
//! ```
//!
//! # Generation
//!
//! ```no_run
//! use htc_loader::{Cpu, Model, Session, generate::{GenerateLimits, generate}, sampling::Sampler, tokenizer::AddSpecialTokens};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("model.htz")?;
//! let tokenizer = model.tokenizer()?;
//! let prompt = tokenizer.encode("Once upon a time", AddSpecialTokens::Prompt);
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! generate(&mut session, &tokenizer, &mut Sampler::greedy(), &prompt, GenerateLimits::tokens(64), |text| {
//!     print!("{text}");
//!     true
//! })?;
//! # Ok(()) }
//! ```
//!
//! See also `examples/generate.rs`.
//!
//! At the end of the model's context, generation stops or the sequence slides:
//!
//! ```
//! # use htc_loader::generate::{GenerateLimits, ContextFullPolicy, generate};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecialTokens};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! # let model = Model::open(path)?;
//! # let tokenizer = model.tokenizer()?;
//! # let prompt = tokenizer.encode("Once upon a time", AddSpecialTokens::Prompt);
//! // A model with a context of 512 positions.
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let mut limits = GenerateLimits::tokens(520);
//! (limits.ignore_end, limits.context_full) = (true, ContextFullPolicy::Slide);
//! let written = generate(&mut session, &tokenizer, &mut Sampler::greedy(), &prompt, limits, |_| true)?;
//! assert!(written.slides > 0);
//! # Ok(()) }
//! ```
//!
//! # Token by token
//!
//! [`Session::step`] reads any number of tokens and returns the logits after the last:
//!
//! ```no_run
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecialTokens};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = Model::open("model.htz")?;
//! # let tokenizer = model.tokenizer()?;
//! # let prompt = tokenizer.encode("Once upon a time", AddSpecialTokens::Prompt);
//! # let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! # let mut sampler = Sampler::greedy();
//! let mut decoder = tokenizer.decoder();
//! let mut token = sampler.sample(session.step(&prompt)?)?;
//! while !tokenizer.is_end_token(token) && session.position() < session.limit() {
//!     print!("{}", decoder.push(token));
//!     token = sampler.sample(session.step(&[token])?)?;
//! }
//! # Ok(()) }
//! ```
//!
//! [`generate::Generator`] adds limits and timings. [`Session::truncate`] removes the latest
//! tokens.
//!
//! # Several sequences
//!
//! Sessions share a model in an [`Arc`](std::sync::Arc), and may share the threads of a [`Pool`].
//! They may move between threads:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use htc_loader::{Cpu, Model, Pool, Session};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::open("model.htz")?);
//! let pool = Arc::new(Pool::new(2)?);
//! let mut first = Session::new(Arc::clone(&model), Cpu::new(&pool), 512)?;
//! let mut second = Session::new(model, Cpu::new(&pool), 512)?;
//! # first.step(&[1])?;
//! # second.step(&[1])?;
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! Opening and executing a model return an [`ExecError`], e.g. if the file is damaged, the session is
//! full or a number is out of range.
//!
//! # Executing a part of the model
//!
//! * [`Session::set_fraction`] limits the active fraction of weight bytes, copying nothing. It
//!   drops refinements of an elastic artifact, then components of factors (`examples/dial.rs`).
//! * [`Session::set_rank_fraction`] uses the leading components of every factorised matrix.
//! * [`Session::block`] executes one block; a [`exec::Tap`] observes its activations.
//! * [`Session::forward_from`] executes from a block to the end.
//!
//! ```no_run
//! # use htc_loader::dial::ActiveFraction;
//! # use htc_loader::{Cpu, Model, Session};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tokens = [1, 2, 3];
//! // Compiled with `htc compile --planes 2`.
//! let mut session = Session::new(Model::open("elastic.htz")?, Cpu::with_threads(2)?, 512)?;
//! session.step(&tokens)?;
//! let setting = session.set_fraction(ActiveFraction::new(0.7)?)?;
//! let logits = session.step(&[4])?;
//! println!("{} logits", logits.len());
//! println!("of {} bytes", session.model().dial().active_bytes(setting));
//! # Ok(()) }
//! ```
//!
//! # Speculative decoding
//!
//! A cheaper draft model proposes tokens that the model verifies in one pass: another model of the
//! same vocabulary, or the model itself with a part of its weights. The output is the model's own
//! ([`speculate`]).
//!
//! ```
//! # use htc_loader::dial::ActiveSetting;
//! # use htc_loader::generate::{Generator, GenerateLimits};
//! # use htc_loader::speculate::{DraftLength, Speculator};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecialTokens};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! # let model = std::sync::Arc::new(Model::open(path)?);
//! # let small = model.clone();
//! let tokenizer = model.tokenizer()?;
//! let prompt = tokenizer.encode("Once upon a time", AddSpecialTokens::Prompt);
//! let mut sampler = Sampler::greedy();
//! let draft = Session::new(small, Cpu::with_threads(2)?, 512)?;
//! let mut draft = Speculator::with_draft_model(draft, &model, DraftLength::Auto, &sampler)?;
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let (tokens, limits) = (&prompt, GenerateLimits::tokens(8));
//! Generator::with_draft(&mut session, &mut draft, &tokenizer, &mut sampler, tokens, limits)?.run(|text| {
//!     print!("{text}");
//!     true
//! })?;
//! # Ok(()) }
//! ```
//!
//! [`Speculator::with_same_model`](speculate::Speculator::with_same_model) drafts with a part of
//! the model's own weights. An artifact can also draft for its source model, if it contains it
//! (`htc compile --with-source`):
//!
//! ```no_run
//! # use htc_loader::dial::{ActiveFraction, ActiveSetting};
//! # use htc_loader::speculate::{DraftLength, Speculator};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let sampler = Sampler::greedy();
//! // 70 % of the bytes of an elastic artifact.
//! let model = Model::open("elastic.htz")?;
//! let setting = model.dial().setting_for(ActiveFraction::new(0.7)?)?;
//! let by_itself: Speculator = Speculator::with_same_model(setting, DraftLength::Auto, &sampler)?;
//!
//! // An artifact drafts for its source.
//! let draft = Model::open("with-source.htz")?;
//! let source = draft.source()?.ok_or("no source in it")?;
//! let draft = Session::new(draft, Cpu::with_threads(2)?, 512)?;
//! let for_its_source = Speculator::with_draft_model(draft, &source, DraftLength::Auto, &sampler)?;
//! # drop((by_itself, for_its_source));
//! # Ok(()) }
//! ```
//!
//! If the source is a separate file, check its digest, since the output is the text of whichever
//! model verifies:
//!
//! ```no_run
//! # use htc_formats::htz::Htz;
//! # use htc_loader::Model;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = Model::open("model.gguf")?;
//! let made_from = Htz::open("model.htz")?.manifest().provenance.source_sha256;
//! if source.file().digest() != made_from {
//!     return Err("model.htz was made from another model".into());
//! }
//! # Ok(()) }
//! ```
//!
//! [`Speculator::with_adaptation`](speculate::Speculator::with_adaptation) lets a draft learn from
//! rejected tokens:
//!
//! ```
//! # use htc_loader::adapt::{AdaptOptions, Adaptation};
//! # use htc_loader::speculate::{DraftLength, Speculator};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! # let model = std::sync::Arc::new(Model::open(path)?);
//! # let small = model.clone();
//! # let sampler = Sampler::greedy();
//! let correction = Adaptation::gradient(small.file(), AdaptOptions::gradient())?;
//! let draft = Session::new(small, Cpu::with_threads(2)?, 512)?;
//! let draft = Speculator::with_draft_model(draft, &model, DraftLength::Auto, &sampler)?.with_adaptation(correction);
//! # drop(draft);
//! # Ok(()) }
//! ```
//!
//! The adaptation can be stored in a file, which is valid for these two models only:
//!
//! ```no_run
//! # use std::path::Path;
//! # use htc_formats::learnt::TrainedDraft;
//! # use htc_loader::Model;
//! # use htc_loader::adapt::{AdaptOptions, Adaptation};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (model, small) = (Model::open("model.gguf")?, Model::open("small.htz")?);
//! let (state, [of_draft, of_model]) = (Path::new("learnt"), [&small, &model].map(|m| m.file().digest()));
//! let mut correction = Adaptation::gradient(small.file(), AdaptOptions::gradient())?;
//! if let Some(learnt) = TrainedDraft::read(state)? {
//!     correction.restore(&learnt, of_draft, of_model)?;
//! }
//! // Generate text; `Speculator::adaptation` returns the adaptation.
//! correction.state(of_draft, of_model).write(state)?;
//! # Ok(()) }
//! ```
//!
//! A draft with shared bases (`htc compile --method shared-basis`) can instead adapt these to the text by
//! Oja's rule, projecting the model's weights again:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use htc_loader::adapt::{AdaptOptions, Adaptation};
//! # use htc_loader::dial::ActiveSetting;
//! # use htc_loader::speculate::{DraftLength, Speculator};
//! # use htc_loader::{Cpu, Model, Pool, Session, sampling::Sampler};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let sampler = Sampler::greedy();
//! let pool = Arc::new(Pool::new(2)?);
//! let (model, small) = (Model::open("model.gguf")?, Model::open("grc.htz")?);
//! let bases = Adaptation::oja(small.file(), ActiveSetting::FULL, model.file(), AdaptOptions::oja(), &pool)?;
//! let draft = Session::new(small, Cpu::new(&pool), 512)?;
//! let draft = Speculator::with_draft_model(draft, &model, DraftLength::Auto, &sampler)?.with_adaptation(bases);
//! # drop(draft);
//! # Ok(()) }
//! ```
//!
//! # Temperature and power limits
//!
//! A [`live::Governor`] reads a sensor on its own thread. A session that
//! [follows](Session::follow_with) it adapts its active fraction to temperature and power cap, and
//! the energy is measured. [`Generator`](generate::Generator) follows before each token; with
//! manual steps call [`Session::follow`].
//!
//! ```
//! # use htc_loader::dial::ActiveFraction;
//! # use htc_loader::generate::{GenerateLimits, generate};
//! # use htc_loader::live::{SharedFraction, Governor, GovernorOptions, ControlLaw, ControlLawOptions, EnergyPhase, open_sensor};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecialTokens};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! let model = Model::open(path)?;
//! let tokenizer = model.tokenizer()?;
//! let prompt = tokenizer.encode("Once upon a time", AddSpecialTokens::Prompt);
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let follow = SharedFraction::new();
//! let law = ControlLaw::new(ControlLawOptions { low_celsius: 65.0, high_celsius: 85.0, ..ControlLawOptions::default() })?;
//! let sensor = open_sensor(&"sim:start=70".parse()?, &follow)?;
//! let governor = Governor::start(sensor, law, GovernorOptions::default(), &follow, |event| {
//!     if let Some(warning) = event.warning() {
//!         eprintln!("{warning}");
//!     }
//! })?;
//! session.follow_with(follow, ActiveFraction::FULL)?;
//! governor.enter_phase(EnergyPhase::Work)?;
//! generate(&mut session, &tokenizer, &mut Sampler::greedy(), &prompt, GenerateLimits::tokens(8), |text| {
//!     print!("{text}");
//!     true
//! })?;
//! governor.enter_phase(EnergyPhase::Other)?;
//! let energy = governor.stop()?.ok_or("the sensor knows no power")?;
//! println!("{:.1} J, {:?} tokens for each", energy.joules, energy.tokens_per_joule(8));
//! # Ok(()) }
//! ```
//!
//! The same law takes a power cap in watts. An [`EventsFile`](live::EventsFile) stores every event
//! as a line of JSON:
//!
//! ```
//! # use htc_loader::live::{EventsFile, SharedFraction, Governor, GovernorOptions, ControlLaw, ControlLawOptions, open_sensor};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("events.ndjson");
//! let follow = SharedFraction::new();
//! let law = ControlLaw::new(ControlLawOptions { power_cap: Some(120.0), ..ControlLawOptions::default() })?;
//! let mut events = EventsFile::create(&path, false)?;
//! let sensor = open_sensor(&"sim".parse()?, &follow)?;
//! let governor = Governor::start(sensor, law, GovernorOptions::default(), &follow, move |event| {
//!     if let Err(error) = events.write(event) {
//!         eprintln!("{error}");
//!     }
//! })?;
//! # governor.stop()?;
//! # assert!(std::fs::read_to_string(&path)?.contains("\"fraction\""));
//! # Ok(()) }
//! ```
//!
//! # Several sequences
//!
//! An [`Engine`] reads tokens of many sequences in one pass, which reads the weights once, as a
//! server does. Each sequence has the bits that it has alone; sequences come, go, are copied and
//! truncated at any time.
//!
//! # On a GPU
//!
//! [`DeviceChoice::execute`](device::DeviceChoice::execute) runs a [`device::DeviceWork`] on the
//! chosen device; `Auto` takes an NVIDIA GPU with enough memory, else the CPU:
//!
//! ```
//! # use std::sync::Arc;
//! # use htc_loader::device::{DeviceChoice, Executor, DeviceWork};
//! # use htc_loader::{Model, Pool, Session};
//! struct Greedy(Arc<Model>);
//!
//! impl DeviceWork for Greedy {
//!     type Outcome = Result<Vec<f32>, Box<dyn std::error::Error>>;
//!
//!     fn run<E: Executor>(self, executor: &E) -> Self::Outcome {
//!         let model = executor.load(&self.0)?;
//!         let mut session = Session::new(model, executor.backend(), 512)?;
//!         Ok(session.step(&[1, 2, 3])?.to_vec())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! let (model, pool) = (Arc::new(Model::open(path)?), Arc::new(Pool::new(2)?));
//! let told = |error: &_| eprintln!("on the processor: {error}");
//! let logits = DeviceChoice::Auto.execute(&pool, told, Greedy(model))??;
//! # assert!(!logits.is_empty());
//! # Ok(()) }
//! ```
//!
//! # KV cache compression
//!
//! [`Session::with_kv_of`] stores keys and values as a [`kv::KvKind`], in bases of the artifact if
//! needed, and evicts prompt positions according to [`kv::KvOptions`]:
//!
//! ```
//! # use htc_loader::kv::{KvKind, KvOptions};
//! # use htc_loader::{Cpu, Model, Session, tokenizer::AddSpecialTokens};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! let model = Model::open(path)?;
//! let tokenizer = model.tokenizer()?;
//! let mut options = KvOptions::new(KvKind::Q8_0 { rotated: true });
//! options.max_prompt_positions = Some(64);
//! let mut session = Session::with_kv_of(model, Cpu::with_threads(2)?, 512, &options)?;
//! session.read_prompt(&tokenizer.encode("Once upon a time", AddSpecialTokens::Prompt))?;
//! println!("{} bytes a position", session.kv_usage().bytes_per_position);
//! # Ok(()) }
//! ```
//!
//! Low-rank kinds need an artifact of `htc compile --kv-bases`. Kinds can be parsed from their
//! command-line names:
//!
//! ```no_run
//! # use htc_loader::kv::{KvKind, KvOptions};
//! # use htc_loader::{Cpu, Model, Session};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = KvOptions::new("oja:0.6".parse::<KvKind>()?);
//! let session = Session::with_kv_of(Model::open("model.htz")?, Cpu::with_threads(2)?, 512, &options)?;
//! # drop(session);
//! # Ok(()) }
//! ```
//!
//! # Backends
//!
//! A [`Backend`] owns activations and the KV cache, and loads weights to its device. [`Cpu`], the
//! default, uses them in the mapped file. [`backend::Reference`] computes in float64 for
//! comparisons. [`Model::load`] loads a model to any backend.

pub mod adapt;
pub mod backend;
pub mod device;
pub mod dial;
pub mod error;
pub mod exec;
pub mod generate;
pub mod kv;
pub mod kv_bases;
pub mod linear;
pub mod live;
pub mod model;
pub mod sampling;
pub mod speculate;
pub mod tensor;
pub mod tokenizer;

pub use backend::{Backend, Cpu};
pub use error::ExecError;
pub use exec::{Engine, Session};
pub use htc_kernels::{Pool, PoolError};
pub use model::Model;

/// The example of the README compiles and holds.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

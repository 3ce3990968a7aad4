//! Opens a language model, binds it to its architecture and executes it. Models are `.htz`
//! artifacts, GGUF files or folders with safetensors.
//!
//! Open, session, step, sample, text:
//!
//! ```
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecial};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! let model = Model::open(path)?;
//! let tokenizer = model.tokenizer()?;
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let logits = session.step(&tokenizer.encode("Once upon a", AddSpecial::Prompt))?;
//! println!("{}", tokenizer.decode(&[Sampler::greedy().sample(logits)?]));
//! # Ok(()) }
//! ```
//!
//! # From a prompt to text
//!
//! ```no_run
//! use htc_loader::{Cpu, Model, Session, generate::{Limits, generate}, sampling::Sampler, tokenizer::AddSpecial};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("model.htz")?;
//! let tokenizer = model.tokenizer()?;
//! let prompt = tokenizer.encode("Once upon a time", AddSpecial::Prompt);
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! generate(&mut session, &tokenizer, &mut Sampler::greedy(), &prompt, Limits::tokens(64), |text| {
//!     print!("{text}");
//!     true
//! })?;
//! # Ok(()) }
//! ```
//!
//! `examples/generate.rs` is a program that does it, piece by piece.
//!
//! Where all positions that the model was trained for are used, writing stops, or the sequence slides:
//!
//! ```
//! # use htc_loader::generate::{Limits, OnFull, generate};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecial};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! # let model = Model::open(path)?;
//! # let tokenizer = model.tokenizer()?;
//! # let prompt = tokenizer.encode("Once upon a time", AddSpecial::Prompt);
//! // Of a model of 512 positions.
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let mut limits = Limits::tokens(520);
//! (limits.ignore_end, limits.on_full) = (true, OnFull::Slide);
//! let written = generate(&mut session, &tokenizer, &mut Sampler::greedy(), &prompt, limits, |_| true)?;
//! assert!(written.slides > 0);
//! # Ok(()) }
//! ```
//!
//! # Token by token
//!
//! A [`Session`] is a sequence that a model reads. [`Session::step`] reads tokens behind those
//! before, any number of them, and gives the logits behind the last; what is done with them is the
//! caller's:
//!
//! ```no_run
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecial};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = Model::open("model.htz")?;
//! # let tokenizer = model.tokenizer()?;
//! # let prompt = tokenizer.encode("Once upon a time", AddSpecial::Prompt);
//! # let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! # let mut sampler = Sampler::greedy();
//! let mut decoder = tokenizer.decoder();
//! let mut token = sampler.sample(session.step(&prompt)?)?;
//! while !tokenizer.is_end(token) && session.position() < session.limit() {
//!     print!("{}", decoder.push(token));
//!     token = sampler.sample(session.step(&[token])?)?;
//! }
//! # Ok(()) }
//! ```
//!
//! [`generate::Generator`] does that with limits and times, and leaves the loop to its caller.
//! [`Session::truncate`] takes back what was read last.
//!
//! # Several sequences
//!
//! Sessions of one model share it, in an [`Arc`](std::sync::Arc), and may share the threads of a
//! [`Pool`]. A session owns what it needs, so that it may move to another thread:
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
//! # What goes wrong
//!
//! A file that is damaged, or that this build does not know, is refused by a [`LoadError`] when it is opened. A
//! forward pass fails with an [`ExecError`]: where a session is full, or a number is beyond what its type holds.
//!
//! # Less than the whole model
//!
//! * [`Session::set_fraction`] touches a part of the weights' bytes, from one token to the next: it leaves out
//!   refinements of an elastic artifact, then components of what is in factors. Nothing is copied;
//!   `examples/dial.rs` measures it.
//! * [`Session::set_rank_fraction`] uses the leading part of every factorised matrix, from one
//!   token to the next: components are stored in decreasing order of importance.
//! * [`Session::block`] executes one block on a residual stream, and a [`exec::Tap`] sees what
//!   happens inside; [`Session::forward_from`] executes from a block to the end.
//!
//! ```no_run
//! # use htc_loader::dial::Fraction;
//! # use htc_loader::{Cpu, Model, Session};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tokens = [1, 2, 3];
//! // Of `htc compile --planes 2`.
//! let mut session = Session::new(Model::open("elastic.htz")?, Cpu::with_threads(2)?, 512)?;
//! session.step(&tokens)?;
//! let setting = session.set_fraction(Fraction::new(0.7)?)?;
//! let logits = session.step(&[4])?;
//! println!("{} logits", logits.len());
//! println!("of {} bytes", session.model().dial().bytes(setting));
//! # Ok(()) }
//! ```
//!
//! # With a draft
//!
//! A cheaper model drafts tokens that the model reads in one pass: another one of the same vocabulary, or the model itself with
//! less of its weights. What is written is the model's own ([`speculate`]).
//!
//! ```
//! # use htc_loader::dial::Setting;
//! # use htc_loader::generate::{Generator, Limits};
//! # use htc_loader::speculate::{DraftLength, Speculator};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecial};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! # let model = std::sync::Arc::new(Model::open(path)?);
//! # let small = model.clone();
//! let tokenizer = model.tokenizer()?;
//! let prompt = tokenizer.encode("Once upon a time", AddSpecial::Prompt);
//! let mut sampler = Sampler::greedy();
//! let draft = Session::new(small, Cpu::with_threads(2)?, 512)?;
//! let mut draft = Speculator::other(draft, &model, DraftLength::Auto, &sampler)?;
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let (tokens, limits) = (&prompt, Limits::tokens(8));
//! Generator::with_draft(&mut session, &mut draft, &tokenizer, &mut sampler, tokens, limits)?.run(|text| {
//!     print!("{text}");
//!     true
//! })?;
//! # Ok(()) }
//! ```
//!
//! With [`Speculator::with_same_model`](speculate::Speculator::with_same_model) the model drafts with less of its own weights, and the model that is
//! drafted for may be the one that an artifact was made from, where it lies in the artifact (`htc compile --with-source`):
//!
//! ```no_run
//! # use htc_loader::dial::{Fraction, Setting};
//! # use htc_loader::speculate::{DraftLength, Speculator};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let sampler = Sampler::greedy();
//! // With 70 % of the bytes of an elastic artifact.
//! let model = Model::open("elastic.htz")?;
//! let setting = model.dial().at(Fraction::new(0.7)?)?;
//! let by_itself: Speculator = Speculator::own(setting, DraftLength::Auto, &sampler)?;
//!
//! // An artifact drafts for what it was made from.
//! let draft = Model::open("with-source.htz")?;
//! let source = draft.source()?.ok_or("no source in it")?;
//! let draft = Session::new(draft, Cpu::with_threads(2)?, 512)?;
//! let for_its_source = Speculator::other(draft, &source, DraftLength::Auto, &sampler)?;
//! # drop((by_itself, for_its_source));
//! # Ok(()) }
//! ```
//!
//! Where the source is a file of its own, the artifact's provenance has the digest that it must have, or what is written is some
//! other model's text:
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
//! A draft learns from what was not kept with one more call, [`Speculator::with_adaptation`](speculate::Speculator::with_adaptation):
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
//! let draft = Speculator::other(draft, &model, DraftLength::Auto, &sampler)?.with_adaptation(correction);
//! # drop(draft);
//! # Ok(()) }
//! ```
//!
//! What was learnt outlives the run, as a file that belongs to these two models and is refused for any other:
//!
//! ```no_run
//! # use std::path::Path;
//! # use htc_formats::learnt::Learnt;
//! # use htc_loader::Model;
//! # use htc_loader::adapt::{AdaptOptions, Adaptation};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (model, small) = (Model::open("model.gguf")?, Model::open("small.htz")?);
//! let (state, [of_draft, of_model]) = (Path::new("learnt"), [&small, &model].map(|m| m.file().digest()));
//! let mut correction = Adaptation::gradient(small.file(), AdaptOptions::gradient())?;
//! if let Some(learnt) = Learnt::read(state)? {
//!     correction.restore(&learnt, of_draft, of_model)?;
//! }
//! // Texts are written, and `Speculator::adaptation` gives it back.
//! correction.state(of_draft, of_model).write(state)?;
//! # Ok(()) }
//! ```
//!
//! A draft in shared bases (`htc compile --method grc`) can let these follow the text instead, by Oja's rule; the model's own weights
//! are projected anew:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use htc_loader::adapt::{AdaptOptions, Adaptation};
//! # use htc_loader::dial::Setting;
//! # use htc_loader::speculate::{DraftLength, Speculator};
//! # use htc_loader::{Cpu, Model, Pool, Session, sampling::Sampler};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let sampler = Sampler::greedy();
//! let pool = Arc::new(Pool::new(2)?);
//! let (model, small) = (Model::open("model.gguf")?, Model::open("grc.htz")?);
//! let bases = Adaptation::oja(small.file(), Setting::FULL, model.file(), AdaptOptions::oja(), &pool)?;
//! let draft = Session::new(small, Cpu::new(&pool), 512)?;
//! let draft = Speculator::other(draft, &model, DraftLength::Auto, &sampler)?.with_adaptation(bases);
//! # drop(draft);
//! # Ok(()) }
//! ```
//!
//! # As much as the device allows
//!
//! A [`live::Governor`] reads a sensor on a thread of its own; a session that [follows](Session::follow_with) it touches as much of
//! the model as the temperature and a cap on the power allow, from one token to the next, and the joules of the
//! work are known at the end. [`Generator`](generate::Generator) asks in front of each token; whoever steps by hand calls [`Session::follow`].
//!
//! ```
//! # use htc_loader::dial::Fraction;
//! # use htc_loader::generate::{Limits, generate};
//! # use htc_loader::live::{Follow, Governor, GovernorOptions, Law, LawOptions, Phase, open};
//! # use htc_loader::{Cpu, Model, Session, sampling::Sampler, tokenizer::AddSpecial};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! let model = Model::open(path)?;
//! let tokenizer = model.tokenizer()?;
//! let prompt = tokenizer.encode("Once upon a time", AddSpecial::Prompt);
//! let mut session = Session::new(model, Cpu::with_threads(2)?, 512)?;
//! let follow = Follow::new();
//! let law = Law::new(LawOptions { low: 65.0, high: 85.0, ..LawOptions::default() })?;
//! let sensor = open(&"sim:start=70".parse()?, &follow)?;
//! let governor = Governor::start(sensor, law, GovernorOptions::default(), &follow, |event| {
//!     if let Some(warning) = event.warning() {
//!         eprintln!("{warning}");
//!     }
//! })?;
//! session.follow_with(follow, Fraction::FULL)?;
//! governor.enter(Phase::Work)?;
//! generate(&mut session, &tokenizer, &mut Sampler::greedy(), &prompt, Limits::tokens(8), |text| {
//!     print!("{text}");
//!     true
//! })?;
//! governor.enter(Phase::Other)?;
//! let energy = governor.stop()?.ok_or("the sensor knows no power")?;
//! println!("{:.1} J, {:?} tokens for each", energy.joules, energy.tokens_per_joule(8));
//! # Ok(()) }
//! ```
//!
//! A budget of watts is a number of the same law, and every event of the thread is a line of JSON where an [`EventsFile`](live::EventsFile) is
//! given:
//!
//! ```
//! # use htc_loader::live::{EventsFile, Follow, Governor, GovernorOptions, Law, LawOptions, open};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("events.ndjson");
//! let follow = Follow::new();
//! let law = Law::new(LawOptions { power_cap: Some(120.0), ..LawOptions::default() })?;
//! let mut events = EventsFile::create(&path, false)?;
//! let sensor = open(&"sim".parse()?, &follow)?;
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
//! # On a GPU
//!
//! A [`device::DeviceChoice`] is a device by its name, and [`DeviceChoice::execute`](device::DeviceChoice::execute) does some
//! [`device::DeviceWork`] there, with backends of whichever kind: on an NVIDIA GPU where there is one and it has room, else on the processor:
//!
//! ```
//! # use std::sync::Arc;
//! # use htc_loader::device::{DeviceChoice, Executor, Work};
//! # use htc_loader::{Model, Pool, Session};
//! struct Greedy(Arc<Model>);
//!
//! impl Work for Greedy {
//!     type Outcome = Result<Vec<f32>, Box<dyn std::error::Error>>;
//!
//!     fn on<E: Executor>(self, executor: &E) -> Self::Outcome {
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
//! # With less memory for what was read
//!
//! [`Session::with_kv_of`] stores keys and values as a [`kv::KvKind`] says, in bases of the artifact where it asks for some, and keeps
//! of a prompt as many positions as [`kv::KvOptions`] say:
//!
//! ```
//! # use htc_loader::kv::{KvKind, KvOptions};
//! # use htc_loader::{Cpu, Model, Session, tokenizer::AddSpecial};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
//! let model = Model::open(path)?;
//! let tokenizer = model.tokenizer()?;
//! let mut options = KvOptions::new(KvKind::Q8_0 { rotated: true });
//! options.keep = Some(64);
//! let mut session = Session::with_kv_of(model, Cpu::with_threads(2)?, 512, &options)?;
//! session.read_prompt(&tokenizer.encode("Once upon a time", AddSpecial::Prompt))?;
//! println!("{} bytes a position", session.kv_usage().bytes_per_position);
//! # Ok(()) }
//! ```
//!
//! A kind is spelt as on the command line, too; those in low rank need an artifact of `htc compile --kv-bases`:
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
//! # Where it executes
//!
//! A [`Backend`] owns activations, keys and values, and has the weights where it reads them. [`Cpu`]
//! uses them in the mapped file, with the best instructions of the processor.
//! [`backend::Reference`] computes everything in float64, slowly: what the others are held
//! against. `Session` and `Model` without a parameter are those of the processor;
//! [`Model::load`] opens a model for another backend.

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
pub use error::{ExecError, LoadError};
pub use exec::Session;
pub use htc_kernels::{Pool, PoolError};
pub use model::Model;

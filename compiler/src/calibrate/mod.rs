//! Statistics of a model's activations while real text flows through it.
//!
//! The text goes through the model block by block: all windows through the first block, then all
//! through the second, so that the statistics of one layer are in memory at a time. Between two
//! blocks the residual stream of the whole text lies in a file. The forward pass is the loader's
//! own, and the activations are the original model's, so that every slot can be factorised alone
//! and in any order.
//!
//! Every layer's statistics are a file in the cache, under a name made of the digests of the model
//! and the text and of the options. A later run finds them, and one that was interrupted goes on
//! behind the last layer that was finished. A file that is damaged or of something else is
//! reported and made again. The sums are made in a fixed order: their bytes do not depend on the
//! number of threads.

pub mod cache;
mod files;
mod moments;
mod statistics;
mod store;
pub mod windows;

use std::ffi::OsStr;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::htz::{Digest, Hasher};
use htc_formats::model::HyperParameters;
use htc_kernels::PoolError;
use htc_kernels::cpu::Cpu;
use htc_loader::kv::KvType;
use htc_loader::tokenizer::{Tokenizer, TokenizerError};
use htc_loader::{ExecError, LoadError, Model, Session};
use thiserror::Error;

use crate::calibrate::windows::{TextTooShort, Windows};
use crate::event::{Cancelled, Event, Watch};
pub use crate::request::{CalibrationOptions, DEFAULT_CONTEXT, DEFAULT_TOKENS};
use crate::system::text;
use crate::system::{disk, lock, memory};
pub use cache::{cache_folder, forget};
use cache::{entry_name, open_entry};
use files::{Files, layer_name, stream_name};
use statistics::LayerSums;
use store::{Extent, Hashed, Identity};
pub use store::{Moment, StoredLayer};

/// Changes with the statistics' definition: files of another version are not found.
const VERSION: u32 = 3;

/// Held by the process that works in the folder of a calibration.
const LOCK: &str = "lock";

/// Windows at most that are measured of a text of its own.
const MOST_HELD_OUT: usize = 64;

impl CalibrationOptions {
    /// Makes sure that the model can be calibrated so.
    ///
    /// # Errors
    /// [`CalibrateError::FewTokens`], [`CalibrateError::LongContext`].
    pub fn check(&self, hyper: &HyperParameters) -> Result<(), CalibrateError> {
        let (tokens, context, limit) = (self.tokens, self.context, hyper.context);
        if tokens < context || context == 0 {
            return Err(CalibrateError::FewTokens { tokens, context });
        }
        if context > limit {
            return Err(CalibrateError::LongContext { context, limit });
        }
        let texts = std::iter::once(&self.text).chain(&self.held_out);
        for path in texts {
            text::open(path)?;
        }
        match &self.held_out {
            Some(other) if disk::same_place(other, &self.text) => {
                Err(CalibrateError::HeldOutIsText(other.clone()))
            }
            _ => Ok(()),
        }
    }

    /// The digest that names the statistics of a model on the windows of a text. The ids of the
    /// tokens stand for the text and the tokenizer. The last bits depend on the kernels.
    fn key(&self, source: Digest, windows: &Windows) -> Digest {
        // Every field is named: one that is added must be thought of here. Text, tokens and context are
        // in the windows; the text to measure on is not calibrated on.
        let CalibrationOptions {
            text: _,
            tokens: _,
            context: _,
            cache: _,
            trust_cache: _,
            lock_timeout: _,
            held_out: _,
        } = self;
        let named = format!(
            "htc {} calibration {VERSION} {}\nsource {source}\ncontext {}\ntokens {}\n",
            env!("CARGO_PKG_VERSION"),
            htc_kernels::cpu::instruction_set(),
            windows.context(),
            windows.digest(),
        );
        Digest::of(named.as_bytes())
    }
}

/// Why a calibration fails.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// The text cannot be read.
    #[error(transparent)]
    Text(#[from] crate::system::text::TextError),
    /// The text is shorter than a window.
    #[error("{}: {error}", path.display())]
    TooShort {
        /// The text.
        path: PathBuf,
        /// How short.
        error: TextTooShort,
    },
    /// There is no tokenizer.
    #[error("{}: {error}", path.display())]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// Why.
        error: TokenizerError,
    },
    /// The model cannot be executed.
    #[error("{}: {error}", path.display())]
    Load {
        /// The model.
        path: PathBuf,
        /// Why.
        error: LoadError,
    },
    /// A forward pass failed.
    #[error("{}: layer {layer}: {error}", path.display())]
    Exec {
        /// The model.
        path: PathBuf,
        /// The layer.
        layer: usize,
        /// Why.
        error: ExecError,
    },
    /// An activation is infinite or not a number.
    #[error(
        "{}: layer {layer}: an activation is not finite on this text; the model is damaged, or computes beyond float32",
        path.display()
    )]
    NotFinite {
        /// The model.
        path: PathBuf,
        /// The first layer with one.
        layer: usize,
    },
    /// Fewer tokens asked for than a window has.
    #[error(
        "`calibration_tokens` {tokens}: a window alone has {context} (`context`); ask for more, or for shorter windows"
    )]
    FewTokens {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens of a window.
        context: usize,
    },
    /// What is to be held out is what is calibrated on.
    #[error("`held_out` {}: the same text as `calibration`; leave it out and the end of the text is held out, or give another", .0.display())]
    HeldOutIsText(PathBuf),
    /// There is no room for the statistics.
    #[error("{}: no space: {needed} bytes of statistics are needed, {free} are free there; free some, or give another `cache` DIR", path.display())]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes of all layers and of two residual streams.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// The machine has not as much memory.
    #[error("{}: no memory: calibrating takes about {needed} bytes for the sums of a layer, {available} are available; end other programs, or do without `calibration`", path.display())]
    NoMemory {
        /// The model.
        path: PathBuf,
        /// Bytes of the sums and of a session.
        needed: u64,
        /// What is available.
        available: u64,
    },
    /// Windows longer than what the model was trained for.
    #[error("`context` {context}: the model was trained for {limit} positions; give at most that")]
    LongContext {
        /// Tokens of a window.
        context: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// The residual stream changed while it was used.
    #[error("{}: not what was written there; does another program use this folder? Start again", .0.display())]
    Stream(PathBuf),
    /// There is no place for the cache.
    #[error(
        "neither XDG_CACHE_HOME nor HOME is set; say where statistics may lie with `cache` DIR"
    )]
    NoCache,
    /// What is in the cache is somebody else's.
    #[error(
        "{}: these statistics are of another user ({owner}), who may have laid anything there; take them all the same with `trust_cache`, or give another folder with `cache`", path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// The number of that user.
        owner: u32,
    },
    /// Another process works in the cache.
    #[error(
        "{}: another htc still holds this; wait longer with `lock_timeout`, or give another folder with `cache`", .0.display()
    )]
    Locked(PathBuf),
    /// A file of the cache cannot be written or read.
    #[error("{}: {error}; give another folder with `cache` DIR", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The system gives no threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// The statistics of a model on a text, layer by layer in the cache.
#[derive(Debug)]
pub struct Calibration {
    /// What names it.
    pub key: Digest,
    /// One for each layer.
    pub layers: Vec<Arc<StoredLayer>>,
    /// Digest of the text.
    pub text: Digest,
    /// Tokens that went through the model.
    pub tokens: usize,
    /// Tokens of a window.
    pub context: usize,
    /// Layers that were in the cache already.
    pub found: usize,
    /// What was kept back for measuring; `None` where the text has a single window.
    pub held_out: Option<Windows>,
}

/// Calibrates the model at `path`, whose digest is `source`.
///
/// # Errors
/// [`CalibrateError`].
pub fn calibrate(
    model: &Arc<Model>,
    source: Digest,
    options: &CalibrationOptions,
    threads: usize,
    watch: Watch,
) -> Result<Calibration, CalibrateError> {
    let path = model.file().path.clone();
    let hyper = model.hyper();
    options.check(hyper)?;
    let tokenizer = tokenizer(model)?;
    let text = crate::system::text::read(&options.text)?;
    let most = options.tokens / options.context;
    let all = |path: &Path, text: &str, most| {
        Windows::new(&tokenizer, text, options.context, most).map_err(|error| {
            let path = path.to_owned();
            CalibrateError::TooShort { path, error }
        })
    };
    let (windows, held_out) = match &options.held_out {
        None => all(&options.text, &text, None)?.hold_out(most),
        Some(path) => {
            let held_out = all(path, &crate::system::text::read(path)?, Some(MOST_HELD_OUT))?;
            (all(&options.text, &text, Some(most))?, Some(held_out))
        }
    };
    let text = Digest::of(text.as_bytes());
    let key = options.key(source, &windows);
    let cache = cache_folder(options)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| CalibrateError::Cache { path, error }
    };
    let extent = Extent {
        context: options.context,
        windows: windows.count(),
    };
    let files = Files {
        folder: open_entry(&cache, &entry_name(key), options.trust_cache)?,
        key,
        extent,
    };
    // Whoever comes second waits, and finds everything.
    let lock = files.path(LOCK);
    let locked = match files.folder.edit(OsStr::new(LOCK)) {
        Ok(file) => {
            let held = || {
                let said = format!(
                    "another htc calibrates this model on this text; waiting for it, {} seconds at most",
                    options.lock_timeout.as_secs()
                );
                watch.tell(Event::Warning(&said));
            };
            let ended = || watch.check().is_err();
            let taken = lock::take(&file, options.lock_timeout, held, ended);
            watch.check()?;
            match taken {
                Ok(true) => Ok(file),
                Ok(false) => return Err(CalibrateError::Locked(lock)),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    };
    // A cache that is complete and may only be read is as good.
    let only_read = |error: &io::Error| {
        let kinds = [
            io::ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::PermissionDenied,
        ];
        kinds.contains(&error.kind())
    };
    let may_write = !matches!(&locked, Err(error) if only_read(error));
    let mut layers = Vec::with_capacity(hyper.layers);
    for layer in 0..hyper.layers {
        match files.open(layer, hyper, watch) {
            Some(stored) => layers.push(Arc::new(stored)),
            None => break,
        }
    }
    // Behind the last layer that is there its residual stream is needed; without it everything is
    // made again, with the same bytes.
    if (1..hyper.layers).contains(&layers.len()) {
        let last = layers.len() - 1;
        if !files.has_stream(last, layers[last].stream_digest()) {
            let said = "calibration cannot go on where it was interrupted; it begins anew";
            watch.tell(Event::Warning(said));
            layers.clear();
        }
    }
    let found = layers.len();
    if may_write || found < hyper.layers {
        locked.as_ref().map_err(|error| {
            let (path, error) = (
                lock.clone(),
                io::Error::new(error.kind(), error.to_string()),
            );
            CalibrateError::Cache { path, error }
        })?;
    }
    if found < hyper.layers {
        check_memory(&path, hyper, extent, threads)?;
    }
    let stream = 4 * (windows.tokens() * hyper.width) as u64;
    let missing = (hyper.layers - found) as u64;
    let needed =
        missing * store::file_bytes(hyper, extent) as u64 + 2 * stream.min(missing * stream);
    if let Some(free) = disk::free(files.folder.path()).filter(|free| *free < needed) {
        let path = files.folder.path().to_owned();
        return Err(CalibrateError::NoSpace { path, needed, free });
    }
    if may_write {
        files.sweep(found).map_err(failed(files.folder.path()))?;
    }
    watch.tell(Event::Calibrating {
        windows: windows.count(),
        layers: hyper.layers,
        found,
    });
    let cpu = Cpu::with_threads(threads)?;
    let (model, context) = (Arc::clone(model), options.context);
    let session = Session::with_kv_type(model, cpu.clone().into(), context, KvType::F32);
    let mut session = session.map_err(|error| CalibrateError::Exec {
        path: path.clone(),
        layer: found,
        error,
    })?;
    let (mut x, mut bytes) = (Vec::new(), Vec::new());
    for layer in found..hyper.layers {
        let mut sums = LayerSums::new(&cpu, hyper, extent);
        let exec = |error| CalibrateError::Exec {
            path: path.clone(),
            layer,
            error,
        };
        let mut source = match layer {
            0 => None,
            _ => {
                let stream = stream_name(layer - 1);
                let file = files.folder.read(OsStr::new(&stream));
                let file = file.map_err(failed(&files.path(&stream)))?;
                Some(Hashed {
                    to: BufReader::with_capacity(1 << 20, file),
                    hasher: Hasher::default(),
                })
            }
        };
        let target = stream_name(layer);
        let mut digest = Hasher::default();
        let mut outcome = Ok(());
        // The stream behind the last layer is of no use.
        let mut pass = |mut to: Option<&mut dyn Write>| -> io::Result<()> {
            for window in windows.iter() {
                session.reset();
                let mut position = 0;
                for batch in window.chunks(session.batch()) {
                    x.resize(batch.len() * hyper.width, 0.0);
                    match &mut source {
                        Some(source) => read_numbers(source, &mut x, &mut bytes)?,
                        None => outcome = session.embed(batch, &mut x).map_err(exec),
                    }
                    sums.begin(position);
                    if outcome.is_ok() {
                        outcome = session.block(layer, &mut x, &mut sums).map_err(exec);
                    }
                    if outcome.is_ok() && !all_finite(&x) {
                        let path = path.clone();
                        outcome = Err(CalibrateError::NotFinite { path, layer });
                    }
                    if outcome.is_err() {
                        return Err(io::ErrorKind::Other.into());
                    }
                    sums.behind(&x);
                    if let Some(to) = &mut to {
                        write_numbers(to, &x, &mut bytes)?;
                    }
                    position += batch.len();
                }
                watch.tell(Event::Window);
                if let Err(cancelled) = watch.check() {
                    outcome = Err(cancelled.into());
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            Ok(())
        };
        let written = if layer + 1 < hyper.layers {
            disk::write_in(&files.folder, OsStr::new(&target), true, |to| {
                let mut hashed = Hashed {
                    to,
                    hasher: Hasher::default(),
                };
                pass(Some(&mut hashed))?;
                digest = hashed.hasher;
                Ok(())
            })
        } else {
            pass(None)
        };
        outcome?;
        sums.finish();
        written.map_err(failed(&files.path(&target)))?;
        if !sums.is_finite() {
            let path = path.clone();
            return Err(CalibrateError::NotFinite { path, layer });
        }
        if let (Some(read), Some(before)) = (source, layers.last())
            && read.hasher.finish() != before.stream_digest()
        {
            return Err(CalibrateError::Stream(files.path(&stream_name(layer - 1))));
        }
        let name = layer_name(layer);
        let statistics = files.path(&name);
        let identity = Identity { key, layer };
        let name = OsStr::new(&name);
        store::write(&files.folder, name, identity, digest.finish(), &sums)
            .map_err(failed(&statistics))?;
        if layer > 0 {
            let done = stream_name(layer - 1);
            let removed = files.folder.remove(OsStr::new(&done));
            removed.map_err(failed(&files.path(&done)))?;
        }
        let stored = files.open(layer, hyper, watch);
        let stored = stored.ok_or_else(|| io::Error::other("what was written is damaged"));
        layers.push(Arc::new(stored.map_err(failed(&statistics))?));
    }
    Ok(Calibration {
        key,
        layers,
        text,
        tokens: windows.tokens(),
        context: options.context,
        found,
        held_out,
    })
}

/// Refuses what does not fit the machine before any of it is taken: a small file may claim any width.
fn check_memory(
    path: &Path,
    hyper: &HyperParameters,
    extent: Extent,
    threads: usize,
) -> Result<(), CalibrateError> {
    let session = memory::of_session(hyper, extent.context, threads, KvType::F32);
    let needed = session.saturating_add(statistics::sums_bytes(hyper));
    match memory::available() {
        Some(available) if available < needed => Err(CalibrateError::NoMemory {
            path: path.to_owned(),
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

fn tokenizer(model: &Model) -> Result<Tokenizer, CalibrateError> {
    let failed = |error| CalibrateError::Tokenizer {
        path: model.file().path.clone(),
        error,
    };
    let vocabulary = model.file().vocabulary.clone();
    Tokenizer::new(vocabulary.map_err(|error| failed(error.into()))?).map_err(failed)
}

/// Whether no number is infinite or none at all. Without a way out, so that the compiler makes
/// vectors of it.
fn all_finite(x: &[f32]) -> bool {
    x.iter().fold(true, |all, x| all & x.is_finite())
}

/// `bytes` is working memory.
fn read_numbers(from: &mut impl Read, out: &mut [f32], bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.resize(4 * out.len(), 0);
    from.read_exact(bytes)?;
    for (number, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *number = f32::from_le_bytes(*bytes);
    }
    Ok(())
}

/// `bytes` is working memory.
fn write_numbers(to: &mut impl Write, x: &[f32], bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.resize(4 * x.len(), 0);
    for (bytes, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(x) {
        *bytes = number.to_le_bytes();
    }
    to.write_all(bytes)
}

#[cfg(test)]
mod tests;

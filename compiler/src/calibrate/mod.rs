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

mod error;
mod files;
mod flow;
mod moments;
mod statistics;
mod store;
pub mod windows;

use std::path::Path;
use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::model::HyperParameters;
use htc_loader::Model;
use htc_loader::tokenizer::Tokenizer;

use crate::calibrate::windows::Windows;
use crate::event::{Event, Watch};
pub use crate::request::{CalibrationOptions, DEFAULT_CONTEXT, DEFAULT_TOKENS};
use crate::system::disk;
use crate::system::text;
pub use error::CalibrateError;
use files::Files;
pub use files::cache_folder;
use flow::Flow;
use store::Extent;
pub use store::{Moment, StoredLayer};

/// Changes with the statistics' definition: files of another version are not found.
const VERSION: u32 = 3;

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
    fn key(source: Digest, windows: &Windows) -> Digest {
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

/// Calibrates a model, whose digest is `source`.
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
    let hyper = model.hyper();
    options.check(hyper)?;
    let Texts {
        windows,
        held_out,
        text,
    } = Texts::read(model, options)?;
    let key = CalibrationOptions::key(source, &windows);
    let extent = Extent {
        context: options.context,
        windows: windows.count(),
    };
    let files = Files::open(options, key, extent)?;
    let lock = files.lock(watch);
    let mut layers = files.finished(hyper, watch);
    let found = layers.len();
    let lock = files.locked(lock, found == hyper.layers)?;
    files.make_room(hyper, found)?;
    if lock.is_some() {
        files.sweep(found)?;
    }
    watch.tell(Event::Calibrating {
        windows: windows.count(),
        layers: hyper.layers,
        found,
    });
    if found < hyper.layers {
        let mut flow = Flow::new(&files, &windows, model, found, threads, watch)?;
        for layer in found..hyper.layers {
            let before = layers.last().map(Arc::as_ref);
            layers.push(Arc::new(flow.layer(layer, before)?));
        }
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

/// What is read of the texts.
struct Texts {
    /// What is calibrated on.
    windows: Windows,
    /// What is kept back for measuring.
    held_out: Option<Windows>,
    /// Digest of the text.
    text: Digest,
}

impl Texts {
    fn read(model: &Model, options: &CalibrationOptions) -> Result<Texts, CalibrateError> {
        let tokenizer = tokenizer(model)?;
        let text = text::read(&options.text)?;
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
                let held_out = all(path, &text::read(path)?, Some(MOST_HELD_OUT))?;
                (all(&options.text, &text, Some(most))?, Some(held_out))
            }
        };
        let text = Digest::of(text.as_bytes());
        Ok(Texts {
            windows,
            held_out,
            text,
        })
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

#[cfg(test)]
mod tests;

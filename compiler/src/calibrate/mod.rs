//! Statistics of a model's activations while real text flows through it.
//!
//! The text goes through the model block by block: all windows through the first block, then all
//! through the second, so that the statistics of one layer are in memory at a time. Between two
//! blocks the residual stream of the whole text lies in a file. The forward pass is the loader's
//! own, and the activations are the original model's, so that every slot can be factorised alone
//! and in any order.
//!
//! Behind the last block the stream goes through the norm in front of the head, and what the head reads is
//! kept as well.
//!
//! Every layer's statistics are a file in the cache, and so are the head's, under a name made of the digests of the model
//! and the text and of the options. A later run finds them, and one that was interrupted goes on
//! behind the last one that was finished. A file that is damaged or of something else is
//! reported and made again. The sums are made in a fixed order: their bytes do not depend on the
//! number of threads.

pub mod cache;
mod contents;
pub(crate) mod entry;
mod error;
mod files;
mod flow;
pub(crate) mod moments;
mod statistics;
pub(crate) mod store;
pub mod windows;

use std::path::PathBuf;
use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, Site};
use htc_loader::Model;
use htc_loader::kv::KvType;
use htc_loader::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::calibrate::windows::{HeldOut, MOST_HELD_OUT, Mixture, Windows};
use crate::device::Device;
use crate::event::{Event, Watch};
pub use crate::request::{CalibrationOptions, DEFAULT_CONTEXT, DEFAULT_TOKENS};
use crate::request::{CalibrationText, TextSource};
use crate::system::{memory, text};
pub use cache::{cache_folder, forget};
use contents::Contents;
pub use error::{CalibrateError, Stage};
use files::{Files, Finished};
use flow::Flow;
pub use statistics::site_width;
use store::Extent;
pub use store::{Moment, StoredHead, StoredLayer};

/// Changes with the statistics' definition: files of another version are not found.
const VERSION: u32 = 4;

impl CalibrationOptions {
    /// Makes sure that the model can be calibrated so.
    ///
    /// # Errors
    /// [`CalibrateError::FewTokens`], [`CalibrateError::LongContext`].
    pub fn check(&self, hyper: &HyperParameters) -> Result<(), CalibrateError> {
        let (tokens, limit) = (self.tokens, hyper.context);
        let context = self.window(limit);
        if tokens < context || context == 0 {
            return Err(CalibrateError::FewTokens { tokens, context });
        }
        if context > limit {
            return Err(CalibrateError::LongContext { context, limit });
        }
        for path in self.files() {
            text::open(path)?;
        }
        for (index, text) in self.texts.iter().enumerate() {
            if !(text.weight > 0.0 && text.weight.is_finite()) {
                return Err(CalibrateError::Weight(text.weight));
            }
            let same = |other: &TextSource| other.is_same(&text.source);
            if self.texts[..index].iter().any(|other| same(&other.source)) {
                return Err(CalibrateError::Twice(text.source.clone()));
            }
            let is_text = |other: &&PathBuf| same(&TextSource::File(other.to_path_buf()));
            if let Some(other) = self.held_out.as_ref().filter(is_text) {
                return Err(CalibrateError::HeldOutIsText(other.clone()));
            }
        }
        Ok(())
    }

    /// The digest that names the statistics of a model on the windows of texts. The ids of the
    /// tokens stand for the texts and the tokenizer. The last bits depend on the kernels.
    fn key(&self, source: Digest, text: &Mixture, device: &dyn Device) -> Digest {
        // Every field is named: one that is added must be thought of here. Texts, weights, tokens and
        // context are in the windows; the text to measure on is not calibrated on.
        let CalibrationOptions {
            texts: _,
            tokens: _,
            context: _,
            cache: _,
            trust_cache: _,
            lock_timeout: _,
            held_out: _,
        } = self;
        let named = format!(
            "htc {} calibration {VERSION} {}\nsource {source}\n{}",
            env!("CARGO_PKG_VERSION"),
            arithmetic(device),
            text.named(),
        );
        Digest::of(named.as_bytes())
    }
}

/// What the last bits of statistics depend on: what executes the model, and what sums what it computes.
fn arithmetic(device: &dyn Device) -> String {
    match device.own_algebra() {
        Some(algebra) => format!("{}; sums by {}", device.arithmetic(), algebra.name()),
        None => device.arithmetic(),
    }
}

/// A text that was calibrated on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibratedText {
    /// Its name, without its folder.
    pub name: String,
    /// Its digest.
    pub sha256: Digest,
    /// Tokens of it that went through the model.
    pub tokens: usize,
    /// How much each of them counts.
    pub weight: f64,
    /// Parts of the shipped text that were left out, since the model has no tokens for their script.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

impl CalibratedText {
    fn tell_left_out(&self, watch: Watch) {
        if !self.left_out.is_empty() {
            let left_out = self.left_out.join(", ");
            watch.tell(Event::Note(&format!(
                "left out of the shipped text: {left_out}; the model has no tokens for their script"
            )));
        }
    }
}

/// What reads the same activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The slots of a block that share a site.
    Site {
        /// Index of the block.
        layer: usize,
        /// Where in it.
        site: Site,
    },
    /// The head, or the embedding that is tied to it: the normed residual stream behind the last block.
    Head,
}

/// The statistics of a model on a text, layer by layer in the cache.
#[derive(Debug)]
pub struct Calibration {
    /// What names it.
    pub key: Digest,
    /// [`Device::arithmetic`] of what executed, and what summed the model.
    pub arithmetic: String,
    /// One for each layer.
    pub layers: Vec<Arc<StoredLayer>>,
    /// What the head reads.
    pub head: Arc<StoredHead>,
    /// The texts.
    pub texts: Vec<CalibratedText>,
    /// Tokens of a window.
    pub context: usize,
    /// What went through the model, text by text.
    pub windows: Windows,
    /// Layers that were in the cache already.
    pub found: usize,
    /// Whether some of the statistics were made now.
    pub is_new: bool,
    /// What was kept back for measuring; `None` where each text has a single window.
    pub held_out: Option<HeldOut>,
    /// Digest of the text that was given to be kept back; `None` where it was kept back from the texts.
    pub held_out_text: Option<Digest>,
}

impl Calibration {
    /// What is read in a place, on all positions of the text.
    pub fn inputs(&self, place: Place) -> Moment {
        match place {
            Place::Site { layer, site } => self.layers[layer].site(site),
            Place::Head => self.head.inputs(),
        }
    }

    /// Digest of the text that what is measured on was kept back from.
    pub fn held_out_digest(&self) -> Digest {
        self.held_out_text.unwrap_or_else(|| self.text_digest())
    }

    /// Tokens that went through the model.
    pub fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens).sum()
    }

    /// The names of the texts, with the weights where they are not 1.
    pub fn text(&self) -> String {
        let name = |text: &CalibratedText| match text.weight {
            1.0 => text.name.clone(),
            weight => format!("{} (weight {weight})", text.name),
        };
        let names: Vec<String> = self.texts.iter().map(name).collect();
        names.join(", ")
    }

    /// The digest of the text; of several, that of a line for each with its digest and its weight.
    pub fn text_digest(&self) -> Digest {
        match &self.texts[..] {
            [text] => text.sha256,
            texts => {
                let lines = texts
                    .iter()
                    .map(|text| format!("{} {}\n", text.sha256, text.weight));
                Digest::of(lines.collect::<String>().as_bytes())
            }
        }
    }
}

/// Calibrates a model, whose digest is `source`, as a device executes it.
///
/// # Errors
/// [`CalibrateError`].
pub fn calibrate(
    model: &Arc<Model>,
    source: Digest,
    options: &CalibrationOptions,
    device: &dyn Device,
    watch: Watch,
) -> Result<Calibration, CalibrateError> {
    let hyper = model.hyper();
    options.check(hyper)?;
    let Read {
        text,
        texts,
        held_out,
        held_out_text,
    } = Read::of(model, options)?;
    texts.iter().for_each(|text| text.tell_left_out(watch));
    let context = options.window(hyper.context);
    if context != options.context.unwrap_or(DEFAULT_CONTEXT) {
        watch.tell(Event::Note(&format!(
            "windows are of {context} tokens, which the model reads at most, not of {DEFAULT_CONTEXT}"
        )));
    }
    let key = options.key(source, &text, device);
    let windows = text.windows().count();
    let extent = Extent { context, windows };
    let files = Files::open(options, key, extent)?;
    let lock = files.lock(options, watch)?;
    let finished = files.finished(hyper, watch);
    let is_new = !finished.is_complete();
    let lock = files.locked(lock, !is_new)?;
    if is_new {
        check_memory(model, extent, device)?;
    }
    files.make_room(hyper, &finished)?;
    if lock.is_some() {
        files.sweep(&finished)?;
    }
    let found = finished.layers.len();
    watch.tell(Event::Calibrating {
        windows,
        passes: hyper.layers + 1,
        found: found + usize::from(!is_new),
    });
    let Finished { mut layers, head } = finished;
    let head = match head {
        Some(head) => head,
        None => {
            let first = match found < hyper.layers {
                true => Stage::Layer(found),
                false => Stage::Head,
            };
            let mut flow = Flow::new(&files, &text, model, first, device, watch)?;
            for layer in found..hyper.layers {
                let before = layers.last().map(Arc::as_ref);
                layers.push(Arc::new(flow.layer(layer, before)?));
            }
            Arc::new(flow.head(layers.last().map(Arc::as_ref))?)
        }
    };
    Ok(Calibration {
        key,
        arithmetic: arithmetic(device),
        layers,
        head,
        texts,
        context,
        windows: text.windows().clone(),
        found,
        is_new,
        held_out,
        held_out_text,
    })
}

/// The windows of the texts that a model is calibrated on.
///
/// # Errors
/// [`CalibrateError`], of a text or of the tokenizer.
pub fn text_of(model: &Model, options: &CalibrationOptions) -> Result<Mixture, CalibrateError> {
    Ok(Read::of(model, options)?.text)
}

/// What is read of the texts.
struct Read {
    /// What is calibrated on.
    text: Mixture,
    /// The same, text by text.
    texts: Vec<CalibratedText>,
    /// What is kept back for measuring.
    held_out: Option<HeldOut>,
    /// Digest of the text that was given for it.
    held_out_text: Option<Digest>,
}

impl Read {
    fn of(model: &Model, options: &CalibrationOptions) -> Result<Read, CalibrateError> {
        let tokenizer = tokenizer(model)?;
        let context = options.window(model.hyper().context);
        let most = options.tokens / context;
        let windows = |source: &TextSource, text: &str, most| {
            let text = Windows::new(&tokenizer, text, context, most);
            text.map_err(|error| CalibrateError::TooShort {
                text: source.clone(),
                error,
            })
        };
        let (mut parts, mut texts, mut held_out) = (Vec::new(), Vec::new(), Vec::new());
        for CalibrationText { source, weight } in &options.texts {
            let Contents {
                text,
                sha256,
                left_out,
            } = Contents::of(source, &tokenizer)?;
            let used = match &options.held_out {
                Some(_) => windows(source, &text, Some(most))?,
                None => {
                    let (used, held) = windows(source, &text, None)?.hold_out(most);
                    held_out.extend(held);
                    used
                }
            };
            texts.push(CalibratedText {
                name: source.name(),
                sha256,
                tokens: used.tokens(),
                weight: *weight,
                left_out,
            });
            parts.push((used, *weight));
        }
        let mut held_out_text = None;
        if let Some(path) = &options.held_out {
            let text = text::read(path)?;
            held_out_text = Some(Digest::of(text.as_bytes()));
            held_out.push(windows(&path.into(), &text, Some(MOST_HELD_OUT))?);
        }
        Ok(Read {
            text: Mixture::new(parts).ok_or(CalibrateError::NoText)?,
            texts,
            held_out: HeldOut::new(held_out),
            held_out_text,
        })
    }
}

/// Refuses what does not fit the machine before any of it is taken: a small file may claim any width.
fn check_memory(model: &Model, extent: Extent, device: &dyn Device) -> Result<(), CalibrateError> {
    let (hyper, threads) = (model.hyper(), device.pool().threads());
    let session = match device.has_own_memory() {
        true => 0,
        false => memory::of_session(hyper, extent.context, threads, KvType::F32),
    };
    let needed = session.saturating_add(statistics::sums_bytes(hyper));
    match memory::available() {
        Some(available) if available < needed => Err(CalibrateError::NoMemory {
            path: model.file().path.clone(),
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

#[cfg(test)]
pub(crate) mod tests;

//! Statistics of a model's activations on calibration text.
//!
//! All windows go through one block after the other, so that only one layer's statistics are in
//! memory; between blocks the residual stream is in a file. The statistics are files in the cache,
//! under a digest of the model, the text and the options; interrupted runs resume after the last
//! finished layer. Sums have a fixed order: their bytes do not depend on the number of threads.

pub mod cache;
mod contents;
pub(crate) mod entry;
mod error;
mod experts;
mod files;
mod flow;
pub(crate) mod moments;
mod shipped;
mod statistics;
pub(crate) mod store;
pub mod windows;

use std::path::PathBuf;
use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::model::{ActivationPoint, HyperParameters};
use htc_formats::source::ModelFile;
use htc_loader::Model;
use htc_loader::kv::KvType;
use htc_loader::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::windows::{HeldOut, MAX_HELD_OUT, WeightedWindows, Windows};
use crate::device::Device;
use crate::event::{Event, Progress, Task};
pub use crate::options::{CalibrationOptions, DEFAULT_CONTEXT, DEFAULT_TOKENS};
use crate::options::{CalibrationText, TextSource};
use crate::system::{memory, text};
pub use cache::{cache_folder, remove_entry};
pub use error::{PassError, Stage};
pub(crate) use files::cache_bytes;
use files::{CalibrationFiles, FinishedStatistics};
use flow::ForwardPass;
pub use shipped::{ShippedPart, shipped_digest, shipped_text};
pub use statistics::{block_inputs, sums_bytes};
pub(crate) use store::TextExtent;
pub use store::{StoredHead, StoredLayer, StoredMoment};

const VERSION: u32 = 4;

impl CalibrationOptions {
    /// Checks that the model can be calibrated with these options.
    pub fn check(&self, hyper: &HyperParameters) -> Result<(), PassError> {
        let (tokens, limit) = (self.max_tokens(), hyper.context);
        let context = self.window_size(limit);
        if tokens < context || context == 0 {
            return Err(PassError::FewTokens { tokens, context });
        }
        if context > limit {
            return Err(PassError::LongContext { context, limit });
        }
        for path in self.files() {
            text::open(path)?;
        }
        for (index, text) in self.texts.iter().enumerate() {
            if !(text.weight > 0.0 && text.weight.is_finite()) {
                return Err(PassError::InvalidWeight(text.weight));
            }
            let same = |other: &TextSource| other.is_same(&text.source);
            if self.texts[..index].iter().any(|other| same(&other.source)) {
                return Err(PassError::DuplicateText(text.source.clone()));
            }
            let is_text = |other: &&PathBuf| same(&TextSource::File(other.to_path_buf()));
            if let Some(other) = self.held_out.as_ref().filter(is_text) {
                return Err(PassError::HeldOutIsText(other.clone()));
            }
        }
        Ok(())
    }

    /// Token ids stand for the texts and the tokenizer; the kernels determine the last bits.
    fn key(&self, source: Digest, text: &WeightedWindows, device: &dyn Device) -> Digest {
        // Exhaustive, so that new fields are considered here.
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
            text.cache_key_text(),
        );
        Digest::of_bytes(named.as_bytes())
    }
}

fn arithmetic(device: &dyn Device) -> String {
    match device.device_algebra() {
        Some(algebra) => format!("{}; sums by {}", device.arithmetic(), algebra.name()),
        None => device.arithmetic(),
    }
}

/// Text used for calibration.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CalibratedText {
    /// File name.
    pub name: String,
    /// Text digest.
    pub sha256: Digest,
    /// Tokens processed.
    pub tokens: usize,
    /// Weight of each token.
    pub weight: f64,
    /// Skipped parts of the shipped text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

impl CalibratedText {
    fn note_skipped_parts(&self, watch: Progress) {
        if !self.left_out.is_empty() {
            let left_out = self.left_out.join(", ");
            watch.report(Event::Note(&format!(
                "calibration: skipped {left_out} (the tokenizer does not cover their script)"
            )));
        }
    }
}

/// Input whose activations are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalibratedInput {
    /// Input of the projections of a block that share an activation point.
    Site {
        /// Block index.
        layer: usize,
        /// Activation point within the block.
        site: ActivationPoint,
    },
    /// Input of the head or tied embedding.
    Head,
}

/// Activation statistics of a model, layer by layer in the cache.
#[derive(Debug)]
pub struct Calibration {
    /// Cache key.
    pub key: Digest,
    /// [`Device::arithmetic`] of the device, and of the summation.
    pub arithmetic: String,
    /// Statistics of each layer.
    pub layers: Vec<Arc<StoredLayer>>,
    /// Statistics of the head's input.
    pub head: Arc<StoredHead>,
    /// Texts.
    pub texts: Vec<CalibratedText>,
    /// Tokens per window.
    pub context: usize,
    /// Windows processed, text by text.
    pub windows: Windows,
    /// Number of layers that were in the cache.
    pub cached_layers: usize,
    /// True if some statistics were computed now.
    pub is_new: bool,
    /// Held-out windows; `None` if each text has a single window.
    pub held_out: Option<HeldOut>,
    /// Digest of a separate held-out text, if given.
    pub held_out_text: Option<Digest>,
}

impl Calibration {
    /// Returns the moments of an input at all positions of the text.
    pub fn inputs(&self, place: CalibratedInput) -> StoredMoment {
        match place {
            CalibratedInput::Site { layer, site } => self.layers[layer].site(site),
            CalibratedInput::Head => self.head.inputs(),
        }
    }

    /// Returns the digest of the text of the held-out windows.
    pub fn held_out_digest(&self) -> Digest {
        self.held_out_text.unwrap_or_else(|| self.text_digest())
    }

    /// Returns the number of tokens processed.
    pub fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens).sum()
    }

    /// Returns the names of the texts, with weights other than 1.
    pub fn text(&self) -> String {
        let name = |text: &CalibratedText| match text.weight {
            1.0 => text.name.clone(),
            weight => format!("{} (weight {weight})", text.name),
        };
        let names: Vec<String> = self.texts.iter().map(name).collect();
        names.join(", ")
    }

    /// Returns the digest of the text, or of the digests and weights of several.
    pub fn text_digest(&self) -> Digest {
        match &self.texts[..] {
            [text] => text.sha256,
            texts => {
                let lines = texts
                    .iter()
                    .map(|text| format!("{} {}\n", text.sha256, text.weight));
                Digest::of_bytes(lines.collect::<String>().as_bytes())
            }
        }
    }
}

/// Calibrates a model, whose digest is `source`, on a device.
pub fn calibrate(
    model: &Arc<Model>,
    source: Digest,
    options: &CalibrationOptions,
    device: &dyn Device,
    watch: Progress,
) -> Result<Calibration, PassError> {
    let hyper = model.hyper();
    options.check(hyper)?;
    let CalibrationTexts {
        text,
        texts,
        held_out,
        held_out_text,
        remarks,
    } = CalibrationTexts::load(model, options)?;
    for remark in &remarks {
        watch.report(Event::Note(remark));
    }
    texts.iter().for_each(|text| text.note_skipped_parts(watch));
    let context = options.window_size(hyper.context);
    if context != options.context.unwrap_or(DEFAULT_CONTEXT) {
        watch.report(Event::Note(&format!(
            "windows are of {context} tokens, which the model reads at most, not of {DEFAULT_CONTEXT}"
        )));
    }
    let key = options.key(source, &text, device);
    let windows = text.windows().count();
    let extent = TextExtent { context, windows };
    let files = CalibrationFiles::open(options, key, extent)?;
    let lock = files.entry.lock(options, watch)?;
    let finished = files.finished(hyper, watch);
    let is_new = !finished.is_complete();
    let lock = files.entry.optional_lock(lock, !is_new)?;
    if is_new {
        check_memory(model, extent, device)?;
    }
    files.check_disk_space(hyper, &finished)?;
    if lock.is_some() {
        files.remove_leftovers(&finished)?;
    }
    let found = finished.layers.len();
    watch.report(Event::Begin {
        task: Task::Calibration,
        steps: windows * (hyper.layers + 1),
        done: windows * (found + usize::from(!is_new)),
    });
    let FinishedStatistics { mut layers, head } = finished;
    let head = match head {
        Some(head) => head,
        None => {
            let first = if found < hyper.layers {
                Stage::Layer(found)
            } else {
                Stage::Head
            };
            let mut flow = ForwardPass::new(&files, &text, model, first, device, watch)?;
            for layer in found..hyper.layers {
                let before = layers.last().map(Arc::as_ref);
                layers.push(Arc::new(flow.layer(layer, before)?));
            }
            Arc::new(flow.head(layers.last().map(Arc::as_ref))?)
        }
    };
    if let Some(note) = rare_experts_note(&layers) {
        watch.report(Event::Note(&note));
    }
    Ok(Calibration {
        key,
        arithmetic: arithmetic(device),
        layers,
        head,
        texts,
        context,
        windows: text.windows().clone(),
        cached_layers: found,
        is_new,
        held_out,
        held_out_text,
    })
}

/// Returns a note on the experts that saw fewer rows than they have inputs, if any.
fn rare_experts_note(layers: &[Arc<StoredLayer>]) -> Option<String> {
    let counts = layers.iter().flat_map(|layer| layer.counts());
    let inputs = counts.filter(|(of, _)| matches!(of.point, ActivationPoint::ExpertInput(_)));
    let (mut experts, mut rare, mut unseen, mut width) = (0, 0, 0, 0);
    for (input, count) in inputs {
        width = width.max(input.width);
        experts += 1;
        rare += usize::from(count < input.width as u64);
        unseen += usize::from(count == 0);
    }
    (rare > 0).then(|| {
        format!(
            "calibration: {rare} of {experts} experts read fewer rows of the text than they have \
             inputs ({width}), {unseen} of them none; their moments are completed by those of all \
             experts. Give more text, or text of more kinds, with --calibration and --calibration-tokens"
        )
    })
}

/// Returns the calibration windows of a model.
pub fn calibration_windows(
    model: &Model,
    options: &CalibrationOptions,
) -> Result<WeightedWindows, PassError> {
    Ok(CalibrationTexts::load(model, options)?.text)
}

struct CalibrationTexts {
    text: WeightedWindows,
    texts: Vec<CalibratedText>,
    held_out: Option<HeldOut>,
    held_out_text: Option<Digest>,
    /// Remarks on the files.
    remarks: Vec<String>,
}

impl CalibrationTexts {
    fn load(model: &Model, options: &CalibrationOptions) -> Result<CalibrationTexts, PassError> {
        let tokenizer = tokenizer(model)?;
        let context = options.window_size(model.hyper().context);
        let most = options.max_tokens() / context;
        let windows = |source: &TextSource, text: &str, most| {
            let text = Windows::new(&tokenizer, text, context, most);
            text.map_err(|error| PassError::OfText {
                text: source.clone(),
                error: Box::new(error),
            })
        };
        let (mut parts, mut texts, mut held_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut remarks = Vec::new();
        for CalibrationText { source, weight } in &options.texts {
            let contents = contents::read(source, &tokenizer)?;
            let text = contents.text;
            remarks.extend(contents.remarks);
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
                sha256: contents.sha256,
                tokens: used.tokens(),
                weight: *weight,
                left_out: contents.left_out,
            });
            parts.push((used, *weight));
        }
        let mut held_out_text = None;
        if let Some(path) = &options.held_out {
            let corpus = text::read_corpus(path)?;
            remarks.extend(corpus.remarks);
            held_out_text = Some(Digest::of_bytes(corpus.text.as_bytes()));
            held_out.push(windows(&path.into(), &corpus.text, Some(MAX_HELD_OUT))?);
        }
        Ok(CalibrationTexts {
            text: WeightedWindows::new(parts).ok_or(PassError::NoText)?,
            texts,
            held_out: HeldOut::new(held_out),
            held_out_text,
            remarks,
        })
    }
}

/// A small file may claim any width.
fn check_memory(model: &Model, extent: TextExtent, device: &dyn Device) -> Result<(), PassError> {
    let (hyper, threads) = (model.hyper(), device.pool().threads());
    let session = if device.has_own_memory() {
        0
    } else {
        memory::session_bytes(hyper, extent.context, threads, KvType::F32)
    };
    let needed = session.saturating_add(sums_bytes(hyper));
    match memory::available() {
        Some(available) if available < needed => Err(PassError::NoMemory {
            path: model.file().path.clone(),
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

pub(crate) fn tokenizer(model: &Model) -> Result<Tokenizer, PassError> {
    let failed = |error| PassError::Tokenizer {
        path: model.file().path.clone(),
        error,
    };
    let vocabulary = model.file().vocabulary.clone();
    Tokenizer::new(vocabulary.map_err(failed)?).map_err(failed)
}

/// Binds a model for passes of a text.
pub(crate) fn bind(file: &ModelFile) -> Result<Model, PassError> {
    Model::bind(file.clone()).map_err(|error| PassError::Load {
        path: file.path.clone(),
        error,
    })
}

#[cfg(test)]
pub(crate) mod tests;

//! Second moments of the gradients at the outputs of every matrix: what an error of its weights costs.
//!
//! The text goes through the model once more, block by block, and the residual stream in front of every block
//! is kept as a file. At the end a token is drawn at every position as the model would, and the gradient of its
//! negative log-likelihood goes back block by block: each is executed again from its stream, so that the
//! activations of a few windows, and weights and sums of one layer, are in memory at a time. Streams of every
//! layer cost disk, 4 bytes for each position and channel; keeping but every √L-th would cost a third
//! forward pass, and what is kept is less than the model for the few thousand tokens that are enough.
//!
//! Every step's result is a file of the cache, under a name made of the digests of the model and of the text, so
//! that a pass that was interrupted goes on behind its last step, with the same bytes. The arithmetic is
//! float32 on weights as numbers, in sums of a fixed order, on any number of threads.

mod attention;
mod block;
pub(crate) mod distil;
mod elementwise;
mod error;
mod files;
mod head;
mod heads;
mod number;
mod pass;
pub(crate) mod scales;
mod store;
mod sums;
mod tokens;
mod weights;

use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, MatrixId, Slot};
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use crate::calibrate::entry::Entry;
use crate::calibrate::text_of;
use crate::calibrate::windows::Mixture;
use crate::event::{Event, Watch};
use crate::request::CalibrationOptions;
use crate::system::memory;
pub use error::{GradientError, NoMatrix};
use files::{Files, Step};
use pass::{Pass, windows_at_a_time};
use store::StoredOutputs;
pub use store::{MomentBlock, OutputMoments};
use sums::OutputSums;

/// Changes with the definition of what is kept: files of another version are not found.
const VERSION: u32 = 2;

/// What errors at the outputs of every matrix cost, layer by layer in the cache.
#[derive(Debug)]
pub struct Gradients {
    /// What names it.
    pub key: Digest,
    /// Tokens that went through the model.
    pub tokens: usize,
    /// Whether some of them were made now.
    pub is_new: bool,
    hyper: HyperParameters,
    /// By layer, then the head, then the embedding.
    outputs: Vec<StoredOutputs>,
}

impl Gradients {
    /// The second moment of the gradients at the outputs of a matrix, read from its file.
    ///
    /// Of the head, tied to the embedding or not, it is the diagonal `[vocabulary]`. Rows of the embedding are
    /// looked up: there it is that at the row `[width]`, so that errors `e` of its rows cost `½ Σ f e H
    /// eᵀ` with the [`shares`](Self::shares) `f` of their tokens. An embedding that is tied costs both.
    ///
    /// # Errors
    /// [`NoMatrix`] for a layer that the model does not have.
    pub fn of(&self, matrix: MatrixId) -> Result<OutputMoments, NoMatrix> {
        let (hyper, layers) = (&self.hyper, self.hyper.layers);
        let missing = NoMatrix { matrix, layers };
        let index = match matrix {
            MatrixId::Slot { layer, .. } if layer >= layers => return Err(missing),
            MatrixId::Slot { layer, .. } => layer,
            MatrixId::Head => layers,
            MatrixId::Embedding => layers + 1,
        };
        let stored = self.outputs.get(index).ok_or(missing)?;
        Ok(match matrix {
            MatrixId::Slot { slot, .. } => stored.slot(hyper, slot),
            MatrixId::Head => stored.head(hyper),
            MatrixId::Embedding => stored.embedding(hyper),
        })
    }

    /// The share of every token among those that went through the model, `[vocabulary]`; they add up to 1.
    ///
    /// # Errors
    /// [`NoMatrix`] never: the file of the embedding was there.
    pub fn shares(&self) -> Result<Vec<f32>, NoMatrix> {
        let (matrix, layers) = (MatrixId::Embedding, self.hyper.layers);
        let stored = self.outputs.last();
        let stored = stored.ok_or(NoMatrix { matrix, layers })?;
        Ok(stored.shares(&self.hyper))
    }
}

/// The gradients of a model, whose digest is `source`, on about `tokens` tokens of the texts that it is calibrated
/// on: windows spread evenly over each text, at least one of each.
///
/// # Errors
/// [`GradientError`].
pub fn gradients(
    model: &Model,
    source: Digest,
    options: &CalibrationOptions,
    tokens: usize,
    threads: usize,
    watch: Watch,
) -> Result<Gradients, GradientError> {
    let hyper = model.hyper();
    options.check(hyper)?;
    let context = options.window(hyper.context);
    let text = text_of(model, options)?.thinned(tokens / context);
    let key = key(source, &text);
    let entry = Entry::of_gradients(options, key)?;
    let lock = entry.lock(options, watch)?;
    let files = Files::new(&entry, key, hyper, text.windows().tokens());
    let mut step = files.next(watch);
    let lock = entry.locked(lock, step == Step::Done)?;
    if lock.is_some() {
        files.sweep(step)?;
    }
    let is_new = step != Step::Done;
    if is_new {
        check_memory(model, context)?;
        files.make_room(step)?;
        let left = Step::Done.index(hyper.layers) - step.index(hyper.layers);
        watch.tell(Event::Gradients(left));
        let mut pass = Pass::new(&files, &text, model, Cpu::with_threads(threads)?, watch);
        while step != Step::Done {
            pass.step(step)?;
            let what = step.to_string();
            step = step.next(hyper.layers);
            files.sweep(step)?;
            watch.done(&what)?;
        }
    }
    Ok(Gradients {
        key,
        tokens: text.windows().tokens(),
        is_new,
        hyper: hyper.clone(),
        outputs: files.outputs(watch)?,
    })
}

/// Removes the gradients of a key from the cache.
///
/// # Errors
/// [`GradientError::Calibrate`].
pub fn forget(options: &CalibrationOptions, key: Digest) -> Result<(), GradientError> {
    Ok(Entry::of_gradients(options, key)?.forget()?)
}

/// The digest that names the gradients of a model on the windows of texts. The last bits depend on the kernels.
fn key(source: Digest, text: &Mixture) -> Digest {
    let named = format!(
        "htc {} gradients {VERSION} {}\nsource {source}\n{}",
        env!("CARGO_PKG_VERSION"),
        htc_kernels::cpu::instruction_set(),
        text.named(),
    );
    Digest::of(named.as_bytes())
}

/// Refuses what does not fit the machine before any of it is taken.
fn check_memory(model: &Model, context: usize) -> Result<(), GradientError> {
    let needed = needed_memory(model.hyper(), context);
    match memory::available() {
        Some(available) if available < needed => Err(GradientError::NoMemory {
            path: model.file().path.clone(),
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

/// Bytes of the weights, the activations and the sums of a layer, or of the head where that takes more.
pub(crate) fn needed_memory(hyper: &HyperParameters, context: usize) -> u64 {
    let shapes = Slot::ALL.map(|slot| hyper.slot_shape(slot));
    let product = |a: usize, b: usize| (a as u64).saturating_mul(b as u64);
    let weights: u64 = shapes
        .map(|(rows, cols)| product(rows, cols))
        .into_iter()
        .sum();
    let outputs: usize = shapes.map(|(rows, _)| rows).into_iter().sum();
    let heads = hyper.heads * hyper.head_size;
    // What slots give and its gradients; heads cut out of it, and attention, both ways; streams and norms.
    let row = 2 * outputs + 8 * heads + 2 * hyper.ffn + 10 * hyper.width;
    let positions = windows_at_a_time(hyper, context) * context;
    let activations = product(positions, row);
    let sums = shapes.map(|(rows, _)| OutputSums::bytes(rows));
    let sums = sums.into_iter().fold(0, u64::saturating_add);
    let layer = 4 * weights.saturating_add(activations);
    let head = 8 * product(head::batch(hyper.vocabulary), hyper.vocabulary);
    layer.saturating_add(sums).max(head)
}

/// Outputs of a matrix with so many rows whose gradients are multiplied with those of one of them.
pub(crate) fn outputs_together(rows: usize) -> usize {
    sums::blocks(rows).first().map_or(0, |(_, side)| *side)
}

#[cfg(test)]
mod tests;

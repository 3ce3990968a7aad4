//! Second moments of the gradients at the outputs of every matrix, which measure the cost of weight
//! errors.
//!
//! A forward pass stores the residual stream before every block in a file. At the end a token is
//! drawn from the model at every position, and the gradient of its negative log-likelihood is
//! propagated back. Each block is executed again from its stream, so memory holds the activations
//! of a few windows and the weights and sums of one layer. Streams take 4 bytes per position and
//! channel; checkpoints at every √L-th layer would cost a third forward pass.
//!
//! Every step's result is a cache file, named by the digests of model and text, so an interrupted
//! pass resumes with the same bytes. Arithmetic is float32 with sums in a fixed order, on any
//! number of threads.

mod attention;
mod block;
pub(crate) mod distil;
mod elementwise;
mod experts;
mod files;
mod head;
mod heads;
mod memory;
mod number;
mod pass;
pub(crate) mod scales;
pub(crate) mod shares;
mod steps;
mod store;
mod sums;
mod tokens;
mod values;
mod weights;

use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, MatrixId, ModelSpec};
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use crate::calibrate::entry::CacheEntry;
use crate::calibrate::windows::WeightedWindows;
use crate::calibrate::{PassError, calibration_windows};
use crate::event::{Event, Progress, Task};
use crate::options::CalibrationOptions;
use crate::system;
pub(crate) use files::cache_bytes;
use files::{Files, Stage};
pub(crate) use memory::{distillation_memory, kept_layers, needed_memory};
use pass::Pass;
use store::StoredOutputs;
pub use store::{MomentBlock, OutputMoments};

/// Version of the stored results; files of other versions are ignored.
const VERSION: u32 = 2;

/// Second moments of the output gradients of every matrix, stored in the cache.
#[derive(Debug)]
pub struct Gradients {
    /// Digest that names them.
    pub key: Digest,
    /// Number of tokens processed.
    pub tokens: usize,
    /// Whether any of them were computed by this call.
    pub is_new: bool,
    hyper: HyperParameters,
    spec: ModelSpec,
    /// Layers, head, embedding.
    outputs: Vec<StoredOutputs>,
}

impl Gradients {
    /// Returns the second moment of the gradients at the outputs of a matrix, read from its file.
    ///
    /// For the head, tied or not, it is the diagonal `[vocabulary]`; for the embedding that at the
    /// looked-up row `[width]`, so that errors `e` of its rows cost `½ Σ f e H eᵀ` with token
    /// [`shares`](Self::shares) `f`. A tied embedding costs both.
    ///
    /// `None` for a matrix that the model does not have.
    pub fn for_matrix(&self, matrix: MatrixId) -> Option<OutputMoments> {
        let (hyper, layers) = (&self.hyper, self.hyper.layers);
        match matrix {
            MatrixId::Projection { layer, projection } => {
                let block = self.spec.blocks.get(layer)?;
                self.outputs.get(layer)?.projection(block, projection)
            }
            MatrixId::Head => Some(self.outputs.get(layers)?.head(hyper)),
            MatrixId::Embedding => Some(self.outputs.get(layers + 1)?.embedding(hyper)),
        }
    }

    /// Returns the share of every token in the text, `[vocabulary]`; sums to 1.
    pub fn shares(&self) -> Vec<f32> {
        let embedding = self.outputs.last();
        embedding.map_or_else(Vec::new, |stored| stored.shares(&self.hyper))
    }
}

/// Computes the gradients of a model with digest `source` on about `tokens` tokens of its
/// calibration texts: windows spread evenly over each text, at least one each.
///
/// # Errors
/// [`PassError`].
pub fn gradients(
    model: &Model,
    source: Digest,
    options: &CalibrationOptions,
    tokens: usize,
    threads: usize,
    watch: Progress,
) -> Result<Gradients, PassError> {
    let hyper = model.hyper();
    options.check(hyper)?;
    let context = options.window_size(hyper.context);
    let text = calibration_windows(model, options)?.thinned(tokens / context);
    let key = key(source, &text);
    let entry = CacheEntry::open_gradients(options, key)?;
    let lock = entry.lock(options, watch)?;
    let files = Files::new(&entry, key, model, text.windows().tokens());
    let mut step = files.next(watch);
    let lock = entry.optional_lock(lock, step == Stage::Done)?;
    if lock.is_some() {
        files.sweep(step)?;
    }
    let is_new = step != Stage::Done;
    if is_new {
        check_memory(model, context)?;
        files.make_room(step)?;
        watch.report(Event::Begin {
            task: Task::Gradients,
            steps: Stage::Done.index(hyper.layers),
            done: step.index(hyper.layers),
        });
        let mut pass = Pass::new(&files, &text, model, Cpu::with_threads(threads)?, watch);
        while step != Stage::Done {
            pass.step(step)?;
            let what = step.to_string();
            step = step.next(hyper.layers);
            files.sweep(step)?;
            watch.step_done(&what)?;
        }
    }
    Ok(Gradients {
        key,
        tokens: text.windows().tokens(),
        is_new,
        hyper: hyper.clone(),
        spec: model.spec().clone(),
        outputs: files.outputs(watch)?,
    })
}

/// Removes gradients from the cache.
///
/// # Errors
/// [`PassError`].
pub fn forget(options: &CalibrationOptions, key: Digest) -> Result<(), PassError> {
    CacheEntry::open_gradients(options, key)?.clear()
}

/// Returns the digest for gradients of a model on windows of texts; it includes the kernels, which
/// affect the last bits.
fn key(source: Digest, text: &WeightedWindows) -> Digest {
    let named = format!(
        "htc {} gradients {VERSION} {}\nsource {source}\n{}",
        env!("CARGO_PKG_VERSION"),
        htc_kernels::cpu::instruction_set(),
        text.cache_key_text(),
    );
    Digest::of_bytes(named.as_bytes())
}

fn check_memory(model: &Model, context: usize) -> Result<(), PassError> {
    let needed = needed_memory(model.hyper(), model.spec(), context);
    match system::memory::available() {
        Some(available) if available < needed => Err(PassError::NoMemoryForGradients {
            path: model.file().path.clone(),
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

/// Returns the number of outputs whose gradients are multiplied with those of one output.
pub(crate) fn outputs_together(rows: usize) -> usize {
    sums::blocks(rows).first().map_or(0, |(_, side)| *side)
}

#[cfg(test)]
mod tests;

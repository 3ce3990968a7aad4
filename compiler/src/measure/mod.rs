//! Evaluation of a model on a text: perplexity, and the distance to a reference.
//!
//! `perplexity` follows llama.cpp: only positions in the second half of a window are scored;
//! `perplexity_all` scores all. Standard errors are over windows: see [`statistics`].

mod reference;
mod score;
pub mod statistics;

use std::sync::Arc;

use htc_loader::dial::ActiveSetting;
use htc_loader::exec::BATCH;
use htc_loader::kv::{KvKind, KvOptions, KvType};
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{ExecError, Model, Pool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::PassError;
use crate::calibrate::windows::Windows;
use crate::device::{Device, Sequence};
use crate::event::Cancelled;

use reference::Reference;
pub use reference::ReferenceLogits;
pub(crate) use reference::{kept_bytes, kept_windows};
use score::{Score, score, score_with_reference};
use statistics::ClusteredMean;

const MAX_LOGITS: usize = 1 << 22;

/// Measurement protocol.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Tokens per window.
    pub context: usize,
    /// Maximum number of windows; `None` for all.
    pub chunks: Option<usize>,
    /// Execution of the model.
    pub execution: Execution,
}

/// Execution options of a model; a reference is always executed completely.
#[derive(Clone, Copy, Debug)]
pub struct Execution {
    /// KV cache options.
    pub kv: KvOptions,
    /// Active fraction of the model.
    pub setting: ActiveSetting,
}

impl Execution {
    /// Returns the options for the complete model.
    pub fn whole(kv_type: KvType) -> Execution {
        Execution {
            kv: KvOptions::new(kv_type),
            setting: ActiveSetting::FULL,
        }
    }
}

/// Lower and upper end of a 95 % interval.
pub type Interval = (f64, f64);

/// Result of an evaluation. A single window has neither standard errors nor intervals.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Evaluation {
    /// Perplexity of the second half of each window.
    pub perplexity: f64,
    /// Standard error of `perplexity`.
    pub stderr: Option<f64>,
    /// Interval of `perplexity`: that of the mean loss, exponentiated.
    pub perplexity_interval: Option<Interval>,
    /// Perplexity of all positions.
    pub perplexity_all: f64,
    /// Standard error of `perplexity_all`.
    pub stderr_all: Option<f64>,
    /// Positions scored for `perplexity`.
    pub tokens: u64,
    /// Positions scored for `perplexity_all`.
    pub tokens_all: u64,
    /// Tokens per window.
    pub context: usize,
    /// Number of windows.
    pub chunks: usize,
    /// Distance to the reference, at the positions of `perplexity`.
    #[serde(flatten)]
    pub reference: Option<Distance>,
}

/// Distance of a model from its reference.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Distance {
    /// Mean Kullback–Leibler divergence from the reference, in nats.
    pub kl: f64,
    /// Standard error of `kl`.
    pub kl_stderr: Option<f64>,
    /// Interval of `kl`.
    pub kl_interval: Option<Interval>,
    /// Fraction of positions with the same most likely token.
    pub top1: f64,
    /// Standard error of `top1`.
    pub top1_stderr: Option<f64>,
    /// Perplexity of the reference in the same protocol.
    pub reference_perplexity: f64,
    /// Perplexity of the model over the reference's.
    pub perplexity_ratio: f64,
    /// Standard error of `perplexity_ratio`.
    #[serde(default)]
    pub perplexity_ratio_stderr: Option<f64>,
    /// Interval of `perplexity_ratio`, from paired differences of the losses.
    pub perplexity_ratio_interval: Option<Interval>,
    /// `perplexity_ratio` over all positions; 0 in records of older versions.
    #[serde(default)]
    pub perplexity_ratio_all: f64,
    /// Interval of `perplexity_ratio_all`.
    #[serde(default)]
    pub perplexity_ratio_all_interval: Option<Interval>,
}

/// Evaluation with its models, as `htc eval --json` writes it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Record {
    /// The evaluated model.
    pub model: NamedModel,
    /// The reference model, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<NamedModel>,
    /// File name of the text.
    pub text: String,
    /// Active fraction; absent for the complete model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched: Option<ActiveBytes>,
    /// The evaluation.
    #[serde(flatten)]
    pub evaluation: Evaluation,
}

/// Weight bytes read per token.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ActiveBytes {
    /// Fraction of all weight bytes.
    pub fraction: f64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Name and size of a model.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct NamedModel {
    /// File name.
    pub name: String,
    /// File size in bytes.
    pub bytes: u64,
}

/// Evaluates `model` on `text`. `progress` gets the finished and the total number of windows, and
/// may cancel.
///
/// # Errors
/// [`PassError`] if the text is too short, the vocabularies differ or outputs are not finite.
pub fn evaluate(
    device: &dyn Device,
    model: &Arc<Model>,
    tokenizer: &Tokenizer,
    reference: Option<(&Arc<Model>, &Tokenizer)>,
    text: &str,
    protocol: Protocol,
    progress: impl FnMut(usize, usize) -> Result<(), Cancelled>,
) -> Result<Evaluation, PassError> {
    if let Some((other, other_tokenizer)) = reference {
        check_vocabulary(model, tokenizer, other, other_tokenizer)?;
    }
    let windows = Windows::new(tokenizer, text, protocol.context, protocol.chunks)?;
    let mut logits = ReferenceLogits::unkept();
    let reference = reference.map(|(other, _)| (other, &mut logits));
    evaluate_windows(
        device,
        model,
        reference,
        &windows,
        protocol.execution,
        progress,
    )
}

/// Evaluates `model` on windows of a text, as [`evaluate`]. The logits of the reference are read
/// from those of an earlier evaluation on the same windows, or kept for a later one.
pub fn evaluate_windows(
    device: &dyn Device,
    model: &Arc<Model>,
    reference: Option<(&Arc<Model>, &mut ReferenceLogits)>,
    windows: &Windows,
    execution: Execution,
    mut progress: impl FnMut(usize, usize) -> Result<(), Cancelled>,
) -> Result<Evaluation, PassError> {
    let (context, chunks) = (windows.context(), windows.count());
    let whole = KvOptions::new(reference_kv_type(execution.kv.kind));
    let mut other =
        reference.map(|(model, kept)| Reference::new(device, model, whole, windows, kept));
    let mut own = device
        .sequence(model, context, &execution.kv)
        .map_err(PassError::Evaluate)?;
    own.set(execution.setting);
    let mut totals = ScoreTotals::default();
    for (index, window) in windows.iter().enumerate() {
        own.reset();
        if let Some(other) = &mut other {
            other.begin(index, window)?;
        }
        totals.begin();
        let mut start = 0;
        let batch = other.as_ref().and_then(Reference::batch).unwrap_or(BATCH);
        for batch in window.chunks(batch.min(own.batch())) {
            own.forward(batch).map_err(PassError::Evaluate)?;
            if let Some(other) = &mut other {
                other.forward(batch)?;
            }
            let scored = batch.len().min(context - 1 - start);
            let reference = other.as_mut();
            let (pool, own) = (device.pool(), &mut *own);
            score_batch(pool, own, reference, window, start, scored, &mut totals)?;
            start += batch.len();
        }
        progress(index + 1, chunks)?;
    }
    Ok(totals.finish(context, chunks))
}

/// Returns the KV cache type of the reference, which keeps all positions.
pub fn reference_kv_type(kind: KvKind) -> KvType {
    match kind {
        KvKind::F32 => KvType::F32,
        _ => KvType::F16,
    }
}

fn score_batch(
    pool: &Pool,
    own: &mut dyn Sequence,
    mut other: Option<&mut Reference<'_, '_>>,
    window: &[u32],
    start: usize,
    n: usize,
    totals: &mut ScoreTotals,
) -> Result<(), PassError> {
    let vocabulary = own.vocabulary();
    let slab = (MAX_LOGITS / vocabulary).max(1);
    let mut scores = vec![Score::default(); slab.min(n)];
    for first in (0..n).step_by(slab) {
        let rows = slab.min(n - first);
        let logits = own.logits(first, first + rows);
        let logits = logits.map_err(PassError::Evaluate)?;
        let reference = match &mut other {
            Some(other) => Some(other.logits(start, first..first + rows)?),
            None => None,
        };
        let scores = &mut scores[..rows];
        pool.chunks_mut(scores, 1, |row, out| {
            let target = window[start + first + row + 1] as usize;
            let logits = &logits[row * vocabulary..][..vocabulary];
            out[0] = match reference {
                Some(all) => {
                    score_with_reference(logits, &all[row * vocabulary..][..vocabulary], target)
                }
                None => score(logits, target),
            };
        });
        for (row, score) in scores.iter().enumerate() {
            let position = start + first + row;
            if !score.reference_loss.is_finite() {
                return Err(PassError::Reference(ExecError::NotFinite { position }));
            }
            let divergence = score.distance.map_or(0.0, |(divergence, _)| divergence);
            if !score.loss.is_finite() || !divergence.is_finite() {
                return Err(PassError::Evaluate(ExecError::NotFinite { position }));
            }
            totals.add(score, position >= window.len() / 2);
        }
    }
    Ok(())
}

#[derive(Default)]
struct ScoreTotals {
    all: ClusteredMean,
    second_half: ClusteredMean,
    compared: Option<ReferenceTotals>,
}

#[derive(Default)]
struct ReferenceTotals {
    reference: ClusteredMean,
    difference: ClusteredMean,
    difference_all: ClusteredMean,
    divergence: ClusteredMean,
    agreement: ClusteredMean,
}

impl ScoreTotals {
    fn begin(&mut self) {
        self.all.begin_window();
        self.second_half.begin_window();
        if let Some(compared) = &mut self.compared {
            compared.begin();
        }
    }

    fn add(&mut self, score: &Score, second_half: bool) {
        self.all.add(score.loss);
        if second_half {
            self.second_half.add(score.loss);
        }
        if let Some((divergence, agrees)) = score.distance {
            let compared = self.compared.get_or_insert_default();
            let difference = score.loss - score.reference_loss;
            compared.difference_all.add(difference);
            if second_half {
                compared.reference.add(score.reference_loss);
                compared.difference.add(difference);
                compared.divergence.add(divergence);
                compared.agreement.add(f64::from(u8::from(agrees)));
            }
        }
    }

    fn finish(&self, context: usize, chunks: usize) -> Evaluation {
        let perplexity = self.second_half.mean().exp();
        let perplexity_all = self.all.mean().exp();
        let times = |of: f64| move |error: f64| of * error;
        Evaluation {
            perplexity,
            stderr: self.second_half.standard_error().map(times(perplexity)),
            perplexity_interval: self.second_half.interval().map(exponentiated),
            perplexity_all,
            stderr_all: self.all.standard_error().map(times(perplexity_all)),
            tokens: self.second_half.count(),
            tokens_all: self.all.count(),
            context,
            chunks,
            reference: self.compared.as_ref().map(ReferenceTotals::finish),
        }
    }
}

impl ReferenceTotals {
    fn begin(&mut self) {
        self.reference.begin_window();
        self.difference.begin_window();
        self.difference_all.begin_window();
        self.divergence.begin_window();
        self.agreement.begin_window();
    }

    fn finish(&self) -> Distance {
        let ratio = self.difference.mean().exp();
        Distance {
            kl: self.divergence.mean(),
            kl_stderr: self.divergence.standard_error(),
            kl_interval: self.divergence.interval(),
            top1: self.agreement.mean(),
            top1_stderr: self.agreement.standard_error(),
            reference_perplexity: self.reference.mean().exp(),
            perplexity_ratio: ratio,
            perplexity_ratio_stderr: self.difference.standard_error().map(|error| ratio * error),
            perplexity_ratio_interval: self.difference.interval().map(exponentiated),
            perplexity_ratio_all: self.difference_all.mean().exp(),
            perplexity_ratio_all_interval: self.difference_all.interval().map(exponentiated),
        }
    }
}

fn exponentiated((low, high): Interval) -> Interval {
    (low.exp(), high.exp())
}

/// Returns an explanation of the standard errors for display.
pub fn explain_standard_errors(windows: usize) -> String {
    match windows {
        1 => {
            "a single window says nothing of how far off these are; measure on more text".to_owned()
        }
        _ => format!("± is one standard error, over {windows} windows"),
    }
}

fn check_vocabulary(
    model: &Model,
    tokenizer: &Tokenizer,
    other: &Model,
    other_tokenizer: &Tokenizer,
) -> Result<(), PassError> {
    let (rows, other_rows) = (model.hyper().vocabulary, other.hyper().vocabulary);
    let (ours, theirs) = (tokenizer.vocabulary(), other_tokenizer.vocabulary());
    let what = if rows != other_rows {
        format!("{rows} tokens against {other_rows}")
    } else if let Some(id) =
        (0..ours.tokens.len()).find(|&i| ours.tokens.get(i) != theirs.tokens.get(i))
    {
        format!("token {id} is another text")
    } else {
        return Ok(());
    };
    Err(PassError::VocabularyMismatch { difference: what })
}

//! Drafts that learn from rejected tokens, between steps.
//!
//! With [`Adaptation::oja`] the bases of Q, K and V of a shared-basis draft turn towards the
//! difference of the draft's and the model's inputs, by Oja's rule (Online Basis of the
//! geodesic-projection papers). With [`Adaptation::gradient`] the input of any draft's head gets a
//! low-rank correction, by gradient descent on the divergence from the model.
//!
//! Neither method changes the model or the output distribution. A draft keeps the keys and values
//! computed before an update.

mod dense;
mod gradient;
mod oja;
mod options;
mod queue;
mod seen;

use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_formats::DType;
use htc_formats::block;
use htc_formats::htz::{Digest, Htz};
use htc_formats::learnt;
use htc_formats::model::{InputGroup, Part, ProjectionKind, Role};
use htc_formats::source::{Container, ModelFile};
use htc_kernels::cpu::{Cpu, Scratch};
use htc_kernels::{Matrix, Pool};

use crate::backend::Backend;
use crate::dial::ActiveSetting;
use crate::error::{ExecError, Result};
use crate::exec::{Adapted, AdaptedLayer, Correction, Session};
use crate::linear::Linear;
use crate::tensor::Tensor;

use gradient::LowRankCorrection;
use oja::OnlineBasis;
pub use options::AdaptOptions;
use queue::BoundedQueue;
pub(crate) use seen::ActivationRecorder;

/// Statistics of an adaptation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AdaptationStats {
    /// Rejected tokens.
    pub rejections: u64,
    /// Rejected tokens dropped because the queue was full.
    pub dropped: u64,
    /// Updates, each from several rejections.
    pub updates: u64,
    /// `‖P_t − P_0‖_F`, mean over layers; for gradients `‖B A‖_F`.
    pub distance: f64,
    /// `tr(P_t P_0) / r`, mean over layers. `None` for gradients.
    pub overlap: Option<f64>,
    /// Fraction of the differences' energy outside of the current and the initial bases, before
    /// each update. `None` for gradients.
    pub residual: Option<[f64; 2]>,
    /// Time spent.
    pub time: Duration,
}

enum Rejection {
    /// Differences of the layers' inputs, `[layers, width]`.
    Inputs(Vec<f32>),
    /// Input of the head; the divergence and its derivatives by logits.
    Head(Vec<f32>, f64, Vec<(u32, f64)>),
}

/// Online adaptation of a draft.
pub struct Adaptation {
    options: AdaptOptions,
    width: usize,
    kind: Method,
    queue: BoundedQueue<Rejection>,
    /// Version of the state, and the version in use by the draft.
    version: u64,
    draft_version: u64,
    learnt: AdaptationStats,
    residual: ([f64; 2], u64),
}

enum Method {
    Oja(Box<DraftBases>),
    Gradient {
        correction: LowRankCorrection,
        softcap: Option<f32>,
    },
}

struct DraftBases {
    layers: Vec<usize>,
    bases: Vec<OnlineBasis>,
    dtypes: Vec<[DType; 4]>,
    model: ModelFile,
    cpu: Cpu,
}

impl Adaptation {
    /// Adapts the bases of Q, K and V of a draft, at the rank that `setting` uses.
    pub fn oja(
        draft: &ModelFile,
        setting: ActiveSetting,
        model: &ModelFile,
        options: AdaptOptions,
        pool: &Arc<Pool>,
    ) -> Result<Self> {
        options.check()?;
        let hyper = &draft.hyper;
        for (what, expected, found) in [
            ("layers", model.hyper.layers, hyper.layers),
            (
                "numbers in its residual stream",
                model.hyper.width,
                hyper.width,
            ),
            ("heads", model.hyper.heads, hyper.heads),
            ("kv heads", model.hyper.kv_heads, hyper.kv_heads),
            ("numbers in a head", model.hyper.head_size, hyper.head_size),
        ] {
            if expected != found {
                return Err(ExecError::DraftShape {
                    what,
                    expected,
                    found,
                });
            }
        }
        if channel_permutation_digest(draft) != channel_permutation_digest(model) {
            return Err(ExecError::ChannelPermutation);
        }
        let (mut layers, mut bases, mut dtypes) = (Vec::new(), Vec::new(), Vec::new());
        for layer in 0..hyper.layers {
            let Some(stored) = shared_basis_types(draft, layer) else {
                continue;
            };
            let group = InputGroup::Qkv;
            let mut rows = dense::decode_tensor(draft, Role::Basis { layer, group })?;
            let rank = setting.rank.active_rank(rows.len() / hyper.width.max(1));
            rows.truncate(rank * hyper.width);
            layers.push(layer);
            bases.push(OnlineBasis::orthonormalise(hyper.width, rows).0);
            dtypes.push(stored);
        }
        if layers.is_empty() {
            return Err(ExecError::NoBasis);
        }
        let bases = DraftBases {
            layers,
            bases,
            dtypes,
            model: model.clone(),
            cpu: Cpu::new(Arc::clone(pool)),
        };
        Ok(Adaptation::new(
            hyper.width,
            options,
            Method::Oja(Box::new(bases)),
        ))
    }

    /// Adapts a low-rank correction of the head's input.
    ///
    /// # Errors
    /// [`ExecError::OptionRange`].
    pub fn gradient(draft: &ModelFile, options: AdaptOptions) -> Result<Self> {
        options.check()?;
        let width = draft.hyper.width;
        if !(1..=width).contains(&options.rank) {
            return Err(ExecError::OptionRange {
                what: "the rank of the correction",
                expected: "1 to the width of the residual stream",
                found: options.rank as f64,
            });
        }
        let kind = Method::Gradient {
            correction: LowRankCorrection::new(width, options.rank),
            softcap: draft.hyper.forward.logit_softcap,
        };
        Ok(Adaptation::new(width, options, kind))
    }

    fn new(width: usize, options: AdaptOptions, kind: Method) -> Self {
        Adaptation {
            options,
            width,
            kind,
            queue: BoundedQueue::new(options.queue_capacity),
            version: 0,
            draft_version: 0,
            learnt: AdaptationStats::default(),
            residual: ([0.0; 2], 0),
        }
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> AdaptationStats {
        let mut learnt = self.learnt;
        learnt.dropped = self.queue.dropped();
        match &self.kind {
            Method::Oja(of) => {
                let bases = &of.bases;
                let mean = |of: fn(&OnlineBasis) -> f64| {
                    bases.iter().map(of).sum::<f64>() / bases.len() as f64
                };
                learnt.distance = mean(OnlineBasis::distance);
                learnt.overlap = Some(mean(OnlineBasis::overlap));
            }
            Method::Gradient { correction, .. } => learnt.distance = correction.norm(),
        }
        let (sums, samples) = self.residual;
        learnt.residual = (samples > 0).then(|| sums.map(|sum| sum / samples as f64));
        learnt
    }

    /// Returns the state, for a file that names both models.
    pub fn state(&self, draft: Digest, model: Digest) -> learnt::TrainedDraft {
        let part = |layer: usize, numbers: &[f32], cols: usize| learnt::TrainedMatrix {
            layer: layer as u32,
            rows: (numbers.len() / cols.max(1)) as u32,
            cols: cols as u32,
            numbers: numbers.to_vec(),
        };
        let (kind, samples, parts) = match &self.kind {
            Method::Oja(of) => {
                let all = of.layers.iter().zip(&of.bases);
                let parts = all.map(|(&layer, basis)| part(layer, basis.rows(), self.width));
                let samples = of.bases.first().map_or(0, OnlineBasis::samples);
                (learnt::ParameterKind::Bases, samples, parts.collect())
            }
            Method::Gradient { correction, .. } => {
                let a = part(0, &correction.a, self.width);
                let b = part(1, &correction.b, correction.rank());
                let samples = self.learnt.rejections;
                (learnt::ParameterKind::Correction, samples, vec![a, b])
            }
        };
        learnt::TrainedDraft {
            kind,
            draft,
            model,
            samples,
            matrices: parts,
        }
    }

    /// Resumes from the state learnt between the same models.
    ///
    /// # Errors
    /// [`ExecError::StateMismatch`] for any other state.
    pub fn restore(
        &mut self,
        from: &learnt::TrainedDraft,
        draft: Digest,
        model: Digest,
    ) -> Result<()> {
        for (what, expected, found) in [("draft", draft, from.draft), ("model", model, from.model)]
        {
            check_state(what, expected, found)?;
        }
        let width = self.width as u32;
        match &mut self.kind {
            Method::Oja(of) => {
                check_state("kind", learnt::ParameterKind::Bases, from.kind)?;
                check_state("number of layers", of.layers.len(), from.matrices.len())?;
                for ((layer, basis), part) in of.layers.iter().zip(&of.bases).zip(&from.matrices) {
                    let shape = format!("layer {layer} of {} by {width}", basis.rank());
                    let found = format!("layer {} of {} by {}", part.layer, part.rows, part.cols);
                    check_state("shape", shape, found)?;
                }
                for (basis, part) in of.bases.iter_mut().zip(&from.matrices) {
                    *basis = basis.restored(&part.numbers, from.samples);
                }
            }
            Method::Gradient { correction, .. } => {
                check_state("kind", learnt::ParameterKind::Correction, from.kind)?;
                let rank = correction.rank() as u32;
                let found: Vec<_> = from.matrices.iter().map(|p| (p.rows, p.cols)).collect();
                let expected = vec![(rank, width), (width, rank)];
                check_state("shape", format_shapes(&expected), format_shapes(&found))?;
                if let [a, b] = &from.matrices[..] {
                    (correction.a, correction.b) = (a.numbers.clone(), b.numbers.clone());
                }
            }
        }
        self.version += 1;
        Ok(())
    }

    pub(crate) fn new_recorder(&self) -> ActivationRecorder {
        match &self.kind {
            Method::Oja(bases) => ActivationRecorder::new(&bases.layers, false),
            Method::Gradient { .. } => ActivationRecorder::new(&[], true),
        }
    }

    pub(crate) fn queue_rejection(&mut self, mut seen: ActivationRecorder, rejected: usize) {
        let begun = Instant::now();
        let rejection = match &self.kind {
            Method::Oja(_) => Rejection::Inputs(seen.input_differences(rejected, self.width)),
            Method::Gradient { softcap, .. } => match seen.take_head(rejected) {
                None => return,
                Some((input, logits, own)) => {
                    let (loss, mut derivatives) = gradient::divergence(&own, &logits);
                    for (token, derivative) in &mut derivatives {
                        if let Some(cap) = softcap {
                            let part = f64::from(logits[*token as usize] / cap);
                            *derivative *= 1.0 - part * part;
                        }
                    }
                    Rejection::Head(input, loss, derivatives)
                }
            },
        };
        self.learnt.rejections += 1;
        self.queue.push(rejection);
        self.learnt.time += begun.elapsed();
    }

    fn update<B: Backend>(&mut self, draft: &mut Session<B>) -> Result<()> {
        let AdaptOptions { rate, exponent, .. } = self.options;
        for rejection in self.queue.drain() {
            match (&mut self.kind, rejection) {
                (Method::Oja(of), Rejection::Inputs(inputs)) => {
                    let (sums, samples) = &mut self.residual;
                    for (basis, x) in of.bases.iter_mut().zip(inputs.chunks_exact(self.width)) {
                        let residual = basis.residual(x);
                        *sums = [sums[0] + residual[0], sums[1] + residual[1]];
                        *samples += 1;
                        basis.update(x, rate, exponent);
                    }
                }
                (
                    Method::Gradient { correction, .. },
                    Rejection::Head(input, loss, derivatives),
                ) => {
                    let tokens: Vec<u32> = derivatives.iter().map(|&(token, _)| token).collect();
                    let mut head = Vec::new();
                    draft.head_vectors(&tokens, &mut head)?;
                    let mut gradient = vec![0.0_f32; self.width];
                    for (row, (_, derivative)) in head.chunks_exact(self.width).zip(&derivatives) {
                        for (gradient, &number) in gradient.iter_mut().zip(row) {
                            *gradient += *derivative as f32 * number;
                        }
                    }
                    correction.update(&input, &gradient, loss, rate);
                }
                _ => {}
            }
        }
        self.learnt.updates += 1;
        self.version += 1;
        Ok(())
    }

    /// Returns the adapted parts if they changed.
    pub(crate) fn update_draft<B: Backend>(
        &mut self,
        draft: &mut Session<B>,
    ) -> Result<Option<Box<Adapted<B>>>> {
        let begun = Instant::now();
        if self.queue.len() >= self.options.rejections_per_update {
            self.update(draft)?;
        }
        if self.draft_version == self.version {
            return Ok(None);
        }
        let adapted = match &self.kind {
            Method::Oja(bases) => Adapted {
                layers: bases.adapted(draft)?,
                correction: None,
            },
            Method::Gradient { correction, .. } => {
                let matrix = |name: &str, numbers: &[f32], cols: usize| {
                    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                    let shape = [numbers.len() / cols.max(1), cols];
                    Tensor::computed(name, DType::F32, shape, bytes)
                };
                let (width, rank) = (self.width, correction.rank());
                let a = matrix("correction a", &correction.a, width)?;
                let b = matrix("correction b", &correction.b, rank)?;
                let (a, b) = (draft.load(&a)?, draft.load(&b)?);
                Adapted {
                    layers: Vec::new(),
                    correction: Some(Correction { a, b }),
                }
            }
        };
        self.draft_version = self.version;
        self.learnt.time += begun.elapsed();
        Ok(Some(Box::new(adapted)))
    }
}

fn check_state<T: PartialEq + std::fmt::Display>(
    what: &'static str,
    expected: T,
    found: T,
) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(ExecError::StateMismatch {
        what,
        expected: expected.to_string(),
        found: found.to_string(),
    })
}

fn format_shapes(of: &[(u32, u32)]) -> String {
    let of = of.iter().map(|(rows, cols)| format!("{rows} × {cols}"));
    of.collect::<Vec<_>>().join(" and ")
}

impl DraftBases {
    fn adapted<B: Backend>(&self, draft: &mut Session<B>) -> Result<Vec<Option<AdaptedLayer<B>>>> {
        let mut all: Vec<Option<AdaptedLayer<B>>> = Vec::new();
        let mut scratch = Scratch::new();
        for ((&layer, basis), dtypes) in self.layers.iter().zip(&self.bases).zip(&self.dtypes) {
            all.resize_with(layer, || None);
            let (rows, rank) = (basis.rows(), basis.rank());
            let stored = encode_matrix("basis", dtypes[0], [rank, rows.len() / rank.max(1)], rows)?;
            let placed = draft.load(&stored)?;
            let mut qkv = Vec::with_capacity(3);
            for (&projection, &dtype) in InputGroup::Qkv.projections().iter().zip(&dtypes[1..]) {
                let projected = self.project(layer, projection, basis, &mut scratch)?;
                let out = projected.len() / rank.max(1);
                let tensor = encode_matrix(projection.name(), dtype, [out, rank], &projected)?;
                let projected = draft.load(&tensor)?;
                qkv.push(Linear::SharedBasis { projected });
            }
            let Ok(qkv) = qkv.try_into() else {
                continue;
            };
            all.push(Some(AdaptedLayer { basis: placed, qkv }));
        }
        Ok(all)
    }

    /// Returns `W P [out, rank]` of the model's own `W`.
    fn project(
        &self,
        layer: usize,
        projection: ProjectionKind,
        basis: &OnlineBasis,
        scratch: &mut Scratch,
    ) -> Result<Vec<f32>> {
        let (out, width) = self.model.hyper.projection_shape(projection);
        let w = dense::decode_projection(&self.model, layer, projection)?;
        let bytes: Vec<u8> = w.iter().flat_map(|x| x.to_le_bytes()).collect();
        let w = Matrix::new(DType::F32, out, width, &bytes).map_err(ExecError::from)?;
        let rank = basis.rank();
        let mut products = vec![0.0; rank * out];
        let done = self
            .cpu
            .matmul(w, rank, basis.rows(), &mut products, scratch);
        done.map_err(ExecError::from)?;
        let mut turned = vec![0.0; rank * out];
        for (component, products) in products.chunks_exact(out).enumerate() {
            for (row, &product) in turned.chunks_exact_mut(rank).zip(products) {
                row[component] = product;
            }
        }
        Ok(turned)
    }
}

/// Encodes a matrix in a type, or float16 if that is impossible.
fn encode_matrix(
    name: &str,
    dtype: DType,
    [rows, cols]: [usize; 2],
    numbers: &[f32],
) -> Result<Tensor, ExecError> {
    let fits = block::writable_types().contains(&dtype) && cols.is_multiple_of(dtype.block_len());
    let encode = |dtype: DType| {
        let mut bytes = vec![0; dtype.matrix_bytes(rows, cols)?];
        block::encode(dtype, numbers, &mut bytes).ok()?;
        Some((dtype, bytes))
    };
    let stored = Some(dtype).filter(|_| fits).and_then(encode);
    let stored = stored.or_else(|| encode(DType::F16));
    let (dtype, bytes) = stored.unwrap_or((DType::F16, Vec::new()));
    Tensor::computed(name, dtype, [rows, cols], bytes)
}

fn shared_basis_types(file: &ModelFile, layer: usize) -> Option<[DType; 4]> {
    let group = InputGroup::Qkv;
    let mut dtypes = [file.tensor(Role::Basis { layer, group })?.dtype; 4];
    for (dtype, &projection) in dtypes[1..].iter_mut().zip(group.projections()) {
        let part = Part::Projected;
        *dtype = file
            .tensor(Role::Linear {
                layer,
                projection,
                part,
            })?
            .dtype;
    }
    Some(dtypes)
}

fn channel_permutation_digest(file: &ModelFile) -> Option<Digest> {
    match file.container {
        Container::Htz { .. } => Htz::open(&file.path).ok()?.manifest().provenance.order,
        _ => None,
    }
}

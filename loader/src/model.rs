//! Models: tensors bound to the steps of the forward pass.

mod bind;

use std::path::Path;

use htc_formats::htz::KernelCode;
use htc_formats::model::spec::{Branch, Heads};
use htc_formats::model::{
    Activation, ActivationPoint, HyperParameters, InputGroup, MatrixId, ModelSpec, Register, Role,
    RopePairs,
};
use htc_formats::source::{ModelFile, SourceError};
use htc_formats::vocab::VocabularyError;
use htc_kernels::cpu::Attention;

use crate::backend::{Backend, Cpu};
use crate::dial::WeightBytes;
use crate::error::ExecError;
use crate::kv_bases::StoredKvBases;
use crate::linear::{Linear, Placed};
use crate::tensor::Tensor;
use crate::tokenizer::Tokenizer;
use bind::{Binder, InPlace, WeightLoader, check, find, require};

/// A block with its weights.
pub(crate) struct Block<B: Backend> {
    /// Steps in the order of execution.
    pub steps: Vec<Step<B>>,
}

/// A [`spec::Step`] with its weights.
pub(crate) enum Step<B: Backend> {
    Norm {
        weight: B::Vector,
        input: Register,
        output: Register,
    },
    Project(Project<B>),
    HeadNorm {
        weight: B::Vector,
        heads: Heads,
    },
    Rope {
        heads: [Heads; 2],
        pairs: RopePairs,
        local: bool,
    },
    Attention(AttentionStep),
    Activate {
        activation: Activation,
        width: usize,
    },
    Experts(Experts<B>),
    Add {
        branch: Branch,
    },
}

/// Projections of one input.
pub(crate) struct Project<B: Backend> {
    pub input: Register,
    pub point: ActivationPoint,
    pub group: Option<InputGroup>,
    /// Basis shared by projections of the group.
    pub basis: Option<Placed<B::Weight>>,
    pub projections: Vec<Projection<B>>,
}

/// A linear map with its bias.
pub(crate) struct Projection<B: Backend> {
    pub linear: Linear<B::Weight>,
    pub bias: Option<B::Vector>,
    /// Input width.
    pub cols: usize,
    pub output: Register,
}

/// A mixture of experts, each a gated feed-forward network.
pub(crate) struct Experts<B: Backend> {
    pub router: Projection<B>,
    pub experts: Vec<Expert<B>>,
    /// Experts applied to each position.
    pub used: usize,
    /// Whether the weights of the used experts are divided by their sum.
    pub normalised: bool,
    pub activation: Activation,
    /// Width of an expert's hidden layer.
    pub hidden: usize,
}

/// Projections of one expert.
pub(crate) struct Expert<B: Backend> {
    pub gate_up: [Projection<B>; 2],
    pub down: Projection<B>,
}

/// Attention of a block: heads, scale, cap and window.
pub(crate) struct AttentionStep {
    pub q: Heads,
    pub kv: Heads,
    pub attention: Attention,
}

impl<B: Backend> Block<B> {
    /// Returns the attention of the block, if any.
    pub fn attention(&self) -> Option<&AttentionStep> {
        self.steps.iter().find_map(|step| match step {
            Step::Attention(step) => Some(step),
            _ => None,
        })
    }

    /// Returns true if the rotary embedding is that of layers with a window.
    fn has_local_rope(&self) -> bool {
        let local = |step: &Step<B>| matches!(step, Step::Rope { local: true, .. });
        self.steps.iter().any(local)
    }
}

/// Refinement of a dense matrix and its index in the model.
type Refinement<W> = (Placed<W>, usize);

/// A model with its weights on a backend. Sessions share it in an [`Arc`](std::sync::Arc).
///
/// On the CPU, weights stay in the mapped file: opening reads only norms.
pub struct Model<B: Backend = Cpu> {
    file: ModelFile,
    pub(crate) blocks: Vec<Block<B>>,
    spec: ModelSpec,
    /// Row length of every [`Register`].
    pub(crate) register_widths: [usize; Register::ALL.len()],
    pub(crate) embedding: Placed<B::Weight>,
    /// Refinement of the embedding.
    pub(crate) embedding_refinement: Option<Refinement<B::Weight>>,
    pub(crate) output_norm: B::Vector,
    /// Output head; the embedding if tied.
    head: Linear<B::Weight>,
    dial: WeightBytes,
    pub(crate) rope: Rope,
}

/// Rotary frequencies, in radians per position, one per rotated pair.
pub(crate) struct Rope {
    /// Frequencies of layers with full attention.
    frequencies: Vec<f64>,
    /// Longest short context, and frequencies beyond it.
    long: Option<(usize, Vec<f64>)>,
    /// Frequencies of layers with a window, if different.
    local: Option<Vec<f64>>,
    /// Factor of rotated vectors.
    pub factor: f32,
}

impl Rope {
    /// Returns the frequencies for sequences of at most `context` positions, and their largest
    /// context.
    pub fn global(&self, context: usize) -> (&[f64], usize) {
        match &self.long {
            Some((limit, long)) if context > *limit => (long, usize::MAX),
            Some((limit, _)) => (&self.frequencies, *limit),
            None => (&self.frequencies, usize::MAX),
        }
    }

    /// Returns the frequencies of layers with a window.
    pub fn local(&self) -> Option<&[f64]> {
        self.local.as_deref()
    }
}

impl Model {
    /// Opens a GGUF file, a `.htz` artifact or a folder with safetensors for the CPU.
    ///
    /// # Errors
    /// [`ExecError`] if the file is missing, damaged or unsupported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ExecError> {
        Model::bind(ModelFile::open(path.as_ref())?)
    }

    /// Binds the tensors of an opened file for the CPU.
    ///
    /// # Errors
    /// [`ExecError`] if a tensor is missing, has a wrong shape or does not decode.
    pub fn bind(file: ModelFile) -> Result<Self, ExecError> {
        Model::placed(file, &mut InPlace)
    }

    /// Returns its tensors in the file, including norms and biases.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = Tensor> {
        let file = self.file();
        file.tensors.iter().map(|tensor| Tensor::new(file, tensor))
    }

    /// Returns the source model contained in an artifact, in the same mapping; `None` if there is
    /// none. Copies nothing and reads no weights.
    ///
    /// # Errors
    /// [`ExecError`] as for any model.
    pub fn source(&self) -> Result<Option<Self>, ExecError> {
        let source = self.file.embedded_source().map_err(SourceError::Htz)?;
        source.map(Model::bind).transpose()
    }

    /// Returns the GPU kernels contained in an artifact; `None` if there are none or they are
    /// damaged, since devices can do without.
    pub fn kernels(&self) -> Option<KernelCode> {
        self.file.kernels().ok().flatten()
    }
}

impl<B: Backend> Model<B> {
    /// Binds the tensors of an opened file and loads them to the backend's device. The backend may
    /// be that of any session.
    ///
    /// # Errors
    /// [`ExecError`] if a tensor is missing, has a wrong shape or does not decode, or memory runs
    /// out.
    pub fn load(file: ModelFile, backend: &mut B) -> Result<Self, ExecError> {
        Model::placed(file, backend)
    }

    fn placed(file: ModelFile, place: &mut dyn WeightLoader<B>) -> Result<Self, ExecError> {
        let mut binder = Binder { file: &file, place };
        let hyper = &file.hyper;
        let spec = file.spec();
        let blocks = spec.blocks.iter().enumerate();
        let blocks = blocks
            .map(|(layer, block)| binder.block(layer, block))
            .collect::<Result<Vec<_>, _>>()?;
        let register_widths = Register::ALL.map(|register| spec.register_width(register));
        let shape = [hyper.vocabulary, hyper.width];
        let tensor = require(&file, Role::TokenEmbedding)?;
        let embedding = binder.load(&tensor, shape)?;
        let head = match binder.form(MatrixId::Head) {
            Some(form) => binder.linear(MatrixId::Head, form, None)?,
            None => {
                let base = binder.load(&tensor, shape)?;
                binder.refined(MatrixId::Embedding, base)?
            }
        };
        // Also used by a tied head.
        let embedding_refinement = binder.refinement(MatrixId::Embedding, shape)?;
        let output_norm = binder.required_vector(Role::OutputNorm, hyper.width)?;
        let rope = rope(&file)?;
        let dial = WeightBytes::from_file(&file);
        Ok(Model {
            file,
            blocks,
            spec,
            register_widths,
            embedding,
            embedding_refinement,
            output_norm,
            head,
            dial,
            rope,
        })
    }

    /// Returns the hyper-parameters.
    pub fn hyper(&self) -> &HyperParameters {
        &self.file.hyper
    }

    /// Returns the description of the forward pass.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the opened file.
    pub fn file(&self) -> &ModelFile {
        &self.file
    }

    /// Returns the sizes of the weights and the parts that can be left out.
    pub fn dial(&self) -> &WeightBytes {
        &self.dial
    }

    /// Returns the rotary frequencies of a layer in radians per position, one per rotated pair, for
    /// sequences of at most `context` positions, and the factor of rotated vectors. Unknown layers
    /// are treated as having full attention.
    pub fn rotation(&self, layer: usize, context: usize) -> (&[f64], f32) {
        let local = self.blocks.get(layer).is_some_and(Block::has_local_rope);
        let frequencies = match self.rope.local().filter(|_| local) {
            Some(frequencies) => frequencies,
            None => self.rope.global(context).0,
        };
        (frequencies, self.rope.factor)
    }

    /// Returns scale, cap and window of a layer's attention.
    pub fn attention(&self, layer: usize) -> Option<&Attention> {
        let step = self.blocks.get(layer).and_then(Block::attention);
        step.map(|step| &step.attention)
    }

    /// Reads and checks the KV bases of the file; `None` if it has none.
    ///
    /// # Errors
    /// [`ExecError::KvBasis`] for non-finite numbers, rows that are not orthonormal, and invalid
    /// energies; [`ExecError::Missing`], [`ExecError::TensorShape`] and [`ExecError::Tensor`] for invalid
    /// tensors.
    pub fn kv_bases(&self) -> Result<Option<StoredKvBases>, ExecError> {
        StoredKvBases::from_file(&self.file)
    }

    /// Returns the tokenizer of the file.
    ///
    /// # Errors
    /// [`VocabularyError`] if it is missing or unsupported.
    pub fn tokenizer(&self) -> Result<Tokenizer, VocabularyError> {
        Tokenizer::new(self.file.vocabulary.clone()?)
    }

    /// Returns the output head.
    pub(crate) fn head(&self) -> &Linear<B::Weight> {
        &self.head
    }
}

fn rope(file: &ModelFile) -> Result<Rope, ExecError> {
    let hyper = &file.hyper;
    let factors = |tensor: Tensor| -> Result<Vec<f32>, ExecError> {
        check(&tensor, [1, hyper.rope_dimensions / 2])?;
        tensor.to_f32()
    };
    let short = find(file, Role::RopeFactors).map(factors).transpose()?;
    let frequencies = |factors: Option<&[f32]>| {
        let scale = hyper.rope_linear_scale;
        rope_frequencies(hyper.rope_theta, scale, hyper.rope_dimensions, factors)
    };
    let long = match hyper.forward.long_rope {
        None => None,
        Some(long) => {
            let factors = factors(require(file, Role::LongRopeFactors)?)?;
            Some((long.original_context, frequencies(Some(&factors))))
        }
    };
    let window = hyper.forward.sliding_window.as_ref();
    Ok(Rope {
        frequencies: frequencies(short.as_deref()),
        long,
        local: window
            .and_then(|window| window.rope_theta)
            .map(|theta| rope_frequencies(theta, 1.0, hyper.rope_dimensions, None)),
        factor: hyper
            .forward
            .long_rope
            .map_or(1.0, |long| long.attention_factor),
    })
}

/// Returns `theta^(-2i/d) / (linear scale · factor_i)`, in radians per position.
fn rope_frequencies(
    theta: f32,
    linear_scale: f32,
    dimensions: usize,
    factors: Option<&[f32]>,
) -> Vec<f64> {
    (0..dimensions / 2)
        .map(|i| {
            let base = f64::from(theta).powf(-2.0 * i as f64 / dimensions as f64);
            let factor = factors.map_or(1.0, |f| f64::from(f[i]));
            base / (f64::from(linear_scale) * factor)
        })
        .collect()
}

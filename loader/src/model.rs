//! Models: tensors bound to the steps of the forward pass.

use std::path::Path;

use htc_formats::htz::KernelCode;
use htc_formats::model::spec::{self, Branch, Heads};
use htc_formats::model::{
    Activation, ActivationPoint, BlockSpec, Form, HyperParameters, InputGroup, MatrixId, ModelSpec,
    Part, ProjectionKind, Register, Role, RopePairs,
};
use htc_formats::source::{ModelFile, SourceError};
use htc_kernels::cpu::Attention;

use crate::backend::{Backend, Cpu};
use crate::dial::{self, WeightBytes};
use crate::error::{ExecError, LoadError};
use crate::kv_bases::StoredKvBases;
use crate::linear::{Linear, Placed};
use crate::tensor::Tensor;
use crate::tokenizer::{Tokenizer, TokenizerError};

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
    Add {
        branch: Branch,
    },
}

/// Projections of one input.
pub(crate) struct Project<B: Backend> {
    pub input: Register,
    pub site: ActivationPoint,
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
    /// Of layers with full attention.
    frequencies: Vec<f64>,
    /// Longest short context, and frequencies beyond it.
    long: Option<(usize, Vec<f64>)>,
    /// Of layers with a window, if different.
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
    /// [`LoadError`] if the file is missing, damaged or unsupported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        Model::bind(ModelFile::open(path.as_ref())?)
    }

    /// Binds the tensors of an opened file for the CPU.
    ///
    /// # Errors
    /// [`LoadError`] if a tensor is missing, has a wrong shape or does not decode.
    pub fn bind(file: ModelFile) -> Result<Self, LoadError> {
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
    /// [`LoadError`] as for any model.
    pub fn source(&self) -> Result<Option<Self>, LoadError> {
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
    /// [`LoadError`] if a tensor is missing, has a wrong shape or does not decode, or memory runs
    /// out.
    pub fn load(file: ModelFile, backend: &mut B) -> Result<Self, LoadError> {
        Model::placed(file, backend)
    }

    fn placed(file: ModelFile, place: &mut impl Place<B>) -> Result<Self, LoadError> {
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
        let embedding = binder.place(&tensor, shape)?;
        let head = match binder.form(MatrixId::Head) {
            Some(form) => binder.linear(MatrixId::Head, form, None)?,
            None => {
                let base = binder.place(&tensor, shape)?;
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
    /// [`LoadError::KvBasis`] for non-finite numbers, rows that are not orthonormal, and invalid
    /// energies; [`LoadError::Missing`], [`LoadError::Shape`] and [`LoadError::Block`] for invalid
    /// tensors.
    pub fn kv_bases(&self) -> Result<Option<StoredKvBases>, LoadError> {
        StoredKvBases::from_file(&self.file)
    }

    /// Returns the tokenizer of the file.
    ///
    /// # Errors
    /// [`TokenizerError`] if it is missing or unsupported.
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(self.file.vocabulary.clone()?)
    }

    /// Returns the output head.
    pub(crate) fn head(&self) -> &Linear<B::Weight> {
        &self.head
    }
}

fn find(file: &ModelFile, role: Role) -> Option<Tensor> {
    file.tensor(role).map(|tensor| Tensor::new(file, tensor))
}

fn require(file: &ModelFile, role: Role) -> Result<Tensor, LoadError> {
    find(file, role).ok_or(LoadError::Missing(role))
}

/// Loads tensors of a file to a backend.
trait Place<B: Backend> {
    fn weight(&mut self, tensor: &Tensor) -> Result<B::Weight, ExecError>;
    fn vector(&mut self, numbers: Vec<f32>) -> Result<B::Vector, ExecError>;
}

impl<B: Backend> Place<B> for B {
    fn weight(&mut self, tensor: &Tensor) -> Result<B::Weight, ExecError> {
        Backend::weight(self, tensor)
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<B::Vector, ExecError> {
        Backend::vector(self, numbers)
    }
}

struct InPlace;

impl Place<Cpu> for InPlace {
    fn weight(&mut self, tensor: &Tensor) -> Result<Tensor, ExecError> {
        tensor.validated()
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<Vec<f32>, ExecError> {
        Ok(numbers)
    }
}

/// Binds tensors and checks their shapes, once for all backends.
struct Binder<'a, P> {
    file: &'a ModelFile,
    place: &'a mut P,
}

impl<P> Binder<'_, P> {
    fn place<B: Backend>(
        &mut self,
        tensor: &Tensor,
        expected: [usize; 2],
    ) -> Result<Placed<B::Weight>, LoadError>
    where
        P: Place<B>,
    {
        let [rows, cols] = check(tensor, expected)?;
        let weight = self.place.weight(tensor);
        let weight = weight.map_err(|source| LoadError::Backend {
            tensor: tensor.name().to_owned(),
            source,
        })?;
        Ok(Placed {
            weight,
            dtype: tensor.dtype(),
            rows,
            cols,
        })
    }

    fn vector<B: Backend>(
        &mut self,
        role: Role,
        length: usize,
    ) -> Result<Option<B::Vector>, LoadError>
    where
        P: Place<B>,
    {
        let Some(tensor) = find(self.file, role) else {
            return Ok(None);
        };
        check(&tensor, [1, length])?;
        let vector = self.place.vector(tensor.to_f32()?);
        vector.map(Some).map_err(|source| LoadError::Backend {
            tensor: tensor.name().to_owned(),
            source,
        })
    }

    fn required_vector<B: Backend>(
        &mut self,
        role: Role,
        length: usize,
    ) -> Result<B::Vector, LoadError>
    where
        P: Place<B>,
    {
        self.vector(role, length)?.ok_or(LoadError::Missing(role))
    }

    /// Returns the storage form of a matrix; `None` if it has no tensors.
    fn form(&self, matrix: MatrixId) -> Option<Form> {
        Form::of(|part| {
            let role = matrix.role(part);
            role.is_some_and(|role| self.file.tensor(role).is_some())
        })
    }

    fn linear<B: Backend>(
        &mut self,
        matrix: MatrixId,
        form: Form,
        basis: Option<&Placed<B::Weight>>,
    ) -> Result<Linear<B::Weight>, LoadError>
    where
        P: Place<B>,
    {
        let (rows, cols) = matrix.shape(&self.file.hyper);
        let file = self.file;
        let part = |part: Part| {
            let missing = LoadError::Missing(matrix.weight());
            require(file, matrix.role(part).ok_or(missing)?)
        };
        Ok(match form {
            Form::Dense => {
                let base = self.place(&part(Part::Weight)?, [rows, cols])?;
                self.refined(matrix, base)?
            }
            Form::LowRank => {
                let (a, b) = (part(Part::A)?, part(Part::B)?);
                Linear::LowRank {
                    b: self.place(&b, [rows, a.rows()])?,
                    a: self.place(&a, [a.rows(), cols])?,
                }
            }
            Form::SharedBasis => {
                let group = matrix
                    .layer()
                    .zip(matrix.slot().and_then(ProjectionKind::group));
                let missing = group.map_or(matrix.weight(), |(layer, group)| Role::Basis {
                    layer,
                    group,
                });
                let basis = basis.ok_or(LoadError::Missing(missing))?;
                let projected = self.place(&part(Part::Projected)?, [rows, basis.rows])?;
                Linear::SharedBasis { projected }
            }
            Form::Residual => {
                let base = part(Part::Weight)?;
                let (a, b) = (part(Part::ResidualA)?, part(Part::ResidualB)?);
                Linear::Residual {
                    base: self.place(&base, [rows, cols])?,
                    b: self.place(&b, [rows, a.rows()])?,
                    a: self.place(&a, [a.rows(), cols])?,
                }
            }
        })
    }

    /// Binds the refinement of a dense matrix, if any, with its index.
    fn refinement<B: Backend>(
        &mut self,
        matrix: MatrixId,
        shape: [usize; 2],
    ) -> Result<Option<Refinement<B::Weight>>, LoadError>
    where
        P: Place<B>,
    {
        let file = self.file;
        let Some((index, tensor)) = dial::find_refinement(file, matrix) else {
            return Ok(None);
        };
        let placed = self.place(&Tensor::new(file, tensor), shape)?;
        Ok(Some((placed, index)))
    }

    fn refined<B: Backend>(
        &mut self,
        matrix: MatrixId,
        base: Placed<B::Weight>,
    ) -> Result<Linear<B::Weight>, LoadError>
    where
        P: Place<B>,
    {
        let found = self.refinement(matrix, [base.rows, base.cols])?;
        Ok(match found {
            None => Linear::Dense(base),
            Some((refinement, place)) => Linear::Refined {
                base,
                refinement,
                place,
            },
        })
    }

    fn slot<B: Backend>(
        &mut self,
        layer: usize,
        slot: ProjectionKind,
        basis: Option<&Placed<B::Weight>>,
    ) -> Result<Linear<B::Weight>, LoadError>
    where
        P: Place<B>,
    {
        let matrix = MatrixId::Projection {
            layer,
            projection: slot,
        };
        let form = self.form(matrix);
        let form = form.ok_or(LoadError::Missing(matrix.weight()))?;
        self.linear(matrix, form, basis)
    }

    fn basis<B: Backend>(
        &mut self,
        layer: usize,
        group: InputGroup,
    ) -> Result<Option<Placed<B::Weight>>, LoadError>
    where
        P: Place<B>,
    {
        let width = self.file.hyper.width;
        let tensor = find(self.file, Role::Basis { layer, group });
        let place = tensor.map(|basis| self.place(&basis, [basis.rows(), width]));
        place.transpose()
    }

    fn block<B: Backend>(&mut self, layer: usize, block: &BlockSpec) -> Result<Block<B>, LoadError>
    where
        P: Place<B>,
    {
        let steps = block.steps.iter().map(|step| self.step(layer, step));
        Ok(Block {
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    fn step<B: Backend>(&mut self, layer: usize, step: &spec::Step) -> Result<Step<B>, LoadError>
    where
        P: Place<B>,
    {
        let hyper = &self.file.hyper;
        Ok(match *step {
            spec::Step::Norm {
                weight,
                input,
                output,
            } => Step::Norm {
                weight: self.required_vector(weight, hyper.width)?,
                input,
                output,
            },
            spec::Step::Project(ref step) => Step::Project(self.project(layer, step)?),
            spec::Step::HeadNorm { weight, heads } => Step::HeadNorm {
                weight: self.required_vector(weight, heads.size)?,
                heads,
            },
            spec::Step::Rope { heads, local } => Step::Rope {
                heads,
                pairs: hyper.forward.rope_pairs,
                local,
            },
            spec::Step::Attention(step) => Step::Attention(AttentionStep {
                q: step.queries,
                kv: step.keys,
                attention: Attention {
                    scale: step.scale,
                    softcap: step.softcap,
                    window: step.window,
                },
            }),
            spec::Step::Activate { activation, width } => Step::Activate { activation, width },
            spec::Step::Add { branch } => Step::Add { branch },
        })
    }

    fn project<B: Backend>(
        &mut self,
        layer: usize,
        step: &spec::Project,
    ) -> Result<Project<B>, LoadError>
    where
        P: Place<B>,
    {
        let basis = match step.group {
            Some(group) => self.basis(layer, group)?,
            None => None,
        };
        let mut projections = Vec::with_capacity(step.projections.len());
        for projection in &step.projections {
            let (slot, part) = (projection.kind, Part::Bias);
            projections.push(Projection {
                linear: self.slot(layer, slot, basis.as_ref())?,
                bias: self.vector(Role::Linear { layer, slot, part }, projection.rows)?,
                cols: projection.cols,
                output: projection.output,
            });
        }
        Ok(Project {
            input: step.input,
            site: step.point,
            group: step.group,
            basis,
            projections,
        })
    }
}

fn check(tensor: &Tensor, expected: [usize; 2]) -> Result<[usize; 2], LoadError> {
    let found = [tensor.rows(), tensor.cols()];
    if found == expected {
        return Ok(found);
    }
    Err(LoadError::Shape {
        tensor: tensor.name().to_owned(),
        expected,
        found,
    })
}

fn rope(file: &ModelFile) -> Result<Rope, LoadError> {
    let hyper = &file.hyper;
    let factors = |tensor: Tensor| -> Result<Vec<f32>, LoadError> {
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

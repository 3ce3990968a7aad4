//! The description of a model's forward pass: a list of blocks, each a short program of steps.
//!
//! The executor walks the steps forwards and the gradient walks them backwards; calibration
//! observes the inputs of [`Step::Project`] through the executor.

use std::collections::HashSet;

use super::{
    Activation, ActivationPoint, Experts, HyperParameters, InputGroup, MatrixId, Part,
    ProjectionKind, Role,
};

/// A value that steps read and write. Every register holds one row per position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// The residual stream.
    Residual,
    /// Input of the next projections, after a norm.
    Normed,
    /// Queries of all heads.
    Query,
    /// Keys of all kv heads.
    Key,
    /// Values of all kv heads.
    Value,
    /// Outputs of the attention heads.
    Attended,
    /// Outputs of the router, one number per expert.
    Router,
    /// Rows that one expert reads.
    ExpertInput,
    /// Gate of the feed-forward network or of one expert; after the activation its hidden vector.
    Gate,
    /// Up projection of the feed-forward network or of one expert.
    Up,
    /// Rows that one expert writes.
    ExpertOutput,
    /// Output of a branch, to be added to the residual stream.
    Delta,
}

impl Register {
    /// All registers.
    pub const ALL: [Register; 12] = [
        Register::Residual,
        Register::Normed,
        Register::Query,
        Register::Key,
        Register::Value,
        Register::Attended,
        Register::Router,
        Register::ExpertInput,
        Register::Gate,
        Register::Up,
        Register::ExpertOutput,
        Register::Delta,
    ];
}

/// A branch of a block, whose output is added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Branch {
    /// The token mixer.
    Attention,
    /// The feed-forward network.
    Ffn,
}

/// A linear map of a block: `y = W x`, plus a bias if the model has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projection {
    /// Index of the block.
    pub layer: usize,
    /// Which of the block's projections it is.
    pub kind: ProjectionKind,
    /// Rows (outputs) of `W`.
    pub rows: usize,
    /// Columns (inputs) of `W`.
    pub cols: usize,
    /// Whether a bias `[rows]` is added.
    pub bias: bool,
    /// Register that receives `y`.
    pub output: Register,
}

impl Projection {
    /// Returns the name of `W`.
    pub const fn matrix(&self) -> MatrixId {
        MatrixId::Projection {
            layer: self.layer,
            projection: self.kind,
        }
    }
}

/// Projections that read the same input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Register that is read.
    pub input: Register,
    /// Name of that input among the activation points of the block.
    pub point: ActivationPoint,
    /// Group whose shared basis the projections may use.
    pub group: Option<InputGroup>,
    /// The projections, in the order of execution.
    pub projections: Vec<Projection>,
}

/// Heads in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Register that holds them.
    pub register: Register,
    /// Heads of a row.
    pub count: usize,
    /// Numbers of a head.
    pub size: usize,
}

impl Heads {
    /// Numbers of a row.
    pub const fn width(self) -> usize {
        self.count * self.size
    }
}

/// Causal attention of queries over the cached keys and values, into [`Register::Attended`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionStep {
    /// Query heads.
    pub queries: Heads,
    /// Key heads, whose number divides that of the queries; value heads in [`Register::Value`] have
    /// the same shape.
    pub keys: Heads,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// Scaled products `s` become `c tanh(s / c)`.
    pub softcap: Option<f32>,
    /// Latest positions that a position attends to, itself among them; all earlier ones if `None`.
    pub window: Option<usize>,
}

/// A gated feed-forward network of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expert {
    /// Writes [`Register::Gate`].
    pub gate: Projection,
    /// Writes [`Register::Up`].
    pub up: Projection,
    /// Writes [`Register::ExpertOutput`].
    pub down: Projection,
}

/// A mixture of experts, from [`Register::Normed`] into [`Register::Delta`].
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsStep {
    /// Writes [`Register::Router`], one score per expert.
    pub router: Projection,
    /// The experts.
    pub experts: Vec<Expert>,
    /// Experts applied to each position, those of the largest scores.
    pub used: usize,
    /// Whether the weights of the used experts are divided by their sum.
    pub normalised: bool,
    /// Activation of the gates.
    pub activation: Activation,
    /// Width of an expert's hidden layer.
    pub hidden: usize,
}

/// A step of a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// RMS norm of a row. Reading and writing the same register is allowed.
    Norm {
        /// Role of the weight `[width]`.
        weight: Role,
        /// Register that is read.
        input: Register,
        /// Register that is written.
        output: Register,
    },
    /// Linear maps of one input.
    Project(Project),
    /// RMS norm of every head, in place.
    HeadNorm {
        /// Role of the weight `[size]`.
        weight: Role,
        /// The heads.
        heads: Heads,
    },
    /// Rotary embedding of every head, in place.
    Rope {
        /// The heads of each register that is rotated.
        heads: [Heads; 2],
        /// Whether the frequencies are those of layers with a window.
        local: bool,
    },
    /// Appends keys and values to the cache and attends to it.
    Attention(AttentionStep),
    /// `gate = activation(gate) · up`.
    Activate {
        /// The activation.
        activation: Activation,
        /// Numbers of a row.
        width: usize,
    },
    /// Applies the experts that a router chooses.
    Experts(ExpertsStep),
    /// `residual += delta`.
    Add {
        /// Branch that ends here.
        branch: Branch,
    },
}

impl Step {
    /// Returns the projections of the step in the order of execution.
    pub fn projections(&self) -> impl Iterator<Item = &Projection> {
        let (inputs, experts) = match self {
            Step::Project(project) => (project.projections.as_slice(), None),
            Step::Experts(step) => (std::slice::from_ref(&step.router), Some(&step.experts)),
            _ => (&[][..], None),
        };
        let experts = experts.into_iter().flatten();
        inputs
            .iter()
            .chain(experts.flat_map(|expert| [&expert.gate, &expert.up, &expert.down]))
    }

    /// Returns the registers that the step writes, with the numbers of a row of each. `width` is
    /// that of the residual stream.
    pub fn writes(&self, width: usize) -> Vec<(Register, usize)> {
        match self {
            Step::Norm { output, .. } => vec![(*output, width)],
            Step::Project(step) => {
                let written = step.projections.iter();
                written.map(|p| (p.output, p.rows)).collect()
            }
            Step::HeadNorm { heads, .. } => vec![(heads.register, heads.width())],
            Step::Rope { heads, .. } => heads.map(|of| (of.register, of.width())).to_vec(),
            Step::Attention(step) => vec![(Register::Attended, step.queries.width())],
            Step::Experts(step) => vec![
                (Register::Router, step.experts.len()),
                (Register::ExpertInput, width),
                (Register::Gate, step.hidden),
                (Register::Up, step.hidden),
                (Register::ExpertOutput, width),
                (Register::Delta, width),
            ],
            Step::Activate { width, .. } => vec![(Register::Gate, *width)],
            Step::Add { .. } => vec![(Register::Residual, width)],
        }
    }
}

/// An input of a block's projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInput {
    /// Name of the input.
    pub point: ActivationPoint,
    /// Numbers of a row.
    pub width: usize,
}

/// A block of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockSpec {
    /// Its steps, in the order of execution.
    pub steps: Vec<Step>,
}

impl BlockSpec {
    /// Returns the projections of the block in the order of execution.
    pub fn projections(&self) -> impl Iterator<Item = &Projection> {
        self.steps.iter().flat_map(Step::projections)
    }

    /// Returns the inputs of the block's projections in the order of execution.
    pub fn inputs(&self) -> Vec<BlockInput> {
        let mut inputs: Vec<BlockInput> = Vec::new();
        for projection in self.projections() {
            let (point, width) = (projection.kind.input(), projection.cols);
            // Projections that read the same input follow each other.
            if inputs.last().is_none_or(|last| last.point != point) {
                inputs.push(BlockInput { point, width });
            }
        }
        inputs
    }

    /// Returns the roles of the weights of the block's norms, in the order of execution.
    pub fn norms(&self) -> impl Iterator<Item = Role> {
        self.steps.iter().filter_map(|step| match step {
            Step::Norm { weight, .. } | Step::HeadNorm { weight, .. } => Some(*weight),
            _ => None,
        })
    }
}

/// The description of a model's forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSpec {
    /// Width of the residual stream.
    pub width: usize,
    /// The blocks, in the order of execution.
    pub blocks: Vec<BlockSpec>,
}

impl ModelSpec {
    /// Describes a model with these hyper-parameters and tensors. Biases and norms that are
    /// optional take part if the model has their tensors.
    pub fn new(hyper: &HyperParameters, roles: impl IntoIterator<Item = Role>) -> ModelSpec {
        let roles: HashSet<Role> = roles.into_iter().collect();
        let builder = Builder { hyper, roles };
        ModelSpec {
            width: hyper.width,
            blocks: (0..hyper.layers)
                .map(|layer| builder.block(layer))
                .collect(),
        }
    }

    /// Returns the projections of all blocks in the order of execution.
    pub fn projections(&self) -> impl Iterator<Item = &Projection> {
        self.blocks.iter().flat_map(BlockSpec::projections)
    }

    /// Returns the matrices of all blocks in the order of execution.
    pub fn matrices(&self) -> impl Iterator<Item = MatrixId> {
        self.projections().map(Projection::matrix)
    }

    /// Returns the numbers of a row of `register`: the most that any block needs.
    pub fn register_width(&self, register: Register) -> usize {
        let steps = self.blocks.iter().flat_map(|block| &block.steps);
        let written = steps.flat_map(|step| step.writes(self.width));
        let written = written.filter(|(of, _)| *of == register);
        let widest = written.map(|(_, width)| width).max().unwrap_or(0);
        match register {
            // Also of the embedding and the last norm.
            Register::Residual | Register::Normed => widest.max(self.width),
            _ => widest,
        }
    }
}

/// Builds the blocks of decoders: attention and a gated feed-forward network or a mixture of
/// experts, each a branch that reads the normed residual stream.
struct Builder<'a> {
    hyper: &'a HyperParameters,
    roles: HashSet<Role>,
}

impl Builder<'_> {
    fn block(&self, layer: usize) -> BlockSpec {
        let mut steps = Vec::new();
        self.attention(layer, &mut steps);
        self.feed_forward(layer, &mut steps);
        BlockSpec { steps }
    }

    fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    fn projection(&self, layer: usize, projection: ProjectionKind, output: Register) -> Projection {
        let (rows, cols) = self.hyper.projection_shape(projection);
        let part = Part::Bias;
        Projection {
            layer,
            kind: projection,
            rows,
            cols,
            bias: self.has(Role::Linear {
                layer,
                projection,
                part,
            }),
            output,
        }
    }

    /// A norm in place, if the model has its weight.
    fn optional_norm(&self, weight: Role, register: Register) -> Option<Step> {
        self.has(weight).then_some(Step::Norm {
            weight,
            input: register,
            output: register,
        })
    }

    fn attention(&self, layer: usize, steps: &mut Vec<Step>) {
        let hyper = self.hyper;
        let window = hyper.window(layer);
        let heads = |register, count| Heads {
            register,
            count,
            size: hyper.head_size,
        };
        let (query, key) = (
            heads(Register::Query, hyper.heads),
            heads(Register::Key, hyper.kv_heads),
        );
        steps.push(Step::Norm {
            weight: Role::AttentionNorm { layer },
            input: Register::Residual,
            output: Register::Normed,
        });
        steps.push(Step::Project(Project {
            input: Register::Normed,
            point: ActivationPoint::Attention,
            group: Some(InputGroup::Qkv),
            projections: vec![
                self.projection(layer, ProjectionKind::Q, Register::Query),
                self.projection(layer, ProjectionKind::K, Register::Key),
                self.projection(layer, ProjectionKind::V, Register::Value),
            ],
        }));
        for (weight, heads) in [
            (Role::QueryNorm { layer }, query),
            (Role::KeyNorm { layer }, key),
        ] {
            if self.has(weight) {
                steps.push(Step::HeadNorm { weight, heads });
            }
        }
        steps.push(Step::Rope {
            heads: [query, key],
            local: window.is_some_and(|window| window.rope_theta.is_some()),
        });
        let plain_scale = || 1.0 / (hyper.head_size as f32).sqrt();
        steps.push(Step::Attention(AttentionStep {
            queries: query,
            keys: key,
            scale: hyper.forward.attention_scale.unwrap_or_else(plain_scale),
            softcap: hyper.forward.attention_softcap,
            window: window.map(|window| window.positions),
        }));
        steps.push(Step::Project(Project {
            input: Register::Attended,
            point: ActivationPoint::AttentionOutput,
            group: None,
            projections: vec![self.projection(layer, ProjectionKind::O, Register::Delta)],
        }));
        steps.extend(self.optional_norm(Role::PostAttentionNorm { layer }, Register::Delta));
        steps.push(Step::Add {
            branch: Branch::Attention,
        });
    }

    fn feed_forward(&self, layer: usize, steps: &mut Vec<Step>) {
        steps.push(Step::Norm {
            weight: Role::FfnNorm { layer },
            input: Register::Residual,
            output: Register::Normed,
        });
        match self.hyper.forward.experts {
            Some(experts) => steps.push(self.experts(layer, experts)),
            None => self.dense_feed_forward(layer, steps),
        }
        steps.extend(self.optional_norm(Role::PostFfnNorm { layer }, Register::Delta));
        steps.push(Step::Add {
            branch: Branch::Ffn,
        });
    }

    fn dense_feed_forward(&self, layer: usize, steps: &mut Vec<Step>) {
        steps.push(Step::Project(Project {
            input: Register::Normed,
            point: ActivationPoint::Ffn,
            group: Some(InputGroup::GateUp),
            projections: vec![
                self.projection(layer, ProjectionKind::Gate, Register::Gate),
                self.projection(layer, ProjectionKind::Up, Register::Up),
            ],
        }));
        steps.push(Step::Activate {
            activation: self.hyper.forward.activation,
            width: self.hyper.ffn,
        });
        steps.push(Step::Project(Project {
            input: Register::Gate,
            point: ActivationPoint::FfnHidden,
            group: None,
            projections: vec![self.projection(layer, ProjectionKind::Down, Register::Delta)],
        }));
    }

    fn experts(&self, layer: usize, experts: Experts) -> Step {
        // Lossless: the number of experts is limited.
        let indices = 0..experts.count as u16;
        let expert = |index| Expert {
            gate: self.projection(layer, ProjectionKind::ExpertGate(index), Register::Gate),
            up: self.projection(layer, ProjectionKind::ExpertUp(index), Register::Up),
            down: self.projection(
                layer,
                ProjectionKind::ExpertDown(index),
                Register::ExpertOutput,
            ),
        };
        Step::Experts(ExpertsStep {
            router: self.projection(layer, ProjectionKind::Router, Register::Router),
            experts: indices.map(expert).collect(),
            used: experts.used,
            normalised: experts.normalised,
            activation: self.hyper.forward.activation,
            hidden: experts.ffn,
        })
    }
}

#[cfg(test)]
mod tests;

//! Projections of a block, the inputs they read, and the parts that store them.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Linear projection of a transformer block, `y = W x` with `W [out, in]`.
///
/// Its text form is its name, followed by a dot and the index of the expert if it belongs to one:
/// `q`, `expert_down.17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemas", schemars(with = "String"))]
pub enum ProjectionKind {
    /// Query projection.
    Q,
    /// Key projection.
    K,
    /// Value projection.
    V,
    /// Attention output projection.
    O,
    /// Gate projection of the feed-forward network.
    Gate,
    /// Up projection of the feed-forward network.
    Up,
    /// Down projection of the feed-forward network.
    Down,
    /// Router of a mixture of experts, one row per expert.
    Router,
    /// Gate projection of an expert.
    ExpertGate(u16),
    /// Up projection of an expert.
    ExpertUp(u16),
    /// Down projection of an expert.
    ExpertDown(u16),
}

impl ProjectionKind {
    /// The projections of a block with attention and a dense feed-forward network, in the order of
    /// execution. [`ModelSpec`](super::ModelSpec) lists those of a model.
    pub const ALL: [ProjectionKind; 7] = [
        ProjectionKind::Q,
        ProjectionKind::K,
        ProjectionKind::V,
        ProjectionKind::O,
        ProjectionKind::Gate,
        ProjectionKind::Up,
        ProjectionKind::Down,
    ];

    /// Parses the name of one of [`ProjectionKind::ALL`].
    ///
    /// # Errors
    /// Their names.
    pub fn parse_dense(text: &str) -> Result<ProjectionKind, String> {
        let found = ProjectionKind::ALL
            .into_iter()
            .find(|projection| projection.name() == text);
        let names = ProjectionKind::ALL.map(ProjectionKind::name).join(", ");
        found.ok_or_else(|| format!("unknown projection {text:?}; expected some of {names}"))
    }

    /// Returns a number that is larger for projections that are executed later in the block.
    pub(super) fn execution_order(self) -> usize {
        // The projections of an expert follow each other.
        let of_expert = |expert: u16, within: usize| 8 + 3 * usize::from(expert) + within;
        match self {
            ProjectionKind::Q => 0,
            ProjectionKind::K => 1,
            ProjectionKind::V => 2,
            ProjectionKind::O => 3,
            ProjectionKind::Gate => 4,
            ProjectionKind::Up => 5,
            ProjectionKind::Down => 6,
            ProjectionKind::Router => 7,
            ProjectionKind::ExpertGate(expert) => of_expert(expert, 0),
            ProjectionKind::ExpertUp(expert) => of_expert(expert, 1),
            ProjectionKind::ExpertDown(expert) => of_expert(expert, 2),
        }
    }

    /// Returns the name without the expert, as in plans and options.
    pub const fn name(self) -> &'static str {
        match self {
            ProjectionKind::Q => "q",
            ProjectionKind::K => "k",
            ProjectionKind::V => "v",
            ProjectionKind::O => "o",
            ProjectionKind::Gate => "gate",
            ProjectionKind::Up => "up",
            ProjectionKind::Down => "down",
            ProjectionKind::Router => "router",
            ProjectionKind::ExpertGate(_) => "expert_gate",
            ProjectionKind::ExpertUp(_) => "expert_up",
            ProjectionKind::ExpertDown(_) => "expert_down",
        }
    }

    /// Returns the name without the expert, as in a [`MatrixId`](super::MatrixId): that of GGUF.
    pub(super) const fn tensor_name(self) -> &'static str {
        match self {
            ProjectionKind::Q => "attn_q",
            ProjectionKind::K => "attn_k",
            ProjectionKind::V => "attn_v",
            ProjectionKind::O => "attn_output",
            ProjectionKind::Gate | ProjectionKind::ExpertGate(_) => "ffn_gate",
            ProjectionKind::Up | ProjectionKind::ExpertUp(_) => "ffn_up",
            ProjectionKind::Down | ProjectionKind::ExpertDown(_) => "ffn_down",
            ProjectionKind::Router => "ffn_gate_inp",
        }
    }

    /// Finds the projection with this text, a name that `name` returns, followed by a dot and the
    /// index of the expert if it belongs to one.
    pub(super) fn parse_named(
        text: &str,
        name: fn(ProjectionKind) -> &'static str,
    ) -> Option<ProjectionKind> {
        let is = |text: &str, kind: ProjectionKind| (name(kind) == text).then_some(kind);
        let Some((text, expert)) = text.split_once('.') else {
            let mut kinds = ProjectionKind::ALL
                .into_iter()
                .chain([ProjectionKind::Router]);
            return kinds.find_map(|kind| is(text, kind));
        };
        let expert = parse_index(expert)?;
        let kinds = [
            ProjectionKind::ExpertGate(expert),
            ProjectionKind::ExpertUp(expert),
            ProjectionKind::ExpertDown(expert),
        ];
        kinds.into_iter().find_map(|kind| is(text, kind))
    }

    /// Returns the index of the expert that the projection belongs to, if any.
    pub const fn expert(self) -> Option<u16> {
        match self {
            ProjectionKind::ExpertGate(expert)
            | ProjectionKind::ExpertUp(expert)
            | ProjectionKind::ExpertDown(expert) => Some(expert),
            _ => None,
        }
    }

    /// Returns the activation point that is the projection's input.
    pub const fn input(self) -> ActivationPoint {
        match self {
            ProjectionKind::Q | ProjectionKind::K | ProjectionKind::V => ActivationPoint::Attention,
            ProjectionKind::O => ActivationPoint::AttentionOutput,
            ProjectionKind::Gate | ProjectionKind::Up | ProjectionKind::Router => {
                ActivationPoint::Ffn
            }
            ProjectionKind::Down => ActivationPoint::FfnHidden,
            ProjectionKind::ExpertGate(expert) | ProjectionKind::ExpertUp(expert) => {
                ActivationPoint::ExpertInput(expert)
            }
            ProjectionKind::ExpertDown(expert) => ActivationPoint::ExpertHidden(expert),
        }
    }

    /// Returns the projection of a dense network that an expert's corresponds to; others as they
    /// are.
    pub const fn dense(self) -> ProjectionKind {
        match self {
            ProjectionKind::ExpertGate(_) => ProjectionKind::Gate,
            ProjectionKind::ExpertUp(_) => ProjectionKind::Up,
            ProjectionKind::ExpertDown(_) => ProjectionKind::Down,
            other => other,
        }
    }

    /// Returns the projections that a projection of a dense network corresponds to in a mixture of
    /// `experts` experts, in the order of their indices; others, and all without experts, as they
    /// are.
    pub fn of_experts(self, experts: usize) -> Vec<ProjectionKind> {
        let of_expert: fn(u16) -> ProjectionKind = match self {
            ProjectionKind::Gate => ProjectionKind::ExpertGate,
            ProjectionKind::Up => ProjectionKind::ExpertUp,
            ProjectionKind::Down => ProjectionKind::ExpertDown,
            _ => return vec![self],
        };
        match experts {
            0 => vec![self],
            // Lossless: the number of experts is limited.
            experts => (0..experts as u16).map(of_expert).collect(),
        }
    }

    /// Returns the group of projections that may share a basis, if any.
    pub const fn group(self) -> Option<InputGroup> {
        match self {
            ProjectionKind::Q | ProjectionKind::K | ProjectionKind::V => Some(InputGroup::Qkv),
            ProjectionKind::Gate | ProjectionKind::Up => Some(InputGroup::GateUp),
            _ => None,
        }
    }
}

/// The order of execution.
impl Ord for ProjectionKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.execution_order().cmp(&other.execution_order())
    }
}

impl PartialOrd for ProjectionKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ProjectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.expert() {
            Some(expert) => write!(f, ".{expert}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ProjectionKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ProjectionKind::parse_named(text, ProjectionKind::name).ok_or_else(|| {
            format!(
                "unknown projection {text:?}; projections are q, k, v, o, gate, up, down, router, \
                 expert_gate.N, expert_up.N, expert_down.N"
            )
        })
    }
}

/// Parses a number that is written without a sign or leading zeros.
pub(super) fn parse_index<T: FromStr + ToString>(text: &str) -> Option<T> {
    let index = text.parse().ok();
    index.filter(|index: &T| index.to_string() == text)
}

crate::serde_as_text!(ProjectionKind);

/// Activation point of a block: an input of projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationPoint {
    /// Normed residual stream, input of `q`, `k` and `v`.
    Attention,
    /// Concatenated head outputs, input of `o`.
    AttentionOutput,
    /// Normed residual stream, input of `gate` and `up`, or of the router.
    Ffn,
    /// Product of the activated gate and `up`, input of `down`.
    FfnHidden,
    /// Rows of [`ActivationPoint::Ffn`] that the router sends to an expert, input of its gate and
    /// up.
    ExpertInput(u16),
    /// Product of an expert's activated gate and up, input of its down.
    ExpertHidden(u16),
}

impl ActivationPoint {
    /// Returns true for inputs that are the residual stream after a norm.
    pub const fn reads_stream(self) -> bool {
        matches!(
            self,
            ActivationPoint::Attention | ActivationPoint::Ffn | ActivationPoint::ExpertInput(_)
        )
    }
}

/// Projections that share their input and may share a basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InputGroup {
    /// `q`, `k` and `v`.
    Qkv,
    /// `gate` and `up`.
    GateUp,
}

crate::names!(InputGroup { Qkv "qkv", GateUp "gate_up" });

impl InputGroup {
    /// Returns the name used in roles.
    pub(super) const fn tensor_name(self) -> &'static str {
        match self {
            InputGroup::Qkv => "attn_qkv",
            InputGroup::GateUp => "ffn_gate_up",
        }
    }

    /// Returns the projections of the group in the order of execution.
    pub const fn projections(self) -> &'static [ProjectionKind] {
        match self {
            InputGroup::Qkv => &[ProjectionKind::Q, ProjectionKind::K, ProjectionKind::V],
            InputGroup::GateUp => &[ProjectionKind::Gate, ProjectionKind::Up],
        }
    }
}

/// Part of a matrix that a tensor stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Dense matrix `W`, `[out, in]`.
    Weight,
    /// First factor of `W ≈ B A`, `[rank, in]`.
    A,
    /// Second factor of `W ≈ B A`, `[out, rank]`.
    B,
    /// `W̃ = W P`, `[out, rank]`, used with the [`Role::Basis`](super::Role::Basis) of the group.
    Projected,
    /// First factor of the residual in `W ≈ W₀ + B A`, `[rank, in]`.
    ResidualA,
    /// Second factor of the residual, `[out, rank]`.
    ResidualB,
    /// Bias added to `W x`, `[1, out]`; also with factors.
    Bias,
}

crate::names!(Part { Weight "weight", A "a", B "b", Projected "projected", ResidualA "residual_a", ResidualB "residual_b", Bias "bias" });

impl Part {
    /// Returns the part with a name.
    pub(crate) fn from_name(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }
}

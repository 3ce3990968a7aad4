//! Plan options: method, budget, allocator, projections, types.

use std::fmt;
use std::str::FromStr;

use htc_formats::bands::{Code, CodeKind};
use htc_formats::htz::Digest;
use htc_formats::model::{InputGroup, ProjectionKind};
use htc_formats::{DType, block};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::switch::{KvBasesArg, LowRankArg, OrderArg, RotationArg};
use super::{Effort, SinkProtection, TreatmentRequest};

/// Approximation method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// Separate factors for each projection: `W ≈ B A`.
    PerProjection,
    /// Projections with the same input share a basis: `W_i ≈ W̃_i Pᵀ`.
    SharedBasis,
    /// A separate type for every matrix, including embedding and head.
    Quantise,
}

impl Method {
    /// Returns the name on the command line and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Method::PerProjection => "gp",
            Method::SharedBasis => "grc",
            Method::Quantise => "quantise",
        }
    }

    /// Returns the default projections of the method.
    pub const fn default_projections(self) -> &'static [ProjectionKind] {
        match self {
            Method::PerProjection | Method::Quantise => &ProjectionKind::ALL,
            Method::SharedBasis => InputGroup::Qkv.slots(),
        }
    }
}

/// Size budget. All but the first two are met from below, within one rank step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Budget {
    /// The same rank for every selected projection.
    Rank(usize),
    /// Full rank for every projection, stored as factors even if larger than the dense matrix;
    /// lossless except for rounding.
    FullRank,
    /// Parameters after over parameters before, of the selected projections.
    Ratio(f64),
    /// Elements stored for the selected projections.
    Parameters(u64),
    /// Bytes stored for the selected projections, without alignment between tensors.
    Bytes(u64),
    /// Mean rank of all units; a dense unit counts with its full rank.
    MeanRank(f64),
    /// Bytes of the whole artifact.
    FileSize(u64),
    /// Bits of the whole artifact per model parameter.
    Bits(f64),
    /// No fixed total: [`Allocator::DiffPlan`] weighs energy against loss.
    Energy,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Rank(rank) => write!(f, "--rank {rank}"),
            Budget::FullRank => write!(f, "--rank full"),
            Budget::Ratio(ratio) => write!(f, "--ratio {ratio}"),
            Budget::Parameters(total) => write!(f, "--parameters {total}"),
            Budget::Bytes(total) => write!(f, "--bytes {total}"),
            Budget::MeanRank(mean) => write!(f, "--mean-rank {mean}"),
            Budget::FileSize(total) => write!(f, "--file-size {total}"),
            Budget::Bits(bits) => write!(f, "--bits {bits}"),
            Budget::Energy => f.write_str("(no budget)"),
        }
    }
}

/// Types for dense matrices. Without one they stay as in the source, as do matrices that would not
/// shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenseTypes {
    /// Type of all dense projections, selected or not.
    pub projections: Option<DenseType>,
    /// Type of selected projections that stay dense, if `slots` is unset.
    pub selected: Option<DenseType>,
    /// Type of the embedding and of an untied head.
    pub embedding_and_head: Option<DenseType>,
}

/// Encoding of a dense matrix: `q4_k`, `levels4`, `trellis3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseType {
    /// A writable block type.
    Blocks(DType),
    /// A code for column groups of 32.
    ColumnGroups(Code),
}

impl DenseType {
    /// Returns all names, for error messages.
    pub fn names() -> String {
        let blocks = block::writable_types()
            .iter()
            .map(|dtype| dtype.name().to_owned());
        let codes = Code::all().map(|code| code.to_string());
        let names: Vec<String> = blocks.chain(codes).collect();
        names.join(", ")
    }
}

impl From<DType> for DenseType {
    fn from(dtype: DType) -> DenseType {
        DenseType::Blocks(dtype)
    }
}

impl fmt::Display for DenseType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DenseType::Blocks(dtype) => dtype.fmt(f),
            DenseType::ColumnGroups(code) => code.fmt(f),
        }
    }
}

impl FromStr for DenseType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut written = block::writable_types().iter();
        if let Some(&dtype) = written.find(|dtype| dtype.name() == text) {
            return Ok(DenseType::Blocks(dtype));
        }
        let code = text.parse().map(DenseType::ColumnGroups);
        code.map_err(|_| format!("matrices are stored as one of {}", DenseType::names()))
    }
}

/// Kinds of codes that a matrix may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CodeKinds {
    /// GGUF types, readable by other programs.
    Gguf,
    /// Non-uniform scalar codebooks.
    Levels,
    /// Trellises, and codebooks at bit rates without a trellis.
    Trellis,
    /// All kinds, chosen by loss per byte.
    #[default]
    All,
}

impl CodeKinds {
    /// All values.
    pub const ALL: [CodeKinds; 4] = [
        CodeKinds::Gguf,
        CodeKinds::Levels,
        CodeKinds::Trellis,
        CodeKinds::All,
    ];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            CodeKinds::Gguf => "gguf",
            CodeKinds::Levels => "levels",
            CodeKinds::Trellis => "trellis",
            CodeKinds::All => "all",
        }
    }

    /// Returns true if GGUF types are included.
    pub const fn includes_gguf(self) -> bool {
        matches!(self, CodeKinds::Gguf | CodeKinds::All)
    }

    /// Returns the included codes of column groups.
    pub fn column_group_codes(self) -> Vec<Code> {
        let most_of_trellis = *CodeKind::Trellis.bits().end();
        let among = |code: &Code| match self {
            CodeKinds::Gguf => false,
            CodeKinds::Levels => code.kind() == CodeKind::Codebook,
            CodeKinds::Trellis => code.kind() == CodeKind::Trellis || code.bits() > most_of_trellis,
            CodeKinds::All => true,
        };
        Code::all().filter(among).collect()
    }
}

impl FromStr for CodeKinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = CodeKinds::ALL
            .into_iter()
            .find(|kinds| kinds.name() == text);
        found.ok_or_else(|| "codes are gguf, levels, trellis or all".to_owned())
    }
}

/// Complete request of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// Approximation method.
    pub method: Method,
    /// Option that implied the method, if none was set explicitly.
    pub method_implied_by: Option<&'static str>,
    /// Size budget.
    pub budget: Budget,
    /// Allocator and rank bounds.
    pub allocation: Allocation,
    /// Selected projections, unique, in the order of execution.
    pub projections: Vec<ProjectionKind>,
    /// Type of factors.
    pub factor_type: DType,
    /// Types of dense matrices; by default as in the source.
    pub dense_types: DenseTypes,
    /// Kinds of codes for [`Method::Quantise`].
    pub codes: CodeKinds,
    /// Evaluation of factors by [`Method::Quantise`].
    pub low_rank: LowRankArg,
    /// Rotation of matrices before encoding in column groups.
    pub rotation: RotationArg,
    /// Channel permutation; by default on for coded models whose source is not stored in blocks.
    pub channel_permutation: Option<OrderArg>,
    /// Bases for a KV cache in the artifact.
    pub kv_bases: KvBasesArg,
    /// Treatment of weights, passed on by the plan; exempt channels also determine the types of
    /// factors.
    pub treatment: TreatmentRequest,
    /// Compilation effort.
    pub effort: Effort,
}

impl fmt::Display for PlanRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Allocation {
            allocator,
            floor,
            cap,
            first_positions,
        } = self.allocation;
        let (method, factor_type) = (self.method.name(), self.factor_type);
        let effort = if self.effort == Effort::default() {
            String::new()
        } else {
            format!(" --effort {}", self.effort)
        };
        if self.method == Method::Quantise {
            write!(f, "--method {method} {}{effort}", self.budget)?;
            if self.codes != CodeKinds::default() {
                write!(f, " --codes {}", self.codes.name())?;
            }
            if self.low_rank != LowRankArg::default() {
                write!(f, " --low-rank {}", self.low_rank)?;
            }
            if self.rotation != RotationArg::default() {
                write!(f, " --rotation {}", self.rotation)?;
            }
            return self.fmt_common(f);
        }
        write!(
            f,
            "--method {method} --factor-type {factor_type} {}",
            self.budget
        )?;
        write!(f, " --allocator {allocator}")?;
        match (self.dense_types.projections, self.dense_types.selected) {
            (Some(dtype), _) => write!(f, " --dense-type {dtype}")?,
            (None, None) => f.write_str(" --dense-type source")?,
            (None, Some(_)) => {}
        }
        if let Some(dtype) = self.dense_types.embedding_and_head {
            write!(f, " --embedding-type {dtype}")?;
        }
        if let Some(floor) = floor {
            write!(f, " --rank-floor {floor}")?;
        }
        if let Some(cap) = cap {
            write!(f, " --rank-cap {cap}")?;
        }
        if first_positions != FirstPositions::default() {
            write!(f, " --first-positions {}", first_positions.name())?;
        }
        if self.treatment != TreatmentRequest::default() {
            write!(f, " {}", self.treatment)?;
        }
        f.write_str(&effort)?;
        self.fmt_common(f)
    }
}

impl PlanRequest {
    /// Returns the type of selected projections that stay dense; `None` as in the source. With
    /// exempt channels, which are exact in factors, it is also that of the source.
    pub fn dense_type_of_selected(&self) -> Option<DenseType> {
        let exempts = matches!(self.treatment.sink, Some(SinkProtection::Channels(_)));
        let left = self.dense_types.selected.filter(|_| !exempts);
        self.dense_types.projections.or(left)
    }

    fn fmt_common(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(order) = self.channel_permutation {
            write!(f, " --order {order}")?;
        }
        match self.kv_bases {
            KvBasesArg::On => f.write_str(" --kv-bases"),
            KvBasesArg::Off => Ok(()),
        }
    }
}

/// Allocation strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocator {
    /// The same share for every projection, the same rank in every layer.
    #[default]
    Uniform,
    /// More rank for layers that mix or refine, less for those that compress.
    Phase,
    /// Rank proportional to the profile over the layers.
    Curvature,
    /// Rank by the weight's energy gained per cost.
    Waterfill,
    /// Rank by the output's energy gained per cost.
    Whitened,
    /// Softmax over rank levels, by gradient descent with a price on energy.
    DiffPlan,
    /// Largest rank whose factors fit the target's L2 cache.
    CacheFit,
}

impl Allocator {
    /// All allocators.
    pub const ALL: [Allocator; 7] = [
        Allocator::Uniform,
        Allocator::Phase,
        Allocator::Curvature,
        Allocator::Waterfill,
        Allocator::Whitened,
        Allocator::DiffPlan,
        Allocator::CacheFit,
    ];

    /// Returns the name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Allocator::Uniform => "uniform",
            Allocator::Phase => "phase",
            Allocator::Curvature => "curvature",
            Allocator::Waterfill => "waterfill",
            Allocator::Whitened => "whitened",
            Allocator::DiffPlan => "diffplan",
            Allocator::CacheFit => "cachefit",
        }
    }
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Allocator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Allocator::ALL.into_iter().find(|a| a.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Allocator::ALL.iter().map(|a| a.name()).collect();
            format!("allocators are {}", names.join(", "))
        })
    }
}

/// Minimum rank of a factored unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RankFloor {
    /// A rank.
    Rank(usize),
    /// A fraction of the model's width, rounded up.
    Fraction(f64),
}

/// Formats integers as ranks and decimals as fractions.
impl fmt::Display for RankFloor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankFloor::Rank(rank) => write!(f, "{rank}"),
            RankFloor::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl FromStr for RankFloor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let floor = match text.parse::<usize>() {
            Ok(rank) => Some(RankFloor::Rank(rank)).filter(|_| rank >= 1),
            Err(_) => match text.parse::<f64>() {
                Ok(f) if f > 0.0 && f <= 1.0 => Some(RankFloor::Fraction(f)),
                _ => None,
            },
        };
        floor.ok_or_else(|| {
            "a floor is a rank of at least 1, or a fraction of the model's width such as 0.25"
                .to_owned()
        })
    }
}

/// Treatment of the first position of every window in the variance of the residual stream, used by
/// [`Allocator::Phase`] and [`Allocator::Curvature`]. Its massive activations dominate the
/// variance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstPositions {
    /// Excluded.
    #[default]
    Excluded,
    /// Included.
    Included,
}

impl FirstPositions {
    /// Both values.
    pub const ALL: [FirstPositions; 2] = [FirstPositions::Excluded, FirstPositions::Included];

    /// Returns the name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            FirstPositions::Excluded => "left-out",
            FirstPositions::Included => "counted",
        }
    }
}

impl FromStr for FirstPositions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = FirstPositions::ALL.into_iter().find(|f| f.name() == text);
        known.ok_or_else(|| "the first positions are left-out or counted".to_owned())
    }
}

impl fmt::Display for FirstPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

as_typed!(
    Allocator,
    DenseType,
    RankFloor,
    FirstPositions,
    OrderArg,
    LowRankArg,
    RotationArg,
    KvBasesArg
);

/// Allocator and rank bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allocation {
    /// Allocation strategy.
    pub allocator: Allocator,
    /// Minimum rank of a factored unit. A unit whose factors of that rank are not smaller than the
    /// dense form stays dense.
    pub floor: Option<RankFloor>,
    /// Maximum rank of a factored unit. Units that can be factorised within it are.
    pub cap: Option<usize>,
    /// Treatment of the first positions in the variance.
    pub first_positions: FirstPositions,
}

impl Allocation {
    /// Returns the first option that differs from its default.
    pub(crate) fn first_non_default_option(&self) -> String {
        if self.first_positions != FirstPositions::default() {
            return format!("`first_positions` {}", self.first_positions.name());
        }
        match (self.allocator, self.floor, self.cap) {
            (Allocator::Uniform, Some(floor), _) => format!("`rank_floor` {floor}"),
            (Allocator::Uniform, None, Some(cap)) => format!("`rank_cap` {cap}"),
            (allocator, ..) => format!("`allocator` {allocator}"),
        }
    }
}

/// Linear model of the energy per generated token on a machine:
/// [`joules_of_no_bytes`](MeasuredEnergy::joules_per_token) plus
/// [`joules_per_byte`](MeasuredEnergy::joules_per_byte) for every byte of weights read. Measured by
/// `htc bench --sensor` and fitted by [`bench::slope`](crate::bench::slope).
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredEnergy {
    /// Slope in joules per byte, above 0.
    pub joules_per_byte: f64,
    /// 95 % interval of the slope; `None` for a single pair.
    pub interval: Option<(f64, f64)>,
    /// Intercept in joules per token, independent of the bytes.
    pub joules_per_token: f64,
    /// Number of measured pairs.
    pub pairs: usize,
    /// Name of the sensor.
    pub sensor: String,
    /// Digest of the measurement files, in the given order.
    pub digest: Digest,
}

/// Properties of the target machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetMachine {
    /// Bytes of the L2 cache.
    pub l2_bytes: Option<u64>,
    /// Generated tokens per joule of the dense model.
    pub tokens_per_joule: Option<f64>,
    /// Energy per token as a function of the bytes read.
    pub energy: Option<Box<MeasuredEnergy>>,
}

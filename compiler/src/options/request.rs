//! Resolved request of a plan.

use std::fmt;
use std::str::FromStr;

use htc_formats::DType;
use htc_formats::htz::Digest;
use htc_formats::model::{InputGroup, ProjectionKind};

use super::{
    Budget, CodeOptions, DenseChoice, DenseType, Effort, LayoutOptions, PlanOptions,
    SinkProtection, TreatmentOptions,
};

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
    /// Returns the other names by which the method is accepted.
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Method::PerProjection => &["gp"],
            Method::SharedBasis => &["grc"],
            Method::Quantise => &["quantize"],
        }
    }

    /// Returns the default projections of the method.
    pub const fn default_projections(self) -> &'static [ProjectionKind] {
        match self {
            Method::PerProjection | Method::Quantise => &ProjectionKind::ALL,
            Method::SharedBasis => InputGroup::Qkv.projections(),
        }
    }
}

htc_formats::names!(Method { PerProjection "low-rank", SharedBasis "shared-basis", Quantise "quantise" });
serde_as_text!(Method);

impl FromStr for Method {
    type Err = String;

    /// Parses a name, or an alias: those of the methods' papers and the other spelling.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Method::ALL
            .into_iter()
            .find(|method| method.name() == text || method.aliases().contains(&text));
        known.ok_or_else(|| "expected low-rank, shared-basis or quantise".to_owned())
    }
}

/// Types for dense matrices. Without one they stay as in the source, as do matrices that would not
/// shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenseTypes {
    /// Type of all dense projections, selected or not.
    pub projections: Option<DenseType>,
    /// Type of selected projections that stay dense, if [`projections`](Self::projections) is unset.
    pub selected: Option<DenseType>,
    /// Type of the embedding and of an untied head.
    pub embedding_and_head: Option<DenseType>,
}

/// Complete request of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// Approximation method.
    pub method: Method,
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
    /// Options of [`Method::Quantise`].
    pub codes: CodeOptions,
    /// Options of the stored model.
    pub layout: LayoutOptions,
    /// Treatment of weights, passed on by the plan; exempt channels also determine the types of
    /// factors.
    pub treatment: TreatmentOptions,
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
            for (name, value) in self.codes.without_defaults().specified() {
                write!(f, " --{} {value}", name.replace('_', "-"))?;
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
        if self.treatment != TreatmentOptions::default() {
            write!(f, " {}", self.treatment)?;
        }
        f.write_str(&effort)?;
        self.fmt_common(f)
    }
}

impl PlanRequest {
    /// Returns the options of plan files and reports. There, unlike in [`PlanOptions::resolve`], dense
    /// projections without a type stay as in the source.
    pub fn options(&self) -> PlanOptions {
        PlanOptions {
            method: Some(self.method),
            budget: Some(self.budget),
            allocator: Some(self.allocation.allocator),
            rank_floor: self.allocation.floor,
            rank_cap: self.allocation.cap,
            first_positions: Some(self.allocation.first_positions),
            factor_type: Some(self.factor_type),
            dense_type: self.dense_types.projections.map(DenseChoice::Type),
            left_type: self.dense_types.selected,
            embedding_type: self.dense_types.embedding_and_head,
            codes: self.codes,
            projections: self.projections.clone(),
            layout: self.layout,
            treatment: self.treatment,
            effort: self.effort,
        }
    }

    /// Returns the type of selected projections that stay dense; `None` as in the source. With
    /// exempt channels, which are exact in factors, it is also that of the source.
    pub fn dense_type_of_selected(&self) -> Option<DenseType> {
        let exempts = matches!(self.treatment.sink, Some(SinkProtection::Channels(_)));
        let left = self.dense_types.selected.filter(|_| !exempts);
        self.dense_types.projections.or(left)
    }

    fn fmt_common(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(order) = self.layout.order {
            write!(f, " --order {order}")?;
        }
        if self.layout.kv_bases.is_on() {
            f.write_str(" --kv-bases")?;
        }
        Ok(())
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

named!(
    Allocator, "uniform, phase, curvature, waterfill, whitened, diffplan or cachefit",
    Uniform: "uniform", Phase: "phase", Curvature: "curvature", Waterfill: "waterfill",
    Whitened: "whitened", DiffPlan: "diffplan", CacheFit: "cachefit",
);

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
            "expected a rank of at least 1, or a fraction of the model's width such as 0.25"
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

named!(
    FirstPositions, "left-out or counted",
    Excluded: "left-out", Included: "counted",
);

serde_as_text!(RankFloor);

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
/// [`joules_per_token`](MeasuredEnergy::joules_per_token) plus
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

//! What a plan is asked for: method, budget, allocator, slots, types.

use std::fmt;
use std::str::FromStr;

use htc_formats::bands::{Code, Kind};
use htc_formats::htz::Digest;
use htc_formats::model::{InputGroup, Slot};
use htc_formats::{DType, block};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::switch::{KvBasesArg, LowRankArg, OrderArg, RotationArg};
use super::{Effort, SinkProtection, TreatmentRequest};

/// How slots are approximated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// Every slot alone: `W ≈ B A`.
    PerSlot,
    /// Slots that read the same input share a basis: `W_i ≈ W̃_i Pᵀ`.
    SharedBasis,
    /// Every matrix, embedding and head as well, in a type of its own.
    Quantise,
}

impl Method {
    /// The name used on the command line and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Method::PerSlot => "gp",
            Method::SharedBasis => "grc",
            Method::Quantise => "quantise",
        }
    }

    /// The slots the method compresses unless told otherwise.
    pub const fn default_slots(self) -> &'static [Slot] {
        match self {
            Method::PerSlot | Method::Quantise => &Slot::ALL,
            Method::SharedBasis => InputGroup::Qkv.slots(),
        }
    }
}

/// How much may be kept. All but the first two are met from below, to the granularity of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Budget {
    /// The same rank for every selected slot.
    Rank(usize),
    /// Every slot at its own full rank, stored as factors even where they are larger than the
    /// dense matrix: nothing is lost but rounding.
    FullRank,
    /// Parameters after over parameters before, counted on the selected slots.
    Ratio(f64),
    /// Numbers stored for the selected slots.
    Parameters(u64),
    /// Bytes stored for the selected slots, as they lie in the artifact, without the alignment
    /// between tensors.
    Bytes(u64),
    /// The mean of the ranks of all units; one that stays dense counts with its full rank.
    MeanRank(f64),
    /// Bytes of the whole artifact.
    FileSize(u64),
    /// Bits of the whole artifact for each parameter of the model.
    Bits(f64),
    /// No total: [`Allocator::DiffPlan`] weighs energy against what is lost.
    Energy,
}

/// As it is typed.
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

/// How dense matrices are encoded anew; without one they stay as in the source, and so
/// does a matrix that the source stores in no more bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenseTypes {
    /// Of the slots of all layers that stay dense, selected or not.
    pub slots: Option<DenseType>,
    /// Of the selected slots that are left dense, where `slots` is silent.
    pub left: Option<DenseType>,
    /// Of the embedding, and of the head where the model has one of its own.
    pub outside: Option<DenseType>,
}

/// What a dense matrix is encoded in: `q4_k`, `levels4`, `trellis3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseType {
    /// A type that is written.
    Blocks(DType),
    /// A code for every band of 32 columns.
    Bands(Code),
}

impl DenseType {
    /// The names of all, for whoever chose another.
    pub fn names() -> String {
        let blocks = block::writable()
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

/// As it is typed.
impl fmt::Display for DenseType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DenseType::Blocks(dtype) => dtype.fmt(f),
            DenseType::Bands(code) => code.fmt(f),
        }
    }
}

impl FromStr for DenseType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut written = block::writable().iter();
        if let Some(&dtype) = written.find(|dtype| dtype.name() == text) {
            return Ok(DenseType::Blocks(dtype));
        }
        let code = text.parse().map(DenseType::Bands);
        code.map_err(|_| format!("matrices are stored as one of {}", DenseType::names()))
    }
}

impl Serialize for DenseType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DenseType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The kinds of code that a matrix may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CodeKinds {
    /// The types of GGUF, which other programs read as well.
    Gguf,
    /// Tables of levels.
    Levels,
    /// Trellises, and levels where these have too few bits.
    Trellis,
    /// Whichever loses least for its bytes.
    #[default]
    All,
}

impl CodeKinds {
    /// All of them.
    pub const ALL: [CodeKinds; 4] = [
        CodeKinds::Gguf,
        CodeKinds::Levels,
        CodeKinds::Trellis,
        CodeKinds::All,
    ];

    /// As it is typed.
    pub const fn name(self) -> &'static str {
        match self {
            CodeKinds::Gguf => "gguf",
            CodeKinds::Levels => "levels",
            CodeKinds::Trellis => "trellis",
            CodeKinds::All => "all",
        }
    }

    /// Whether types of GGUF are among them.
    pub const fn has_blocks(self) -> bool {
        matches!(self, CodeKinds::Gguf | CodeKinds::All)
    }

    /// The codes of bands among them.
    pub fn bands(self) -> Vec<Code> {
        let most_of_trellis = *Kind::Trellis.bits().end();
        let among = |code: &Code| match self {
            CodeKinds::Gguf => false,
            CodeKinds::Levels => code.kind() == Kind::Levels,
            CodeKinds::Trellis => code.kind() == Kind::Trellis || code.bits() > most_of_trellis,
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

/// What the caller asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// How slots are approximated.
    pub method: Method,
    /// The option that decided for the method, as it is typed, where none was asked for.
    pub method_from: Option<&'static str>,
    /// How much may be kept.
    pub budget: Budget,
    /// How the budget is shared out, and within which bounds.
    pub allocation: Allocation,
    /// The slots to compress, without repetition, in the order of execution.
    pub slots: Vec<Slot>,
    /// How factors are stored.
    pub factor_type: DType,
    /// How dense matrices are stored, where they are not to stay as in the source.
    pub dense: DenseTypes,
    /// The kinds of code that [`Method::Quantise`] chooses from.
    pub codes: CodeKinds,
    /// Whether [`Method::Quantise`] chooses from factors as well.
    pub low_rank: LowRankArg,
    /// Whether matrices are rotated before they are stored in bands.
    pub rotation: RotationArg,
    /// Whether the model is stored in another order; by default where it is in codes and the source does not store
    /// its numbers in blocks.
    pub order: Option<OrderArg>,
    /// Whether the artifact has bases for a KV cache.
    pub kv_bases: KvBasesArg,
    /// How weights are to be treated. A plan passes it on; where channels are to stay exact, the types of
    /// factors follow from it.
    pub treatment: TreatmentRequest,
    /// How much work goes into it.
    pub effort: Effort,
}

/// As it is typed, without the slots.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Allocation {
            allocator,
            floor,
            cap,
            first_positions,
        } = self.allocation;
        let (method, factor_type) = (self.method.name(), self.factor_type);
        let effort = match self.effort == Effort::default() {
            true => String::new(),
            false => format!(" --effort {}", self.effort),
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
            return self.fmt_rest(f);
        }
        write!(
            f,
            "--method {method} --factor-type {factor_type} {}",
            self.budget
        )?;
        write!(f, " --allocator {allocator}")?;
        match (self.dense.slots, self.dense.left) {
            (Some(dtype), _) => write!(f, " --dense-type {dtype}")?,
            (None, None) => f.write_str(" --dense-type source")?,
            (None, Some(_)) => {}
        }
        if let Some(dtype) = self.dense.outside {
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
        self.fmt_rest(f)
    }
}

impl Request {
    /// How a selected slot is stored that is left dense; `None` as in the source. Beside exempt channels, which are exact in their
    /// factors, it is the source's numbers, too.
    pub fn dense_of_selected(&self) -> Option<DenseType> {
        let exempts = matches!(self.treatment.sink, Some(SinkProtection::Channels(_)));
        let left = self.dense.left.filter(|_| !exempts);
        self.dense.slots.or(left)
    }

    /// What every method has.
    fn fmt_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(order) = self.order {
            write!(f, " --order {order}")?;
        }
        match self.kv_bases {
            KvBasesArg::On => f.write_str(" --kv-bases"),
            KvBasesArg::Off => Ok(()),
        }
    }
}

/// How a budget is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocator {
    /// The same share of every slot, the same rank in every layer.
    #[default]
    Uniform,
    /// More rank where layers mix or refine, less where they compress.
    Phase,
    /// Rank in proportion to the profile over the layers.
    Curvature,
    /// Where a step of rank adds most of the weight's energy for its cost.
    Waterfill,
    /// Where a step of rank adds most of the output's energy for its cost.
    Whitened,
    /// Levels of rank under a softmax, by gradient descent, with a price on energy.
    DiffPlan,
    /// The largest rank whose factors stay in the target's second-level cache.
    CacheFit,
}

impl Allocator {
    /// Every allocator.
    pub const ALL: [Allocator; 7] = [
        Allocator::Uniform,
        Allocator::Phase,
        Allocator::Curvature,
        Allocator::Waterfill,
        Allocator::Whitened,
        Allocator::DiffPlan,
        Allocator::CacheFit,
    ];

    /// The name used on the command line and in plans.
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

/// The smallest rank that a factored unit may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// A rank.
    Rank(usize),
    /// A fraction of the model's width, rounded up.
    Fraction(f64),
}

/// As it is typed: a whole number is a rank, a number with a point a fraction of the width.
impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Floor::Rank(rank) => write!(f, "{rank}"),
            Floor::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl FromStr for Floor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let floor = match text.parse::<usize>() {
            Ok(rank) => Some(Floor::Rank(rank)).filter(|_| rank >= 1),
            Err(_) => match text.parse::<f64>() {
                Ok(f) if f > 0.0 && f <= 1.0 => Some(Floor::Fraction(f)),
                _ => None,
            },
        };
        floor.ok_or_else(|| {
            "a floor is a rank of at least 1, or a fraction of the model's width such as 0.25"
                .to_owned()
        })
    }
}

/// Whether the first position of every window counts in the variance of the residual stream, which
/// [`Allocator::Phase`] and [`Allocator::Curvature`] read. Massive activations sit there, and dominate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstPositions {
    /// It does not.
    #[default]
    LeftOut,
    /// It does.
    Counted,
}

impl FirstPositions {
    /// Both.
    pub const ALL: [FirstPositions; 2] = [FirstPositions::LeftOut, FirstPositions::Counted];

    /// The name used on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            FirstPositions::LeftOut => "left-out",
            FirstPositions::Counted => "counted",
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

/// As it is typed.
impl fmt::Display for FirstPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

as_typed!(
    Allocator,
    Floor,
    FirstPositions,
    OrderArg,
    LowRankArg,
    RotationArg,
    KvBasesArg
);

/// How the budget is shared out, and within which bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allocation {
    /// What decides.
    pub allocator: Allocator,
    /// The smallest rank of a factored unit. A unit whose factors of that rank would not be smaller
    /// than the dense form stays dense.
    pub floor: Option<Floor>,
    /// The largest rank of a factored unit. Units that can be factorised within it are.
    pub cap: Option<usize>,
    /// What the variance is of.
    pub first_positions: FirstPositions,
}

impl Allocation {
    /// The first option that is not left at its default.
    pub(crate) fn option(&self) -> String {
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

/// What writing a token costs on a machine, as a line through measurements: joules are
/// [`joules_of_no_bytes`](MeasuredEnergy::joules_of_no_bytes) and for every byte of the weights that the token touches
/// [`joules_per_byte`](MeasuredEnergy::joules_per_byte). `htc bench --sensor` measures, and
/// [`bench::slope`](crate::bench::slope) finds the line.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredEnergy {
    /// The slope, in joules per byte: above 0.
    pub joules_per_byte: f64,
    /// Its 95 % interval; `None` where one pair was measured.
    pub interval: Option<(f64, f64)>,
    /// The intercept, in joules per token: what does not depend on the bytes.
    pub joules_of_no_bytes: f64,
    /// Pairs that were measured.
    pub pairs: usize,
    /// What measured.
    pub sensor: String,
    /// Digest of the files, in the order in which they were given.
    pub digest: Digest,
}

/// What the caller says of the machine that the artifact is for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    /// Bytes of its second-level cache.
    pub cache: Option<u64>,
    /// Tokens that the dense model writes there per joule.
    pub tokens_per_joule: Option<f64>,
    /// Or what a token costs there by the bytes that it touches.
    pub energy: Option<Box<MeasuredEnergy>>,
}

//! Planning options, shared by `htc plan` and `htc compile`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use htc_formats::model::ProjectionKind;
use htc_formats::{DType, block};

use super::heading;
use crate::plan::gpu;
use crate::request::{
    Allocator, Budget, CodeKinds, DenseType, DenseTypes, Effort, FirstPositions, KvBasesArg,
    LowRankArg, MeasuredEnergy, Method, OrderArg, PlanOptions, RankFloor, RotationArg,
    TargetMachine, TreatmentRequest,
};

/// How much may be kept, and how it is stored.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = heading::SIZE)]
pub struct SizeArgs {
    /// Bytes of the whole artifact, such as 12345, 3.5MB or 400MiB, met from below
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_negative_numbers = true, conflicts_with_all = ["bits", "ratio", "rank", "parameters", "bytes", "mean_rank"])]
    pub file_size: Option<u64>,
    /// Bits of the whole artifact for each of the model's parameters, met from below
    #[arg(long, hide_short_help = true, value_name = "B", value_parser = parse_positive, allow_negative_numbers = true, conflicts_with_all = ["ratio", "rank", "parameters", "bytes", "mean_rank"])]
    pub bits: Option<f64>,
    /// Parameters after over before on the selected slots, met from below [default for gp and grc: 0.9]
    ///
    /// With diffplan energy decides where it is not given; with quantise it is of bytes, the artifact's over the
    /// source's.
    #[arg(long, value_name = "R", value_parser = parse_ratio, allow_negative_numbers = true, conflicts_with_all = ["parameters", "bytes", "mean_rank"])]
    pub ratio: Option<f64>,
    /// Rank of every selected slot; `full` keeps every component, whatever the size
    #[arg(
        long,
        hide_short_help = true,
        value_name = "N|full",
        conflicts_with_all = ["ratio", "parameters", "bytes", "mean_rank"],
        allow_negative_numbers = true
    )]
    pub rank: Option<super::RankArg>,
    /// Numbers stored for the selected slots, met from below
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = parse_parameters, allow_negative_numbers = true, conflicts_with_all = ["bytes", "mean_rank"])]
    pub parameters: Option<u64>,
    /// Bytes stored for the selected slots, such as 12345, 3.5MB or 400MiB, met from below
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = parse_bytes, allow_negative_numbers = true, conflicts_with = "mean_rank")]
    pub bytes: Option<u64>,
    /// Mean of the ranks of the selected slots, met from below
    #[arg(long, hide_short_help = true, value_name = "R", value_parser = parse_positive, allow_negative_numbers = true)]
    pub mean_rank: Option<f64>,
    /// How factors are stored: f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl, iq4_xs, q3_k or q2_k
    /// [default: q8_0]
    #[arg(long, hide_short_help = true, value_name = "T", value_parser = parse_factor_type)]
    pub factor_type: Option<DType>,
    /// Encode slots that stay dense in this type, or in levels2 to levels8 or trellis2 to trellis5, where it takes less than the
    /// source; source: as they are [default: selected slots that are left dense as --factor-type]
    #[arg(long, hide_short_help = true, value_name = "T|source")]
    pub dense_type: Option<DenseArg>,
    /// The same for the embedding, and for the head where the model has its own
    #[arg(long, hide_short_help = true, value_name = "T")]
    pub embedding_type: Option<DenseType>,
    /// For quantise, the kinds of code to choose from: gguf, which other programs read; levels, the fastest;
    /// trellis, the closest; or all [default: all]
    #[arg(long, hide_short_help = true, value_name = "KINDS")]
    pub codes: Option<CodeKinds>,
    /// For quantise, whether slots may be stored as factors of low rank where these lose less than codes in as many
    /// bytes; with --codes levels and trellis they never are [default: on]
    #[arg(long, hide_short_help = true, value_name = "on|off")]
    pub low_rank: Option<LowRankArg>,
    /// For quantise, whether every 32 columns of a matrix in levels or trellises are rotated, and with them what they are
    /// multiplied with, so that no number stands out [default: on]
    #[arg(long, hide_short_help = true, value_name = "on|off")]
    pub rotation: Option<RotationArg>,
}

/// Type of dense projections.
#[derive(Clone, Copy, Debug)]
pub enum DenseArg {
    /// As in the source.
    Source,
    /// Encoded in a type.
    In(DenseType),
}

impl FromStr for DenseArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "source" => Ok(DenseArg::Source),
            text => text.parse().map(DenseArg::In),
        }
    }
}

impl SizeArgs {
    /// Returns the budget; `None` without one.
    pub fn budget(&self) -> Option<Budget> {
        let budget = self.file_size.map(Budget::FileSize);
        let budget = budget.or(self.bits.map(Budget::Bits));
        let budget = budget.or(self.rank.map(Budget::from));
        let budget = budget.or(self.ratio.map(Budget::Ratio));
        let budget = budget.or(self.parameters.map(Budget::Parameters));
        let budget = budget.or(self.bytes.map(Budget::Bytes));
        budget.or(self.mean_rank.map(Budget::MeanRank))
    }
}

/// What becomes of every slot.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = heading::METHOD)]
pub struct PlanningArgs {
    /// quantise: every matrix in the type that loses least for the file's bytes; gp: every slot alone, W = B A;
    /// grc: slots that read the same input share a basis
    ///
    /// auto is quantise, or gp where an option is given that only factors have, such as --ratio, --rank or --slots.
    #[arg(long, value_enum, default_value = "auto", hide_possible_values = true)]
    pub method: MethodArg,
    /// How the budget is shared out [default: with --calibration and without --rank whitened for gp,
    /// waterfill for grc; else uniform]
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = allocator())]
    pub allocator: Option<Allocator>,
    /// Smallest rank of a factorised slot; with a point, a fraction of the model's width
    #[arg(
        long,
        hide_short_help = true,
        value_name = "N|FRACTION",
        allow_negative_numbers = true
    )]
    pub rank_floor: Option<RankFloor>,
    /// Largest rank of a factorised slot
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = parse_cap, allow_negative_numbers = true)]
    pub rank_cap: Option<usize>,
    /// For phase and curvature: whether the first position of every window counts in the variance
    /// [default: left-out]
    #[arg(long, hide_short_help = true, value_name = "left-out|counted")]
    pub first_positions: Option<FirstPositions>,
    /// For cachefit: the GPU to fit, or the bytes of its second-level cache
    #[arg(long, hide_short_help = true, value_name = "NAME|BYTES", value_parser = parse_cache, allow_negative_numbers = true)]
    pub gpu: Option<CacheSize>,
    /// For diffplan: tokens that the uncompressed model writes per joule on the target
    #[arg(long, hide_short_help = true, value_name = "X", value_parser = parse_positive, allow_negative_numbers = true)]
    pub tokens_per_joule: Option<f64>,
    /// For diffplan, in its place: what was measured on the target by htc bench MODEL --fraction F --against MODEL --sensor
    /// SENSOR --json; joules for each byte that a token touches are read off it (several times: more sizes)
    #[arg(
        long,
        hide_short_help = true,
        value_name = "FILE",
        conflicts_with = "tokens_per_joule"
    )]
    pub energy: Vec<PathBuf>,
    /// Whether the model is stored in another order, in which codes lose less and which computes the same
    /// [default: on for quantise, unless the source is in blocks]
    #[arg(long, hide_short_help = true, value_name = "on|off")]
    pub order: Option<OrderArg>,
    /// Store bases that an adaptive KV cache may begin with, for keys and values of every head, from what calibration sees;
    /// they count in the bytes of the file, and the model computes the same
    #[arg(long, hide_short_help = true)]
    pub kv_bases: bool,
    /// Slots to compress, of q,k,v,o,gate,up,down [default: all for gp, q,k,v for grc]
    #[arg(
        long,
        hide_short_help = true,
        value_name = "LIST",
        value_delimiter = ','
    )]
    pub slots: Vec<ProjectionKind>,
    /// How much work goes into how close it is, where matrices are coded: tokens, sweeps over the codes, rows that
    /// the plan is made from; fast takes about a third of the time of normal, high two to three times as much
    #[arg(long, hide_short_help = true, value_name = "fast|normal|high", default_value = "normal", value_parser = Effort::from_str)]
    pub effort: Effort,
}

impl PlanningArgs {
    /// Options that a plan file replaces: all of these and of [`SizeArgs`], by their clap ids.
    pub(super) const OPTION_IDS: [&str; 25] = [
        "method",
        "file_size",
        "bits",
        "rank",
        "ratio",
        "parameters",
        "bytes",
        "mean_rank",
        "allocator",
        "rank_floor",
        "rank_cap",
        "first_positions",
        "gpu",
        "tokens_per_joule",
        "energy",
        "order",
        "kv_bases",
        "slots",
        "effort",
        "factor_type",
        "dense_type",
        "embedding_type",
        "codes",
        "low_rank",
        "rotation",
    ];

    /// Returns the plan options; `treatment` comes from the other options.
    pub fn plan_options(&self, size: &SizeArgs, treatment: TreatmentRequest) -> PlanOptions {
        PlanOptions {
            method: self.method.into(),
            budget: size.budget(),
            allocator: self.allocator,
            rank_floor: self.rank_floor,
            rank_cap: self.rank_cap,
            first_positions: self.first_positions.unwrap_or_default(),
            projections: self.slots.clone(),
            factor_type: size.factor_type,
            dense_types: DenseTypes {
                projections: match size.dense_type {
                    Some(DenseArg::In(dtype)) => Some(dtype),
                    Some(DenseArg::Source) | None => None,
                },
                selected: None,
                embedding_and_head: size.embedding_type,
            },
            keep_dense: matches!(size.dense_type, Some(DenseArg::Source)),
            codes: size.codes,
            low_rank: size.low_rank,
            rotation: size.rotation,
            order: self.order,
            kv_bases: if self.kv_bases {
                KvBasesArg::On
            } else {
                KvBasesArg::Off
            },
            treatment,
            effort: self.effort,
        }
    }

    /// Returns the target machine with measured energy.
    pub fn target(&self, energy: Option<MeasuredEnergy>) -> TargetMachine {
        TargetMachine {
            l2_bytes: self.gpu.map(|cache| cache.0),
            tokens_per_joule: self.tokens_per_joule,
            energy: energy.map(Box::new),
        }
    }

    /// Returns an option that the allocator ignores, and the allocators that use it.
    pub fn ignored_option(&self) -> Option<(&'static str, &'static str)> {
        let cachefit = self.allocator == Some(Allocator::CacheFit);
        let diffplan = self.allocator == Some(Allocator::DiffPlan);
        let by_depth = matches!(
            self.allocator,
            Some(Allocator::Phase | Allocator::Curvature)
        );
        let given = [
            ("--gpu", "cachefit", self.gpu.is_some() && !cachefit),
            (
                "--tokens-per-joule",
                "diffplan",
                self.tokens_per_joule.is_some() && !diffplan,
            ),
            ("--energy", "diffplan", !self.energy.is_empty() && !diffplan),
            (
                "--first-positions",
                "phase or curvature",
                self.first_positions.is_some() && !by_depth,
            ),
        ];
        let found = given.into_iter().find(|(.., unread)| *unread);
        found.map(|(option, readers, _)| (option, readers))
    }
}

/// [`Method`] as it is typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum MethodArg {
    /// What the other options are of.
    Auto,
    /// Every slot alone.
    Gp,
    /// Shared basis.
    Grc,
    /// A type for every matrix.
    Quantise,
}

impl From<MethodArg> for Option<Method> {
    fn from(arg: MethodArg) -> Option<Method> {
        match arg {
            MethodArg::Auto => None,
            MethodArg::Gp => Some(Method::PerProjection),
            MethodArg::Grc => Some(Method::SharedBasis),
            MethodArg::Quantise => Some(Method::Quantise),
        }
    }
}

/// L2 cache size in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheSize(pub u64);

/// Returns the help text of an allocator.
const fn allocator_help(allocator: Allocator) -> &'static str {
    match allocator {
        Allocator::Uniform => "the same share of every slot; needs nothing",
        Allocator::Phase => "more rank where layers mix or refine; needs calibration, else uniform",
        Allocator::Curvature => "rank in proportion to the layers' variance; needs calibration",
        Allocator::Waterfill => "rank where it adds most of the weights' energy; reads the weights",
        Allocator::Whitened => "rank where it adds most of the outputs' energy; needs calibration",
        Allocator::DiffPlan => {
            "gradient descent with a price on energy; needs --tokens-per-joule or --energy, reads the weights"
        }
        Allocator::CacheFit => "the largest ranks that stay in a GPU's cache; needs --gpu",
    }
}

fn allocator() -> impl TypedValueParser<Value = Allocator> {
    let value = |a: Allocator| PossibleValue::new(a.name()).help(allocator_help(a));
    PossibleValuesParser::new(Allocator::ALL.map(value)).try_map(|name| name.parse::<Allocator>())
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(r) if r > 0.0 && r <= 1.0 => Ok(r),
        _ => Err("a ratio is a number above 0 and at most 1".into()),
    }
}

pub(super) fn parse_positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err("a finite number above 0 is needed".into()),
    }
}

fn parse_parameters(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(n) if n >= 1 => Ok(n),
        _ => Err("a number of parameters is a whole number of at least 1".into()),
    }
}

fn parse_cap(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n >= 1 => Ok(n),
        _ => Err("a cap is a rank of at least 1".into()),
    }
}

/// Parses bytes: an integer, or a decimal with a unit of powers of 1000 or 1024.
fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let refused =
        || "a number of bytes is such as 12345, 3.5MB or 400MiB, and at least 1".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let unit = unit.trim_start();
    let factor = match unit {
        "" => 1,
        unit => {
            let known = UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit));
            known.ok_or_else(refused)?.1
        }
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) if factor == 1 => None,
        Err(_) => {
            let bytes = number.parse::<f64>().map_err(|_| refused())? * factor as f64;
            (bytes < 2f64.powi(63)).then_some(bytes as u64)
        }
    };
    bytes.filter(|bytes| *bytes >= 1).ok_or_else(refused)
}

fn parse_cache(text: &str) -> Result<CacheSize, String> {
    match (gpu::find_by_name(text), parse_bytes(text)) {
        (Ok(gpu), _) => Ok(CacheSize(gpu.l2_bytes)),
        (Err(_), Ok(bytes)) => Ok(CacheSize(bytes)),
        (Err(error), Err(_)) => Err(error),
    }
}

fn parse_factor_type(text: &str) -> Result<DType, String> {
    match text.parse() {
        Ok(dtype) if block::writable_types().contains(&dtype) => Ok(dtype),
        _ => {
            let names: Vec<&str> = block::writable_types()
                .iter()
                .map(|dtype| dtype.name())
                .collect();
            Err(format!(
                "matrices are stored as one of {}",
                names.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_are_listed() {
        let command = SizeArgs::augment_args(clap::Command::new("htc"));
        let command = PlanningArgs::augment_args(command);
        let ids: Vec<&str> = command
            .get_arguments()
            .map(|a| a.get_id().as_str())
            .collect();
        let mut listed = PlanningArgs::OPTION_IDS.to_vec();
        assert_eq!(ids.len(), listed.len());
        listed.retain(|id| !ids.contains(id));
        assert!(listed.is_empty(), "{listed:?}");
    }

    #[test]
    fn bytes_have_units() {
        for (text, bytes) in [
            ("1", 1),
            ("12345", 12_345),
            ("12345B", 12_345),
            ("3.5MB", 3_500_000),
            ("3.5 mb", 3_500_000),
            ("400MiB", 400 << 20),
            ("0.5KiB", 512),
            ("2TB", 2_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "0.2",
            "1.5",
            "-1",
            "MB",
            ".MB",
            "1e3",
            "1M",
            "3 5MB",
            "1.2.3MB",
            "inf",
            "nan",
            "0.0001kB",
            "18446744073709551616",
            "99999999999TB",
            "9999999999999999999.5TB",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cache_parses_gpu_or_size() {
        assert_eq!(parse_cache("rtx 4090"), Ok(CacheSize(72 << 20)));
        assert_eq!(parse_cache("6MiB"), Ok(CacheSize(6 << 20)));
        assert!(parse_cache("voodoo").is_err_and(|e| e.contains("rtx-4090")));
    }
}

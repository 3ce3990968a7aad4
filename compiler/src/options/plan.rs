//! Plan options and their defaults.

use htc_formats::DType;
use htc_formats::model::ProjectionKind;
use serde::{Deserialize, Deserializer, Serialize};

use super::budget::at_least_one;
#[cfg(feature = "cli")]
use super::flags::{self, heading};
use super::{
    Allocation, Allocator, Budget, CodeOptions, DenseChoice, DenseType, DenseTypes, Effort,
    FirstPositions, Method, OptionError, PlanRequest, RankFloor, Switch, TreatmentOptions,
    is_default,
};

/// Default ratio of parameters after over parameters before.
pub const DEFAULT_RATIO: f64 = 0.9;

/// Default type of factors.
pub const DEFAULT_FACTOR_TYPE: DType = DType::Q8_0;

/// Plan options; the defaults of some depend on the calibration. They are flags of the command line
/// and, except the first and the type of factors, the `request` of plan files and reports.
#[derive(Clone, Debug, Default, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = heading::RESEARCH))]
pub struct PlanOptions {
    /// quantise: every matrix in the type that loses least for the bytes of the file. Research:
    /// low-rank, separate factors for each projection, W = B A; shared-basis, projections with the
    /// same input share a basis
    ///
    /// At equal bytes the research methods lose far more quality than quantise. Options of factors,
    /// such as --ratio, --rank or --projections, require one of them. [default: quantise]
    #[serde(skip)]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "METHOD",
            hide_short_help = true,
            hide_possible_values = true,
            value_parser = flags::method()
        )
    )]
    pub method: Option<Method>,
    /// Size budget; by default a ratio of [`DEFAULT_RATIO`], with [`Allocator::DiffPlan`]
    /// determined by energy, with [`Method::Quantise`] by the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub budget: Option<Budget>,
    /// Distribution of the budget [default: with --calibration and without --rank whitened for low-rank,
    /// waterfill for shared-basis; else uniform]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "NAME", value_parser = flags::allocator())
    )]
    pub allocator: Option<Allocator>,
    /// Minimum rank of a factorised projection; with a decimal point, a fraction of the model's
    /// width
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            hide_short_help = true,
            value_name = "N|FRACTION",
            allow_negative_numbers = true
        )
    )]
    pub rank_floor: Option<RankFloor>,
    /// Maximum rank of a factorised projection
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "rank")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            hide_short_help = true,
            value_name = "N",
            value_parser = flags::parse_cap,
            allow_negative_numbers = true
        )
    )]
    pub rank_cap: Option<usize>,
    /// For phase and curvature: whether the first position of every window counts in the variance
    /// [default: left-out]
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "left-out|counted")
    )]
    pub first_positions: Option<FirstPositions>,
    /// Type of stored factors: f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0,
    /// iq4_nl, iq4_xs, q3_k or q2_k [default: q8_0]
    #[serde(skip)]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            hide_short_help = true,
            value_name = "T",
            value_parser = flags::parse_factor_type
        )
    )]
    pub factor_type: Option<DType>,
    /// Type of projections that stay dense, also levels2 to levels8 or trellis2 to trellis5, where
    /// it is smaller than the source; source: as they are [default: for selected projections
    /// --factor-type]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "T|source")
    )]
    pub dense_type: Option<DenseChoice>,
    /// Type of selected projections that stay dense, if `dense_type` is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(skip))]
    pub left_type: Option<DenseType>,
    /// Type of the embedding, and of the head if the model has its own
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true, value_name = "T"))]
    pub embedding_type: Option<DenseType>,
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub codes: CodeOptions,
    /// Projections to compress, of q,k,v,o,gate,up,down [default: all for low-rank, q,k,v for shared-basis]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            hide_short_help = true,
            value_name = "LIST",
            help_heading = heading::RESEARCH,
            value_delimiter = ',',
            value_parser = ProjectionKind::parse_dense
        )
    )]
    pub projections: Vec<ProjectionKind>,
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub layout: LayoutOptions,
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub treatment: TreatmentOptions,
    /// Trade compilation time for quality
    ///
    /// fast takes about a sixth of the time of normal, high three times as much.
    ///
    /// It sets the tokens of the calibration, the sweeps over the codes, the rows that are measured,
    /// and the tuning steps.
    #[serde(skip_serializing_if = "Effort::is_default")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "fast|normal|high",
            help_heading = heading::METHOD,
            default_value_t = Effort::default()
        )
    )]
    pub effort: Effort,
}

/// Options of the stored model that do not change the function it computes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, schemars::JsonSchema, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = heading::METHOD))]
pub struct LayoutOptions {
    /// Permute channels, so that codes lose less; the model computes the same function [default: on
    /// for quantise, unless the source is stored in blocks]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "on|off")
    )]
    pub order: Option<Switch>,
    /// Store bases for an adaptive KV cache, for keys and values of every head, computed from the
    /// calibration; they count in the size of the file
    #[serde(skip_serializing_if = "Switch::is_off")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            hide_short_help = true,
            action = clap::ArgAction::SetTrue,
            value_parser = flags::set_switch()
        )
    )]
    pub kv_bases: Switch,
}

fn rank<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    at_least_one(deserializer).map(Some)
}

impl PlanOptions {
    /// Returns the requested allocator, or the default: with a calibration the one that measures
    /// best with the method, if there is anything to allocate.
    pub fn allocator(&self, calibrated: bool) -> Allocator {
        let fixed = matches!(self.budget, Some(Budget::Rank(_) | Budget::FullRank));
        let default = match (calibrated && !fixed, self.method()) {
            (false, _) => Allocator::Uniform,
            (true, Method::PerProjection) => Allocator::Whitened,
            (true, Method::Quantise) => Allocator::Uniform,
            (true, Method::SharedBasis) => Allocator::Waterfill,
        };
        self.allocator.unwrap_or(default)
    }

    /// Returns the resolved request, with or without calibration. Projections are unique and in the
    /// order of execution.
    pub fn resolve(&self, calibrated: bool) -> PlanRequest {
        let method = self.method();
        let mut projections = match &self.projections[..] {
            [] => method.default_projections().to_vec(),
            named => named.to_vec(),
        };
        projections.sort();
        projections.dedup();
        let allocator = self.allocator(calibrated);
        let default = match (method, allocator) {
            // The limit determines the ratio.
            (Method::Quantise, _) => Budget::Ratio(1.0),
            (_, Allocator::DiffPlan) => Budget::Energy,
            _ => Budget::Ratio(DEFAULT_RATIO),
        };
        let factor_type = self.factor_type.unwrap_or(DEFAULT_FACTOR_TYPE);
        let dense_type = match self.dense_type {
            Some(DenseChoice::Type(dtype)) => Some(dtype),
            Some(DenseChoice::Source) | None => None,
        };
        let keep = method == Method::Quantise || self.dense_type == Some(DenseChoice::Source);
        PlanRequest {
            method,
            budget: self.budget.unwrap_or(default),
            allocation: Allocation {
                allocator,
                floor: self.rank_floor,
                cap: self.rank_cap,
                first_positions: self.first_positions.unwrap_or_default(),
            },
            projections,
            factor_type,
            dense_types: DenseTypes {
                projections: dense_type,
                selected: self.left_type.or((!keep).then(|| factor_type.into())),
                embedding_and_head: self.embedding_type,
            },
            codes: self.codes,
            layout: self.layout,
            treatment: self.treatment,
            effort: self.effort,
        }
    }

    /// Returns the requested method, or [`Method::Quantise`].
    pub fn method(&self) -> Method {
        self.method.unwrap_or(Method::Quantise)
    }

    /// Returns the budget's option if only methods with factors have it; with a method that is named,
    /// some have a meaning for the whole file.
    fn budget_of_factors(&self) -> Option<&'static str> {
        match self.budget? {
            Budget::FileSize(_) | Budget::SourceFraction(_) | Budget::Bits(_) | Budget::Energy => {
                None
            }
            Budget::Rank(_) | Budget::FullRank => Some("rank"),
            Budget::Ratio(_) => Some("ratio"),
            Budget::Parameters(_) => Some("parameters"),
            Budget::Bytes(_) => Some("bytes"),
            Budget::MeanRank(_) => Some("mean_rank"),
        }
    }

    /// Checks that the method supports all options.
    ///
    /// # Errors
    /// [`OptionError::RequiresMethod`], [`OptionError::RequiresFactors`],
    /// [`OptionError::RequiresCodes`].
    pub fn check(&self) -> Result<(), OptionError> {
        let method = self.method();
        if method != Method::Quantise {
            return match self.codes.specified().next() {
                Some((name, value)) => Err(OptionError::RequiresCodes {
                    option: format!("`{name}` {value}"),
                    method,
                }),
                None => Ok(()),
            };
        }
        if let Some(option) = self.budget_of_factors().filter(|_| self.method.is_none()) {
            return Err(OptionError::RequiresMethod { option });
        }
        match self.first_factor_option() {
            Some((name, value)) => Err(OptionError::RequiresFactors {
                option: format!("`{name}` {value}"),
            }),
            None => Ok(()),
        }
    }

    fn first_factor_option(&self) -> Option<(&'static str, String)> {
        fn text(value: Option<impl ToString>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        let projections: Vec<&str> = self
            .projections
            .iter()
            .map(|projection| projection.name())
            .collect();
        let first = self.first_positions;
        let first = first.filter(|first| *first != FirstPositions::default());
        let options = [
            ("allocator", text(self.allocator)),
            ("rank_floor", text(self.rank_floor)),
            ("rank_cap", text(self.rank_cap)),
            ("first_positions", text(first)),
            (
                "projections",
                Some(projections.join(",")).filter(|projections| !projections.is_empty()),
            ),
            ("factor_type", text(self.factor_type)),
            ("dense_type", text(self.dense_type)),
            ("embedding_type", text(self.embedding_type)),
        ];
        let mut options = options.into_iter();
        options
            .find_map(|(name, value)| Some((name, value?)))
            .or_else(|| self.treatment.first_factor_option())
    }
}

#[cfg(test)]
mod tests;

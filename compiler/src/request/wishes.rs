//! Plan options and their defaults.

use htc_formats::DType;
use htc_formats::model::ProjectionKind;

use super::{
    Allocation, Allocator, BiasArg, Budget, CalibrationOptions, CodeKinds, DenseTypes, Effort,
    FirstPositions, GaugeKind, KvBasesArg, LowRankArg, Method, OrderArg, PlanRequest, RankFloor,
    RotationArg, SinkProtection, TextSource, TreatmentError, TreatmentRequest,
};

/// Default ratio of parameters after over parameters before.
pub const DEFAULT_RATIO: f64 = 0.9;

/// Default type of factors.
pub const DEFAULT_FACTOR_TYPE: DType = DType::Q8_0;

/// Explicit plan options; defaults of the rest may depend on calibration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanOptions {
    /// Approximation method; see [`PlanOptions::method`].
    pub method: Option<Method>,
    /// Size budget; by default a ratio of [`DEFAULT_RATIO`], with [`Allocator::DiffPlan`]
    /// determined by energy, with [`Method::Quantise`] by the limit.
    pub budget: Option<Budget>,
    /// Allocation strategy; see [`PlanOptions::allocator`].
    pub allocator: Option<Allocator>,
    /// Minimum rank of a factorised projection.
    pub rank_floor: Option<RankFloor>,
    /// Maximum rank of a factorised projection.
    pub rank_cap: Option<usize>,
    /// Treatment of first positions in the variance; [`FirstPositions::Excluded`] by default.
    pub first_positions: FirstPositions,
    /// Selected projections; empty for those of the method.
    pub projections: Vec<ProjectionKind>,
    /// Type of factors; [`DEFAULT_FACTOR_TYPE`] by default.
    pub factor_type: Option<DType>,
    /// Types of dense matrices; by default as in the source, except selected projections that stay
    /// dense.
    pub dense_types: DenseTypes,
    /// Keeps selected dense projections as in the source; by default they get the factor type.
    pub keep_dense: bool,
    /// Kinds of codes; all by default.
    pub codes: Option<CodeKinds>,
    /// Evaluation of factors as alternatives to codes; on by default.
    pub low_rank: Option<LowRankArg>,
    /// Rotation before encoding in column groups; on by default.
    pub rotation: Option<RotationArg>,
    /// Channel permutation; see [`PlanRequest::channel_permutation`].
    pub order: Option<OrderArg>,
    /// Bases for a KV cache; off by default.
    pub kv_bases: KvBasesArg,
    /// Treatment of weights.
    pub treatment: TreatmentRequest,
    /// Compilation effort.
    pub effort: Effort,
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
        let mut slots = match &self.projections[..] {
            [] => method.default_projections().to_vec(),
            named => named.to_vec(),
        };
        slots.sort();
        slots.dedup();
        let allocator = self.allocator(calibrated);
        let default = match (method, allocator) {
            // The limit determines the ratio.
            (Method::Quantise, _) => Budget::Ratio(1.0),
            (_, Allocator::DiffPlan) => Budget::Energy,
            _ => Budget::Ratio(DEFAULT_RATIO),
        };
        let factor_type = self.factor_type.unwrap_or(DEFAULT_FACTOR_TYPE);
        let left = (method != Method::Quantise && !self.keep_dense).then(|| factor_type.into());
        PlanRequest {
            method,
            method_implied_by: self.method_implied_by(),
            budget: self.budget.unwrap_or(default),
            allocation: Allocation {
                allocator,
                floor: self.rank_floor,
                cap: self.rank_cap,
                first_positions: self.first_positions,
            },
            projections: slots,
            factor_type,
            dense_types: DenseTypes {
                selected: self.dense_types.selected.or(left),
                ..self.dense_types
            },
            codes: self.codes.unwrap_or_default(),
            low_rank: self.low_rank.unwrap_or_default(),
            rotation: self.rotation.unwrap_or_default(),
            channel_permutation: self.order,
            kv_bases: self.kv_bases,
            treatment: self.treatment,
            effort: self.effort,
        }
    }

    /// Returns the requested method. The default is [`Method::Quantise`], or [`Method::PerProjection`] if
    /// an option applies only to factors. A file size is not such an option.
    pub fn method(&self) -> Method {
        let default = match self.method_implied_by() {
            Some(_) => Method::PerProjection,
            None => Method::Quantise,
        };
        self.method.unwrap_or(default)
    }

    /// Returns the option that implies [`Method::PerProjection`], if no method is set.
    pub fn method_implied_by(&self) -> Option<&'static str> {
        let of_factors = match self.budget {
            Some(Budget::FileSize(_) | Budget::Bits(_)) => None,
            Some(Budget::Rank(_) | Budget::FullRank) => Some("--rank"),
            Some(Budget::Ratio(_)) => Some("--ratio"),
            Some(Budget::Parameters(_)) => Some("--parameters"),
            Some(Budget::Bytes(_)) => Some("--bytes"),
            Some(Budget::MeanRank(_)) => Some("--mean-rank"),
            Some(Budget::Energy) | None => self.first_factor_option().map(|(option, _)| option),
        };
        of_factors.filter(|_| self.method.is_none())
    }

    /// Checks that the method supports all options.
    ///
    /// # Errors
    /// [`TreatmentError::RequiresFactors`], [`TreatmentError::RequiresCodes`].
    pub fn check(&self) -> Result<(), TreatmentError> {
        let method = self.method();
        if let Some(codes) = self.codes.filter(|_| method != Method::Quantise) {
            let option = format!("`codes` {}", codes.name());
            return Err(TreatmentError::RequiresCodes { option, method });
        }
        if let Some(low_rank) = self.low_rank.filter(|_| method != Method::Quantise) {
            let option = format!("`low_rank` {low_rank}");
            return Err(TreatmentError::RequiresCodes { option, method });
        }
        if let Some(rotation) = self.rotation.filter(|_| method != Method::Quantise) {
            let option = format!("`rotation` {rotation}");
            return Err(TreatmentError::RequiresCodes { option, method });
        }
        match (method, self.first_factor_option()) {
            (Method::Quantise, Some((option, value))) => {
                let name = option.trim_start_matches('-').replace('-', "_");
                let option = format!("`{name}` {value}").trim_end().to_owned();
                Err(TreatmentError::RequiresFactors { option })
            }
            _ => Ok(()),
        }
    }

    fn first_factor_option(&self) -> Option<(&'static str, String)> {
        fn said(wish: Option<impl ToString>) -> Option<String> {
            wish.map(|wish| wish.to_string())
        }
        let slots: Vec<&str> = self.projections.iter().map(|slot| slot.name()).collect();
        let first = self.first_positions;
        let TreatmentRequest {
            gauge,
            sink,
            bias,
            shrinkage,
        } = self.treatment;
        let wishes = [
            ("--allocator", said(self.allocator)),
            ("--rank-floor", said(self.rank_floor)),
            ("--rank-cap", said(self.rank_cap)),
            (
                "--first-positions",
                said((first != FirstPositions::default()).then_some(first)),
            ),
            (
                "--slots",
                said((!slots.is_empty()).then(|| slots.join(","))),
            ),
            ("--factor-type", said(self.factor_type)),
            ("--dense-type", said(self.dense_types.projections)),
            ("--dense-type", said(self.keep_dense.then_some("source"))),
            (
                "--embedding-type",
                said(self.dense_types.embedding_and_head),
            ),
            // Options that are off are valid without factors.
            (
                "--gauge",
                said(gauge.filter(|gauge| *gauge != GaugeKind::None)),
            ),
            (
                "--sink",
                said(sink.filter(|sink| *sink != SinkProtection::Off)),
            ),
            ("--bias", said(bias.filter(|bias| *bias == BiasArg::On))),
            ("--shrinkage", said(shrinkage)),
        ];
        let mut asked = wishes.into_iter();
        asked.find_map(|(option, value)| Some((option, value?)))
    }

    /// Returns the calibration, or the shipped text if the method needs one and none is set.
    pub fn calibration(&self, asked: CalibrationOptions) -> Option<CalibrationOptions> {
        match (asked.texts.is_empty(), self.method()) {
            (false, _) => Some(asked),
            (true, Method::Quantise) => Some(CalibrationOptions {
                texts: CalibrationOptions::new(TextSource::Shipped).texts,
                ..asked
            }),
            (true, Method::PerProjection | Method::SharedBasis) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_depend_on_the_method_and_the_calibration() {
        let of_factors = PlanOptions {
            method: Some(Method::PerProjection),
            ..PlanOptions::default()
        };
        let plain = of_factors.resolve(false);
        assert_eq!(plain.budget, Budget::Ratio(DEFAULT_RATIO));
        assert_eq!(plain.allocation, Allocation::default());
        assert_eq!(plain.projections, ProjectionKind::ALL);
        let calibrated = of_factors.resolve(true);
        assert_eq!(calibrated.allocation.allocator, Allocator::Whitened);
        let shared = PlanOptions {
            method: Some(Method::SharedBasis),
            ..PlanOptions::default()
        };
        assert_eq!(shared.allocator(true), Allocator::Waterfill);
        let fixed = PlanOptions {
            budget: Some(Budget::Rank(4)),
            ..shared
        };
        assert_eq!(fixed.allocator(true), Allocator::Uniform);
    }

    #[test]
    fn options_imply_the_method() {
        let none = PlanOptions::default();
        assert_eq!(
            (none.method(), none.method_implied_by()),
            (Method::Quantise, None)
        );
        let budget = |budget| PlanOptions {
            budget: Some(budget),
            ..PlanOptions::default()
        };
        for sized in [Budget::FileSize(1000), Budget::Bits(3.5)] {
            assert_eq!(budget(sized).method(), Method::Quantise);
        }
        let floor = PlanOptions {
            rank_floor: Some(RankFloor::Rank(4)),
            ..PlanOptions::default()
        };
        let gauge = |kind| PlanOptions {
            treatment: TreatmentRequest {
                gauge: Some(kind),
                ..TreatmentRequest::default()
            },
            ..PlanOptions::default()
        };
        for (wishes, option) in [
            (budget(Budget::Ratio(0.5)), "--ratio"),
            (budget(Budget::FullRank), "--rank"),
            (budget(Budget::Bytes(5)), "--bytes"),
            (floor.clone(), "--rank-floor"),
            (gauge(GaugeKind::Whiten), "--gauge"),
        ] {
            assert_eq!(wishes.method_implied_by(), Some(option));
            let request = wishes.resolve(false);
            let decided = (request.method, request.method_implied_by);
            assert_eq!(decided, (Method::PerProjection, Some(option)));
            assert_eq!(wishes.check(), Ok(()));
            let asked = PlanOptions {
                method: Some(Method::SharedBasis),
                ..wishes
            };
            assert_eq!(
                (asked.method(), asked.method_implied_by()),
                (Method::SharedBasis, None)
            );
        }
        assert_eq!(gauge(GaugeKind::None).method(), Method::Quantise);
        let both = PlanOptions {
            budget: Some(Budget::Bits(3.0)),
            ..floor
        };
        assert_eq!(both.method(), Method::Quantise);
        let refused = both.check().unwrap_err().to_string();
        assert!(refused.starts_with("`rank_floor` 4: "), "{refused}");
    }

    #[test]
    fn projections_are_unique_and_sorted() {
        let wishes = PlanOptions {
            projections: vec![ProjectionKind::Up, ProjectionKind::Q, ProjectionKind::Up],
            ..PlanOptions::default()
        };
        assert_eq!(
            wishes.resolve(false).projections,
            [ProjectionKind::Q, ProjectionKind::Up]
        );
    }
}

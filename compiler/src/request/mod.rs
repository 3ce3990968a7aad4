//! Options of all stages with their defaults, as plain data.

/// Implements serde and the JSON schema by `Display` and `FromStr`.
macro_rules! as_typed {
    ($($name:ty),+) => {
        $(
            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl schemars::JsonSchema for $name {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> std::borrow::Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                    <String as schemars::JsonSchema>::json_schema(generator)
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let text = String::deserialize(deserializer)?;
                    text.parse().map_err(serde::de::Error::custom)
                }
            }
        )+
    };
}

mod calibration;
mod compile;
mod effort;
mod goal;
mod planning;
mod shipped;
mod shrinkage;
mod switch;
mod treatment;
mod wishes;

pub use calibration::{
    CalibrationOptions, CalibrationText, DEFAULT_CONTEXT, DEFAULT_LOCK_TIMEOUT, DEFAULT_TOKENS,
    TextSource,
};
pub(crate) use compile::BASE_FRACTION;
pub use compile::{CompileOptions, PlanSource};
pub use effort::{Effort, EffortSettings};
pub use goal::{QualityGoal, QualityLimit, QualityPreset};
pub use planning::{
    Allocation, Allocator, Budget, CodeKinds, DenseType, DenseTypes, FirstPositions,
    MeasuredEnergy, Method, PlanRequest, RankFloor, TargetMachine,
};
pub use shipped::{SHIPPED_VERSION, ShippedPart, shipped_digest, shipped_text};
pub use shrinkage::{Shrinkage, ShrinkageArg};
pub use switch::{CompareArg, KvBasesArg, LowRankArg, OrderArg, RotationArg};
pub use treatment::{
    BiasArg, GaugeKind, SinkProtection, Treatment, TreatmentError, TreatmentRequest,
};
pub use wishes::{DEFAULT_FACTOR_TYPE, DEFAULT_RATIO, PlanOptions};

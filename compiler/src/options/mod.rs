//! Options of all stages with their defaults, as plain data.

/// Implements serde and the JSON schema by `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($($name:ty),+) => {
        $(
            htc_formats::serde_as_text!($name);

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
        )+
    };
}

/// Implements `ALL`, `name`, `Display`, `FromStr` and serde for an enumeration of names.
macro_rules! named {
    ($type:ident, $expected:literal, $($variant:ident: $name:literal),+ $(,)?) => {
        htc_formats::names!($type { $($variant $name),+ });

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let known = $type::ALL.into_iter().find(|value| value.name() == text);
                known.ok_or_else(|| concat!("expected ", $expected).to_owned())
            }
        }

        serde_as_text!($type);
    };
}

mod budget;
mod calibration;
mod codes;
mod compile;
mod effort;
mod error;
#[cfg(feature = "cli")]
pub(crate) mod flags;
mod limit;
mod plan;
mod request;
mod shrinkage;
mod switch;
mod treatment;

pub use budget::Budget;
pub use calibration::{
    CalibrationOptions, CalibrationText, DEFAULT_CONTEXT, DEFAULT_LOCK_TIMEOUT, DEFAULT_TOKENS,
    SHIPPED_VERSION, TextSource,
};
pub use codes::{CodeKinds, CodeOptions, DenseChoice, DenseType};
pub(crate) use compile::BASE_FRACTION;
pub use compile::{ArtifactOptions, CompileOptions, CompileRequest, PlanSource};
pub use effort::{Effort, EffortSettings};
pub use error::OptionError;
#[cfg(feature = "cli")]
pub(crate) use flags::heading;
pub use limit::{LimitOptions, QualityLimit, QualityPreset};
pub use plan::{DEFAULT_FACTOR_TYPE, DEFAULT_RATIO, LayoutOptions, PlanOptions};
pub use request::{
    Allocation, Allocator, DenseTypes, FirstPositions, MeasuredEnergy, Method, PlanRequest,
    RankFloor, TargetMachine,
};
pub use shrinkage::{Shrinkage, ShrinkageArg};
pub use switch::Switch;
pub use treatment::{BiasArg, GaugeKind, SinkProtection, Treatment, TreatmentOptions};

/// Returns the name of the first option that is given.
fn first_given<const N: usize>(options: [(&'static str, bool); N]) -> Option<&'static str> {
    let mut options = options.into_iter();
    options.find_map(|(option, given)| given.then_some(option))
}

/// Returns true if an option is unset or has its default.
fn is_default<T: Default + PartialEq>(option: &Option<T>) -> bool {
    option.as_ref().is_none_or(|value| *value == T::default())
}

#[cfg(test)]
mod tests;

//! Options that contradict each other.

use htc_formats::DType;
use thiserror::Error;

use super::{Allocator, GaugeKind, Method, ShrinkageArg};

/// Error returned when options contradict each other or the plan. The message is one line and names
/// options by the methods of the builder, in backticks.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum OptionError {
    /// The treatment requires activations.
    #[error("{option} is made from activations; give a text with `calibration`, or {alternative}")]
    NoCalibration {
        option: String,
        alternative: &'static str,
    },
    /// An option for calibration without a text.
    #[error("{option} requires `calibration`; give a text, which may be `shipped`")]
    RequiresCalibration { option: &'static str },
    /// An option for an allocator with another one.
    #[error("{option} requires `allocator` {readers}; the allocator is {allocator}")]
    RequiresAllocator {
        option: &'static str,
        readers: &'static str,
        allocator: Allocator,
    },
    /// A budget of factors without a method that makes them.
    #[error(
        "`{option}` requires `method` low-rank or shared-basis, which lose far more than the default at equal bytes; for a size of the artifact use `file_size` or `bits`"
    )]
    RequiresMethod { option: &'static str },
    /// An option for factors with a method that makes none.
    #[error(
        "{option}: the method quantise decides on projections and types itself and makes no factors; leave it out, or take `method` low-rank or shared-basis"
    )]
    RequiresFactors { option: String },
    /// An option for codes with a method that does not choose codes.
    #[error(
        "{option}: the method {} makes factors and chooses no codes; leave it out, or take `method` quantise", method.name()
    )]
    RequiresCodes { option: String, method: Method },
    /// A shrinkage with a gauge that does not use it.
    #[error(
        "`shrinkage` {shrinkage}: gauge {gauge} has no second moment that could be shrunk; leave it out, or take `gauge` whiten"
    )]
    Shrinkage {
        shrinkage: ShrinkageArg,
        gauge: GaugeKind,
    },
    /// More exempt channels than ranks.
    #[error(
        "`sink` channels:{channels}: {unit} has rank {rank}, and every channel takes one; choose at most channels:{rank}, or more rank"
    )]
    Channels {
        channels: usize,
        rank: usize,
        unit: String,
    },
    /// The factor type of the plan cannot hold the channels exactly.
    #[error(
        "`sink` channels:{channels}: the plan stores the factors of {unit} in {stored}, which rounds them; exact they are in {exact}: make the plan with the same `sink`, or edit its types"
    )]
    ChannelType {
        channels: usize,
        unit: String,
        stored: DType,
        exact: DType,
    },
}

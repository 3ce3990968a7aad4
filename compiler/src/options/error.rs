//! Options that contradict each other.

use htc_formats::DType;
use thiserror::Error;

use super::{Allocator, GaugeKind, Method, ShrinkageArg};

/// Error returned when options contradict each other or the plan. The message is one line and names
/// options by the methods of the builder, in backticks.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OptionError {
    /// The treatment requires activations.
    #[error("{option} is made from activations; give a text with `calibration`, or {alternative}")]
    NoCalibration {
        /// Requested option.
        option: String,
        /// Alternative without calibration.
        alternative: &'static str,
    },
    /// An option for calibration without a text.
    #[error("{option} requires `calibration`; give a text, which may be `shipped`")]
    RequiresCalibration {
        /// Requested option.
        option: &'static str,
    },
    /// An option for an allocator with another one.
    #[error("{option} requires `allocator` {readers}; the allocator is {allocator}")]
    RequiresAllocator {
        /// Requested option.
        option: &'static str,
        /// Allocators that use it.
        readers: &'static str,
        /// Chosen allocator.
        allocator: Allocator,
    },
    /// An option for factors with a method that makes none.
    #[error(
        "{option}: the method quantise decides on projections and types itself and makes no factors; leave it out, or take `method` gp or grc"
    )]
    RequiresFactors {
        /// Requested option.
        option: String,
    },
    /// An option for codes with a method that does not choose codes.
    #[error(
        "{option}: the method {} makes factors and chooses no codes; leave it out, or take `method` quantise", method.name()
    )]
    RequiresCodes {
        /// Requested option.
        option: String,
        /// Requested method.
        method: Method,
    },
    /// A shrinkage with a gauge that does not use it.
    #[error(
        "`shrinkage` {shrinkage}: gauge {gauge} has no second moment that could be shrunk; leave it out, or take `gauge` whiten"
    )]
    Shrinkage {
        /// Requested shrinkage.
        shrinkage: ShrinkageArg,
        /// Requested gauge.
        gauge: GaugeKind,
    },
    /// More exempt channels than ranks.
    #[error(
        "`sink` channels:{channels}: {unit} has rank {rank}, and every channel takes one; choose at most channels:{rank}, or more rank"
    )]
    Channels {
        /// Requested channels.
        channels: usize,
        /// Smallest rank of a unit that reads the residual stream.
        rank: usize,
        /// Name of that unit.
        unit: String,
    },
    /// The factor type of the plan cannot hold the channels exactly.
    #[error(
        "`sink` channels:{channels}: the plan stores the factors of {unit} in {stored}, which rounds them; exact they are in {exact}: make the plan with the same `sink`, or edit its types"
    )]
    ChannelType {
        /// Requested channels.
        channels: usize,
        /// Name of the unit.
        unit: String,
        /// Type of its factors that hold columns of the source.
        stored: DType,
        /// A type that holds them exactly.
        exact: DType,
    },
}

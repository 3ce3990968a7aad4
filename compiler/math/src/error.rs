use htc_formats::CodecError;
use thiserror::Error;

/// Error of a factorisation.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum FactoriseError {
    /// No weight was given.
    #[error(
        "a shared basis needs at least one weight, found none: name the projections that share the input"
    )]
    NoWeights,
    /// A side of a weight is zero.
    #[error(
        "weight {index} is {rows} x {cols}, expected at least 1 x 1: keep this projection out of the plan"
    )]
    Empty {
        /// Index of the weight.
        index: usize,
        /// Rows of the weight.
        rows: usize,
        /// Columns of the weight.
        cols: usize,
    },
    /// The length of the buffer does not match the shape.
    #[error(
        "weight {index} is {rows} x {cols} but holds {found} numbers: pass the whole tensor, row-major"
    )]
    WeightLength {
        /// Index of the weight.
        index: usize,
        /// Rows of the weight.
        rows: usize,
        /// Columns of the weight.
        cols: usize,
        /// Length of the buffer.
        found: usize,
    },
    /// A number is infinite or NaN.
    #[error(
        "weight {index} holds {value} at row {row}, column {col}, expected finite numbers: repair or re-export the source model"
    )]
    NonFinite {
        /// Index of the weight.
        index: usize,
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// Value.
        value: f32,
    },
    /// Projections of a shared basis read inputs of different widths.
    #[error(
        "weight {index} reads {found} inputs, the first weight reads {expected}: share a basis only among projections with the same input"
    )]
    InputMismatch {
        /// Index of the weight.
        index: usize,
        /// Inputs of the first weight.
        expected: usize,
        /// Inputs of this weight.
        found: usize,
    },
    /// The rank is zero or larger than the shape allows.
    #[error("rank {requested} is not possible here: choose 1 to {largest}")]
    Rank {
        /// Requested rank.
        requested: usize,
        /// Largest rank for the shape.
        largest: usize,
    },
    /// A factor does not fit float32.
    #[error(
        "a factor of weight {index} exceeds the range of float32: scale the weight down or keep the projection dense"
    )]
    Overflow {
        /// Index of the weight.
        index: usize,
    },
    /// The length of a second moment does not match its order.
    #[error(
        "a second moment of order {order} needs {order} x {order} numbers, found {found}: pass the whole matrix, row-major"
    )]
    MomentLength {
        /// Order of the second moment.
        order: usize,
        /// Length of the buffer.
        found: usize,
    },
    /// A second moment has an impossible entry.
    #[error(
        "the second moment holds {value} at row {row}, column {col}, expected finite numbers, none below zero on the diagonal and none larger than its row and column allow: calibrate again"
    )]
    MomentEntry {
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// Value.
        value: f64,
    },
    /// A second moment has a negative eigenvalue.
    #[error(
        "the second moment has an eigenvalue of {smallest:e} beside one of {largest:e}, expected none below zero: calibrate again"
    )]
    Indefinite {
        /// Smallest eigenvalue.
        smallest: f64,
        /// Largest eigenvalue.
        largest: f64,
    },
    /// The shrinkage of a second moment is outside `0..=1`.
    #[error("a shrinkage of {found} is not possible: choose 0 to 1")]
    Shrinkage {
        /// Requested shrinkage.
        found: f64,
    },
    /// The damping of a second moment is negative or not finite.
    #[error("a damping of {found} is not possible: choose a finite number of at least 0")]
    Damping {
        /// Requested damping.
        found: f64,
    },
    /// A second moment is indefinite despite its damping.
    #[error(
        "the second moment has no part of its own in channel {index}: raise its damping, or calibrate again"
    )]
    NotDefinite {
        /// First such channel from the last.
        index: usize,
    },
    /// A row is not a whole number of blocks.
    #[error("rows of {cols} numbers are not whole blocks of {block}: choose another code")]
    Blocks {
        /// Numbers in a row.
        cols: usize,
        /// Numbers in a block.
        block: usize,
    },
    /// Values of a block exceed the range of the format.
    #[error(
        "the block at row {row}, column {col} holds numbers that are beyond the code: choose another, or keep the matrix as it is"
    )]
    ValuesOutOfRange {
        /// Row of the block.
        row: usize,
        /// First column of the block.
        col: usize,
    },
    /// The exponent of a gauge is out of range.
    #[error("a gauge exponent of {found} is not possible: choose 0 to 2")]
    Exponent {
        /// Requested exponent.
        found: f64,
    },
    /// A diagonal gauge holds an entry without a usable inverse.
    #[error(
        "gauge entry {index} is {value}, expected a finite number above zero and above 1e-12 of the largest: raise it"
    )]
    GaugeEntry {
        /// Index of the entry.
        index: usize,
        /// Its value.
        value: f64,
    },
    /// A gauge has another number of channels than the weight.
    #[error(
        "the gauge has {found} channels, the weight {expected}: pass the gauge of this projection"
    )]
    GaugeOrder {
        /// Channels of the weight.
        expected: usize,
        /// Channels of the gauge.
        found: usize,
    },
    /// The lengths of factors do not match their rank.
    #[error(
        "a weight of {rows} x {cols} at rank {rank} has factors of {rank} x {cols} and {rows} x {rank}, found {a} and {b} numbers: pass both factors whole"
    )]
    Factors {
        /// Rows of the weight.
        rows: usize,
        /// Columns of the weight.
        cols: usize,
        /// Rank of the factors.
        rank: usize,
        /// Numbers in `A`.
        a: usize,
        /// Numbers in `B`.
        b: usize,
    },
    /// A vector over the inputs has the wrong length.
    #[error(
        "a vector over {expected} inputs holds {found} numbers: pass that of the same projection"
    )]
    VectorLength {
        /// Expected length.
        expected: usize,
        /// Length of the vector.
        found: usize,
    },
    /// A vector over the inputs has an infinite or NaN entry.
    #[error(
        "entry {index} of a vector over the inputs is {value}, expected a finite number: calibrate again"
    )]
    VectorEntry {
        /// Index of the entry.
        index: usize,
        /// Its value.
        value: f64,
    },
    /// The square of a mean exceeds the second moment.
    #[error(
        "channel {index} has a mean of {mean:e} and a mean square of {second:e}, which is less than the mean's square: calibrate again"
    )]
    MeanBeyondMoment {
        /// Index of the channel.
        index: usize,
        /// Its mean.
        mean: f64,
        /// Its second moment.
        second: f64,
    },
    /// A direction of length zero.
    #[error("the direction to keep is zero: leave it out")]
    NoDirection,
    /// Exempt channels are out of range or not ascending.
    #[error(
        "exempt channel {channel} is not possible: name each of the {inputs} inputs at most once, in ascending order"
    )]
    ExemptChannel {
        /// First such channel.
        channel: usize,
        /// Inputs of the weight.
        inputs: usize,
    },
    /// A decomposition did not converge.
    #[error(
        "the decomposition of a matrix of order {order} did not converge: keep the projection dense"
    )]
    NoConvergence {
        /// Order of the matrix.
        order: usize,
    },
    /// The algebra device failed.
    #[error("linear algebra on the device: {message}")]
    Device {
        /// Message of the device.
        message: String,
    },
    /// The number of values does not match the shape.
    #[error("{rows} rows of {cols} columns are not {found} numbers")]
    Length {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Number of values.
        found: usize,
    },
    /// A number has no code.
    #[error("the number {value} in row {row} has no code; it must be finite")]
    NoCode {
        /// Row of the number.
        row: usize,
        /// The number.
        value: f32,
    },
    /// A code is not supported, or numbers are out of its range.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

use thiserror::Error;

/// Why a factorisation was refused. The caller knows the tensor's name and adds it.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum FactoriseError {
    /// No weight was given.
    #[error(
        "a shared basis needs at least one weight, found none: name the slots that share the input"
    )]
    NoWeights,
    /// A side of a weight is zero.
    #[error(
        "weight {index} is {rows} x {cols}, expected at least 1 x 1: keep this slot out of the plan"
    )]
    Empty {
        /// Which of the weights given.
        index: usize,
        /// Its number of rows.
        rows: usize,
        /// Its number of columns.
        cols: usize,
    },
    /// The buffer does not have the length that the shape demands.
    #[error(
        "weight {index} is {rows} x {cols} but holds {found} numbers: pass the whole tensor, row-major"
    )]
    Length {
        /// Which of the weights given.
        index: usize,
        /// Its number of rows.
        rows: usize,
        /// Its number of columns.
        cols: usize,
        /// How many numbers the buffer holds.
        found: usize,
    },
    /// A number is infinite or not a number.
    #[error(
        "weight {index} holds {value} at row {row}, column {col}, expected finite numbers: repair or re-export the source model"
    )]
    NonFinite {
        /// Which of the weights given.
        index: usize,
        /// Row of the first such number.
        row: usize,
        /// Column of the first such number.
        col: usize,
        /// The number.
        value: f32,
    },
    /// Slots of a shared basis read inputs of different widths.
    #[error(
        "weight {index} reads {found} inputs, the first weight reads {expected}: share a basis only among slots with the same input"
    )]
    Inputs {
        /// Which of the weights given.
        index: usize,
        /// Inputs of the first weight.
        expected: usize,
        /// Inputs of this weight.
        found: usize,
    },
    /// The rank is zero or larger than the shape allows.
    #[error("rank {requested} is not possible here: choose 1 to {largest}")]
    Rank {
        /// The rank asked for.
        requested: usize,
        /// The largest rank that the shape allows.
        largest: usize,
    },
    /// A factor does not fit float32.
    #[error(
        "a factor of weight {index} exceeds the range of float32: scale the weight down or keep the slot dense"
    )]
    Overflow {
        /// Which of the weights given.
        index: usize,
    },
    /// A second moment does not have the length that its order demands.
    #[error(
        "a second moment of order {order} needs {order} x {order} numbers, found {found}: pass the whole matrix, row-major"
    )]
    MomentLength {
        /// Its order.
        order: usize,
        /// How many numbers the buffer holds.
        found: usize,
    },
    /// A second moment holds a number that no second moment has.
    #[error(
        "the second moment holds {value} at row {row}, column {col}, expected finite numbers, none below zero on the diagonal and none larger than its row and column allow: calibrate again"
    )]
    MomentEntry {
        /// Row of the first such number.
        row: usize,
        /// Column of the first such number.
        col: usize,
        /// The number.
        value: f64,
    },
    /// A second moment has a negative eigenvalue that rounding does not explain.
    #[error(
        "the second moment has an eigenvalue of {smallest:e} beside one of {largest:e}, expected none below zero: calibrate again"
    )]
    Indefinite {
        /// Its smallest eigenvalue.
        smallest: f64,
        /// Its largest eigenvalue.
        largest: f64,
    },
    /// The shrinkage of a second moment is not a part of a whole.
    #[error("a shrinkage of {found} is not possible: choose 0 to 1")]
    Shrinkage {
        /// The shrinkage asked for.
        found: f64,
    },
    /// A second moment is damped by less than nothing.
    #[error("a damping of {found} is not possible: choose a finite number of at least 0")]
    Damping {
        /// The damping asked for.
        found: f64,
    },
    /// A second moment is singular, or not one, in spite of its damping.
    #[error(
        "the second moment has no part of its own in channel {index}: raise its damping, or calibrate again"
    )]
    NotDefinite {
        /// The first such channel, from behind.
        index: usize,
    },
    /// Rows are no whole blocks of a code.
    #[error("rows of {cols} numbers are not whole blocks of {block}: choose another code")]
    Blocks {
        /// Numbers in a row.
        cols: usize,
        /// Numbers in a block.
        block: usize,
    },
    /// A code has no scales for what numbers of a block are, or what they become when they make up for errors.
    #[error(
        "the block at row {row}, column {col} holds numbers that are beyond the code: choose another, or keep the matrix as it is"
    )]
    NoScales {
        /// Which row.
        row: usize,
        /// The first column of the block.
        col: usize,
    },
    /// The exponent of a gauge is out of range.
    #[error("a gauge exponent of {found} is not possible: choose 0 to 2")]
    Exponent {
        /// The exponent asked for.
        found: f64,
    },
    /// A diagonal gauge holds an entry without a usable inverse.
    #[error(
        "gauge entry {index} is {value}, expected a finite number above zero and above 1e-12 of the largest: raise it"
    )]
    GaugeEntry {
        /// Which entry.
        index: usize,
        /// The entry.
        value: f64,
    },
    /// A gauge belongs to another number of channels.
    #[error("the gauge has {found} channels, the weight {expected}: pass the gauge of this slot")]
    GaugeOrder {
        /// Channels of the weight.
        expected: usize,
        /// Channels of the gauge.
        found: usize,
    },
    /// Factors do not have the lengths that their rank demands.
    #[error(
        "a weight of {rows} x {cols} at rank {rank} has factors of {rank} x {cols} and {rows} x {rank}, found {a} and {b} numbers: pass both factors whole"
    )]
    Factors {
        /// Rows of the weight.
        rows: usize,
        /// Columns of the weight.
        cols: usize,
        /// The rank.
        rank: usize,
        /// Numbers in `A`.
        a: usize,
        /// Numbers in `B`.
        b: usize,
    },
    /// A vector over the inputs has another length.
    #[error("a vector over {expected} inputs holds {found} numbers: pass that of the same slot")]
    VectorLength {
        /// Inputs of the weight or the basis.
        expected: usize,
        /// How many numbers the vector holds.
        found: usize,
    },
    /// A vector over the inputs holds a number that is infinite or not a number.
    #[error(
        "entry {index} of a vector over the inputs is {value}, expected a finite number: calibrate again"
    )]
    VectorEntry {
        /// Which entry.
        index: usize,
        /// The entry.
        value: f64,
    },
    /// A mean that no distribution with this second moment has.
    #[error(
        "channel {index} has a mean of {mean:e} and a mean square of {second:e}, which is less than the mean's square: calibrate again"
    )]
    MeanBeyondMoment {
        /// Which channel.
        index: usize,
        /// Its mean.
        mean: f64,
        /// Its second moment.
        second: f64,
    },
    /// A direction of length zero.
    #[error("the direction to keep is zero: leave it out")]
    NoDirection,
    /// Exempt channels are not inputs of the weight, or not in ascending order.
    #[error(
        "exempt channel {channel} is not possible: name each of the {inputs} inputs at most once, in ascending order"
    )]
    Channel {
        /// The first channel that is out of order or out of range.
        channel: usize,
        /// Inputs of the weight.
        inputs: usize,
    },
    /// The iteration of the decomposition did not converge.
    #[error("the decomposition of a matrix of order {order} did not converge: keep the slot dense")]
    NoConvergence {
        /// Order of the matrix decomposed.
        order: usize,
    },
    /// The device that multiplies and decomposes did not.
    #[error("linear algebra on the device: {message}")]
    Device {
        /// What it says.
        message: String,
    },
}

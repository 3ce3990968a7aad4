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
    /// The iteration of the decomposition did not converge.
    #[error("the decomposition of a matrix of order {order} did not converge: keep the slot dense")]
    NoConvergence {
        /// Order of the matrix decomposed.
        order: usize,
    },
}

//! Shape errors.

use thiserror::Error;

/// A size that does not fit the other arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{argument}: expected {expected}, found {actual}")]
pub struct ShapeError {
    /// Argument and unit, e.g. `"x (numbers)"`.
    pub argument: &'static str,
    /// Size required by the other arguments.
    pub expected: usize,
    /// Actual size.
    pub actual: usize,
}

impl ShapeError {
    pub(crate) const fn new(argument: &'static str, expected: usize, actual: usize) -> Self {
        ShapeError {
            argument,
            expected,
            actual,
        }
    }
}

pub(crate) fn check_size(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), ShapeError> {
    if found == expected {
        Ok(())
    } else {
        Err(ShapeError::new(what, expected, found))
    }
}

/// Returns the product of `factors`; on overflow, an error that no slice can satisfy.
pub(crate) fn checked_product(what: &'static str, factors: &[usize]) -> Result<usize, ShapeError> {
    factors
        .iter()
        .try_fold(1usize, |product, &factor| product.checked_mul(factor))
        .ok_or(ShapeError::new(what, usize::MAX, 0))
}

/// Checks that `found` is the product of `factors`, which may overflow.
pub(crate) fn check_numbers(
    what: &'static str,
    factors: &[usize],
    found: usize,
) -> Result<(), ShapeError> {
    check_size(what, checked_product(what, factors)?, found)
}

pub(crate) fn check_at_most(
    what: &'static str,
    most: usize,
    found: usize,
) -> Result<(), ShapeError> {
    if found <= most {
        Ok(())
    } else {
        Err(ShapeError::new(what, most, found))
    }
}

pub(crate) fn check_rows(what: &'static str, width: usize, found: usize) -> Result<(), ShapeError> {
    match found.checked_rem(width) {
        Some(0) => Ok(()),
        None if found == 0 => Ok(()),
        _ => Err(ShapeError::new(what, width, found)),
    }
}

pub(crate) fn check_rope(
    numbers: usize,
    head_size: usize,
    cos: usize,
    sin: usize,
) -> Result<(), ShapeError> {
    let what = "x (numbers, a multiple of the head size)";
    check_rows(what, head_size, numbers)?;
    check_size("sin (pairs)", cos, sin)?;
    check_at_most("cos (pairs, at most)", head_size / 2, cos)
}

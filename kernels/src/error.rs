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

pub(crate) fn check_size(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), ShapeError> {
    if found == expected {
        Ok(())
    } else {
        Err(ShapeError {
            argument: what,
            expected,
            actual: found,
        })
    }
}

/// Returns the product of `factors`; on overflow, an error that no slice can satisfy.
pub(crate) fn checked_product(what: &'static str, factors: &[usize]) -> Result<usize, ShapeError> {
    factors
        .iter()
        .try_fold(1usize, |product, &factor| product.checked_mul(factor))
        .ok_or(ShapeError {
            argument: what,
            expected: usize::MAX,
            actual: 0,
        })
}

pub(crate) fn check_rows(what: &'static str, width: usize, found: usize) -> Result<(), ShapeError> {
    match found.checked_rem(width) {
        Some(0) => Ok(()),
        None if found == 0 => Ok(()),
        _ => Err(ShapeError {
            argument: what,
            expected: width,
            actual: found,
        }),
    }
}

pub(crate) fn check_rope(
    numbers: usize,
    head_size: usize,
    cos: usize,
    sin: usize,
) -> Result<(), ShapeError> {
    check_rows(
        "x (numbers, a multiple of the head size)",
        head_size,
        numbers,
    )?;
    check_size("sin (pairs)", cos, sin)?;
    if cos > head_size / 2 {
        return Err(ShapeError {
            argument: "cos (pairs, at most)",
            expected: head_size / 2,
            actual: cos,
        });
    }
    Ok(())
}

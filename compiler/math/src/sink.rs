//! Directions and channels that a projection must not lose.
//!
//! The first position of a sequence draws attention from all others (an attention sink) and lies
//! along one direction `ŝ`, with a few channels of enormous magnitude; a basis that misses either
//! breaks attention. A [`Sink`] adds `ŝ` to a basis, and exempt channels stay exact.

use serde::{Deserialize, Serialize};

use super::covariance::check_finite;
use super::gauge::check_diagonal;
use super::{FactoriseError, Weight, check_length};

/// Returns the root mean square coverage of a direction by a random basis, `(rank / width)^½`: the
/// usual [threshold](Sink::threshold).
pub fn random_coverage(rank: usize, width: usize) -> f64 {
    let part = rank as f64 / width.max(1) as f64;
    part.min(1.0).sqrt()
}

const MIN_REMAINDER: f64 = 1e-12;

/// Input direction that a factorisation must cover.
#[derive(Clone, Copy, Debug)]
pub struct Sink<'a> {
    /// Direction `ŝ`, one number per input, of any non-zero length.
    pub direction: &'a [f64],
    /// Coverage from which the factors stay unchanged, usually [`random_coverage`].
    pub threshold: f64,
}

impl<'a> Sink<'a> {
    /// Returns the same sink along another direction, if any.
    pub(super) fn along<'b>(self, direction: Option<&'b [f64]>) -> Option<Sink<'b>> {
        let threshold = self.threshold;
        direction.map(|direction| Sink {
            direction,
            threshold,
        })
    }

    pub(super) fn into_unit(self, inputs: usize) -> Result<(Vec<f64>, f64), FactoriseError> {
        check_length(inputs, self.direction.len())?;
        Ok((normalise(self.direction)?, self.threshold))
    }
}

/// Outcome of a [`Sink`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SinkOutcome {
    /// Coverage by the unmodified factors; under a gauge `G` that of `G⁻¹ ŝ` by the vectors of the
    /// decomposition.
    pub coverage: Coverage,
    /// True if the direction became the first component.
    pub appended: bool,
}

/// Coverage of a direction by the span of an orthonormal basis.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Coverage {
    /// `‖V ŝ‖` for the rows `v_k` of `V` and the unit direction `ŝ`: 0 to 1, independent of the
    /// basis of a span.
    pub norm: f64,
    /// `max_k |⟨ŝ, v_k⟩|`, as in the literature.
    pub largest: f64,
}

/// Returns the coverage of `direction` by the orthonormal rows of `basis`, row-major `[k,
/// direction.len()]`.
pub fn coverage(basis: &[f64], direction: &[f64]) -> Result<Coverage, FactoriseError> {
    let unit = normalise(direction)?;
    check_width(basis, &unit)?;
    Ok(coverage_of(basis, &unit))
}

/// Appends a row to the orthonormal rows of `basis`, row-major `[k, direction.len()]`, so that it
/// spans `direction`, unless it already [covers](coverage) `threshold` of it. Returns the coverage
/// before and true if a row was added.
///
/// Orthogonalising twice suffices (Giraud, Langou and Rozložník 2005).
pub fn append_direction(
    basis: &mut Vec<f64>,
    direction: &[f64],
    threshold: f64,
) -> Result<(Coverage, bool), FactoriseError> {
    let unit = normalise(direction)?;
    check_width(basis, &unit)?;
    let before = coverage_of(basis, &unit);
    if before.norm >= threshold {
        return Ok((before, false));
    }
    let mut row = unit;
    for _ in 0..2 {
        for v in basis.chunks_exact(row.len()) {
            let part = dot(v, &row);
            row.iter_mut().zip(v).for_each(|(x, v)| *x -= part * v);
        }
        let norm = dot(&row, &row).sqrt();
        if norm < MIN_REMAINDER {
            return Ok((before, false));
        }
        row.iter_mut().for_each(|x| *x /= norm);
    }
    basis.extend(row);
    Ok((before, true))
}

fn check_width(basis: &[f64], unit: &[f64]) -> Result<(), FactoriseError> {
    if basis.len().is_multiple_of(unit.len()) {
        return Ok(());
    }
    Err(FactoriseError::VectorLength {
        expected: basis.len(),
        found: unit.len(),
    })
}

fn coverage_of(basis: &[f64], unit: &[f64]) -> Coverage {
    coverage_of_parts(basis.chunks_exact(unit.len()).map(|row| dot(row, unit)))
}

pub(super) fn coverage_of_parts(parts: impl Iterator<Item = f64>) -> Coverage {
    let (mut squares, mut largest) = (0.0, 0.0f64);
    for part in parts {
        squares += part * part;
        largest = largest.max(part.abs());
    }
    Coverage {
        norm: squares.sqrt(),
        largest,
    }
}

fn normalise(direction: &[f64]) -> Result<Vec<f64>, FactoriseError> {
    check_finite(direction)?;
    let largest = direction.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    if largest == 0.0 {
        return Err(FactoriseError::NoDirection);
    }
    let mut unit: Vec<f64> = direction.iter().map(|v| v / largest).collect();
    let norm = dot(&unit, &unit).sqrt();
    unit.iter_mut().for_each(|v| *v /= norm);
    Ok(unit)
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Returns the `count` input columns of largest norm over all `weights`, ascending: exempt channels
/// without calibration.
pub fn largest_columns(weights: &[Weight<'_>], count: usize) -> Result<Vec<usize>, FactoriseError> {
    let inputs = Weight::check_all(weights)?;
    let mut energy = vec![0.0; inputs];
    for weight in weights {
        for row in weight.values.chunks_exact(inputs) {
            for (sum, &v) in energy.iter_mut().zip(row) {
                *sum += f64::from(v) * f64::from(v);
            }
        }
    }
    indices_of_largest(&energy, count)
}

/// Returns the `count` channels of largest second moment `C_ii = E[x_i²]`, ascending: exempt
/// channels after calibration.
pub fn largest_moments(diagonal: &[f64], count: usize) -> Result<Vec<usize>, FactoriseError> {
    check_diagonal(diagonal)?;
    indices_of_largest(diagonal, count)
}

fn indices_of_largest(energy: &[f64], count: usize) -> Result<Vec<usize>, FactoriseError> {
    if count > energy.len() {
        return Err(FactoriseError::Rank {
            requested: count,
            largest: energy.len(),
        });
    }
    let mut order: Vec<usize> = (0..energy.len()).collect();
    order.sort_by(|&i, &j| energy[j].total_cmp(&energy[i]));
    order.truncate(count);
    order.sort_unstable();
    Ok(order)
}

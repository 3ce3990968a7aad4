//! Quality of an artifact with refinements at active fractions of its weight bytes.

use serde::{Deserialize, Serialize};

use super::features::is_refinement;
use super::quality::LONGEST_NUMBER;
use super::{HtzError, Manifest, Record};

const MAX_POINTS: usize = 64;

/// Quality with only the first refinements active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct ActiveFractionPoint {
    /// Number of active refinements.
    pub refinements: u64,
    /// Weight bytes read per token.
    pub bytes: u64,
    /// The same relative to all refinements active.
    pub fraction: f64,
    /// Mean Kullback–Leibler divergence, in nats.
    pub kl: f64,
    /// Perplexity relative to the source's.
    pub perplexity_ratio: f64,
}

impl ActiveFractionPoint {
    pub(super) fn with_longest_numbers() -> ActiveFractionPoint {
        ActiveFractionPoint {
            refinements: u64::MAX,
            bytes: u64::MAX,
            fraction: LONGEST_NUMBER,
            kl: LONGEST_NUMBER,
            perplexity_ratio: LONGEST_NUMBER,
        }
    }
}

/// Checks that the points fit the artifact and range from base only to all refinements.
pub(super) fn check_points(manifest: &Manifest) -> Result<(), HtzError> {
    let points = &manifest.dial;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Ok(());
    };
    let entries = manifest.tensors.iter();
    let refined = entries.filter(|entry| is_refinement(entry.role)).count() as u64;
    if points.len() > MAX_POINTS || refined == 0 {
        let expected = match refined {
            0 => "none without refinements".to_owned(),
            _ => format!("at most {MAX_POINTS}"),
        };
        return Err(Record::ActiveFraction.error("number of points", expected, points.len()));
    }
    if (first.refinements, last.refinements) != (0, refined) {
        let found = format!("{} and {}", first.refinements, last.refinements);
        let expected = format!("0 and {refined}");
        let property = "refinements of the first and the last point";
        return Err(Record::ActiveFraction.error(property, expected, found));
    }
    for (before, after) in points.iter().zip(&points[1..]) {
        if before.refinements >= after.refinements || before.bytes >= after.bytes {
            let found = format!("{} behind {}", after.refinements, before.refinements);
            let expected = "more than before, and more bytes";
            return Err(Record::ActiveFraction.error("refinements of a point", expected, found));
        }
    }
    for point in points {
        let expected = point.bytes as f64 / last.bytes.max(1) as f64;
        if (point.fraction - expected).abs() > 1e-6 {
            return Err(Record::ActiveFraction.error("fraction", expected, point.fraction));
        }
        if !(point.kl.is_finite() && point.kl >= 0.0) {
            return Err(Record::ActiveFraction.error(
                "kl",
                "a finite number, not negative",
                point.kl,
            ));
        }
        let ratio = point.perplexity_ratio;
        if !(ratio.is_finite() && ratio > 0.0) {
            let expected = "a finite number above zero";
            return Err(Record::ActiveFraction.error("perplexity_ratio", expected, ratio));
        }
    }
    Ok(())
}

//! Active fraction: the part of a model's weight bytes that every token reads.
//!
//! An elastic artifact stores residuals of some matrices separately, ordered by benefit per byte. A
//! setting activates the first of them, and below that only the leading components of low-rank
//! factors.

use std::fmt;

use htc_formats::model::{MatrixId, Part, Role};
use htc_formats::source::{ModelFile, ModelTensor};

use crate::error::{ExecError, Result};
use crate::linear::RankFraction;

/// Tolerance of a fraction.
const FRACTION_TOLERANCE: f64 = 0.001;

/// Active fraction of the weight bytes, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct ActiveFraction(f64);

impl ActiveFraction {
    /// All weights.
    pub const FULL: ActiveFraction = ActiveFraction(1.0);

    /// Creates an active fraction.
    ///
    /// # Errors
    /// [`ExecError::Fraction`] outside (0, 1].
    pub fn new(fraction: f64) -> Result<Self> {
        if fraction > 0.0 && fraction <= 1.0 {
            Ok(ActiveFraction(fraction))
        } else {
            Err(ExecError::Fraction(fraction))
        }
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for ActiveFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Active part of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActiveSetting {
    /// Number of active refinements, from the first.
    pub refinements: usize,
    /// Active fraction of the ranks of factors.
    pub rank: RankFraction,
}

impl ActiveSetting {
    /// All weights.
    pub const FULL: ActiveSetting = ActiveSetting {
        refinements: usize::MAX,
        rank: RankFraction::FULL,
    };

    /// Returns true if the refinement of this index is active.
    pub fn is_active(&self, refinement: usize) -> bool {
        refinement < self.refinements
    }
}

/// Weight bytes of a model, by the part of a setting that controls them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightBytes {
    fixed: u64,
    /// Components and bytes per factor.
    factors: Vec<(usize, u64)>,
    refinements: Vec<u64>,
}

impl WeightBytes {
    /// Computes the weight bytes of a model, without embeddings that are only looked up and KV
    /// cache bases.
    pub fn from_file(file: &ModelFile) -> WeightBytes {
        let head = file
            .tensors
            .iter()
            .filter_map(|t| MatrixId::from_role(t.role));
        let has_head = head.clone().any(|(matrix, _)| matrix == MatrixId::Head);
        let mut dial = WeightBytes::default();
        for tensor in &file.tensors {
            let bytes = tensor.place.len() as u64;
            match tensor.role {
                Role::TokenEmbedding if has_head => {}
                Role::KvBasis { .. } | Role::KvEnergies { .. } => {}
                Role::Refinement { .. } => dial.refinements.push(bytes),
                role => match factor_components(role, tensor) {
                    Some(components) => dial.factors.push((components, bytes)),
                    None => dial.fixed += bytes,
                },
            }
        }
        dial
    }

    /// Returns the number of refinements.
    pub fn refinements(&self) -> usize {
        self.refinements.len()
    }

    /// Returns the bytes that a token reads in a setting.
    pub fn active_bytes(&self, setting: ActiveSetting) -> u64 {
        let refined: u64 = self.refinements.iter().take(setting.refinements).sum();
        let of_factor = |&(components, bytes): &(usize, u64)| match components {
            0 => 0,
            all => (u128::from(bytes) * setting.rank.active_rank(all) as u128 / all as u128) as u64,
        };
        let factors: u64 = self.factors.iter().map(of_factor).sum();
        self.fixed + refined + factors
    }

    /// Returns the active fraction of a setting.
    pub fn fraction(&self, setting: ActiveSetting) -> f64 {
        self.active_bytes(setting) as f64 / self.active_bytes(ActiveSetting::FULL).max(1) as f64
    }

    /// Returns the largest setting within a fraction, plus a thousandth.
    ///
    /// # Errors
    /// [`ExecError::FractionBelow`] below the smallest possible fraction.
    pub fn setting_for(&self, fraction: ActiveFraction) -> Result<ActiveSetting> {
        let allowed =
            (fraction.0 + FRACTION_TOLERANCE) * self.active_bytes(ActiveSetting::FULL) as f64;
        let fits = |setting: &ActiveSetting| self.active_bytes(*setting) as f64 <= allowed;
        let refined = |refinements| ActiveSetting {
            refinements,
            rank: RankFraction::FULL,
        };
        let refined = (0..=self.refinements.len()).rev().map(refined);
        if let Some(found) = refined.clone().find(fits) {
            return Ok(found);
        }
        let most = self.components();
        let (mut fits_none, mut fits_some) = (most, 0);
        while fits_some + 1 < fits_none {
            let middle = fits_some + (fits_none - fits_some) / 2;
            if fits(&self.setting_with_components(middle)?) {
                fits_some = middle
            } else {
                fits_none = middle
            }
        }
        match fits_some {
            0 => Err(ExecError::FractionBelow {
                requested: fraction.0,
                smallest: self.smallest_fraction(),
            }),
            components => self.setting_with_components(components),
        }
    }

    /// Returns the smallest possible active fraction.
    pub fn smallest_fraction(&self) -> f64 {
        let least = self.setting_with_components(1.min(self.components()));
        least.map_or(1.0, |least| self.fraction(least))
    }

    fn components(&self) -> usize {
        let all = self.factors.iter().map(|factor| factor.0);
        all.max().unwrap_or(0)
    }

    /// Returns a setting without refinements and with this many components of the largest factor.
    fn setting_with_components(&self, components: usize) -> Result<ActiveSetting> {
        let rank = match self.components() {
            0 => RankFraction::FULL,
            most => RankFraction::new(components as f32 / most as f32)?,
        };
        Ok(ActiveSetting {
            refinements: 0,
            rank,
        })
    }
}

/// Returns the components of a factor, if any.
fn factor_components(role: Role, tensor: &ModelTensor) -> Option<usize> {
    match (role, MatrixId::from_role(role)) {
        (Role::Basis { .. }, _) => Some(tensor.rows),
        (_, Some((_, Part::A | Part::ResidualA))) => Some(tensor.rows),
        (_, Some((_, Part::B | Part::ResidualB | Part::Projected))) => Some(tensor.cols),
        _ => None,
    }
}

/// Returns the index of a matrix's refinement, and its tensor.
pub(crate) fn find_refinement(file: &ModelFile, matrix: MatrixId) -> Option<(usize, &ModelTensor)> {
    let role = Role::Refinement { matrix };
    let mut refinements = file.refinements().iter().enumerate();
    refinements.find(|(_, tensor)| tensor.role == role)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial() -> WeightBytes {
        WeightBytes {
            fixed: 500,
            factors: vec![(4, 80), (10, 20)],
            refinements: vec![200, 100, 100],
        }
    }

    #[test]
    fn fraction_selects_the_largest_fitting_setting() {
        let dial = dial();
        assert_eq!(dial.active_bytes(ActiveSetting::FULL), 1000);
        let at = |fraction| {
            dial.setting_for(ActiveFraction::new(fraction).unwrap())
                .unwrap()
        };
        for (fraction, refinements) in [
            (1.0, 3),
            (0.998, 2),
            (0.9, 2),
            (0.899, 2),
            (0.898, 1),
            (0.8, 1),
            (0.6, 0),
        ] {
            assert_eq!(at(fraction).refinements, refinements, "{fraction}");
            assert_eq!(at(fraction).rank, RankFraction::FULL);
        }
        let mut before = 600;
        for percent in (53..60).rev() {
            let setting = at(f64::from(percent) / 100.0);
            let bytes = dial.active_bytes(setting);
            assert_eq!(setting.refinements, 0);
            assert!(
                bytes <= 10 * percent as u64 + 1 && bytes <= before,
                "{percent}: {bytes}"
            );
            before = bytes;
        }
        assert!(before <= 531);
        let fault = dial
            .setting_for(ActiveFraction::new(0.5).unwrap())
            .unwrap_err();
        assert!(fault.to_string().contains("0.522"), "{fault}");
    }

    #[test]
    fn cut_factors_keep_the_most_components_that_fit() {
        let dial = WeightBytes {
            fixed: 500,
            factors: vec![(7, 700), (40, 333), (12, 90)],
            refinements: vec![50],
        };
        let least = dial.smallest_fraction();
        for thousandths in 1..=1000 {
            let fraction = f64::from(thousandths) / 1000.0;
            let allowed =
                (fraction + FRACTION_TOLERANCE) * dial.active_bytes(ActiveSetting::FULL) as f64;
            let fits = |setting: &ActiveSetting| dial.active_bytes(*setting) as f64 <= allowed;
            let all = (1..=40)
                .rev()
                .map(|components| dial.setting_with_components(components).unwrap());
            match (
                all.clone().find(fits),
                dial.setting_for(ActiveFraction(fraction)),
            ) {
                (Some(expected), Ok(found)) if found.refinements == 0 => {
                    assert_eq!(
                        dial.active_bytes(found),
                        dial.active_bytes(expected),
                        "{fraction}"
                    );
                }
                (Some(_), Ok(found)) => assert!(found.refinements > 0),
                (None, Err(ExecError::FractionBelow { smallest: said, .. })) => {
                    assert_eq!(said, least);
                    assert!(fraction < least);
                }
                other => panic!("{fraction}: {other:?}"),
            }
        }
    }

    #[test]
    fn fractions_outside_0_to_1_are_refused() {
        for fraction in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
            assert!(ActiveFraction::new(fraction).is_err(), "{fraction}");
        }
        assert_eq!(ActiveFraction::new(1.0).unwrap(), ActiveFraction::FULL);
    }
}

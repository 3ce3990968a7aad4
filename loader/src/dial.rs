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
mod tests;

//! The dial: how much of a model every token touches.
//!
//! An elastic artifact stores what some matrices lack beside them, as planes of their own, in the order of what a byte
//! of them gains. In use are the first so many, and where not even one of them fits, the leading components of what
//! is in factors: any part of the bytes is a point between.

use std::fmt;

use htc_formats::model::{MatrixId, Part, Role};
use htc_formats::source::{ModelFile, ModelTensor};

use crate::error::ExecError;
use crate::linear::RankFraction;

/// By which a setting may touch more than a fraction says, as a part of the bytes.
const THOUSANDTH: f64 = 0.001;

/// A part of the bytes that a token touches, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Fraction(f64);

impl Fraction {
    /// All of them.
    pub const FULL: Fraction = Fraction(1.0);

    /// # Errors
    /// [`ExecError::Fraction`] outside (0, 1].
    pub fn new(fraction: f64) -> Result<Self, ExecError> {
        match fraction > 0.0 && fraction <= 1.0 {
            true => Ok(Fraction(fraction)),
            false => Err(ExecError::Fraction(fraction)),
        }
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What of a model is in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Refinements, the first ones.
    pub refinements: usize,
    /// Of what is in factors.
    pub rank: RankFraction,
}

impl Setting {
    /// All of it.
    pub const FULL: Setting = Setting {
        refinements: usize::MAX,
        rank: RankFraction::FULL,
    };

    /// Whether the refinement of this index is in use.
    pub fn has(&self, refinement: usize) -> bool {
        refinement < self.refinements
    }
}

/// What the weights of a model weigh: the bytes that every token touches, by what decides on them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dial {
    /// What is always touched.
    fixed: u64,
    /// Components and bytes of every factor and basis.
    factors: Vec<(usize, u64)>,
    /// Bytes of the refinements, in the order in which they come into use.
    refinements: Vec<u64>,
}

impl Dial {
    /// That of a model. The rows of an embedding that is not the head, too, are looked up and touch next to nothing; bases for a
    /// KV cache are no weights.
    pub fn of(file: &ModelFile) -> Dial {
        let head = file.tensors.iter().filter_map(|t| MatrixId::of(t.role));
        let has_head = head.clone().any(|(matrix, _)| matrix == MatrixId::Head);
        let mut dial = Dial::default();
        for tensor in &file.tensors {
            let bytes = tensor.place.len() as u64;
            match tensor.role {
                Role::TokenEmbedding if has_head => {}
                // Read once, and not by the forward pass.
                Role::KvBasis { .. } | Role::KvEnergies { .. } => {}
                Role::Refinement { .. } => dial.refinements.push(bytes),
                role => match components(role, tensor) {
                    Some(components) => dial.factors.push((components, bytes)),
                    None => dial.fixed += bytes,
                },
            }
        }
        dial
    }

    /// Refinements that there are.
    pub fn refinements(&self) -> usize {
        self.refinements.len()
    }

    /// Bytes that a token touches in a setting.
    pub fn bytes(&self, setting: Setting) -> u64 {
        let refined: u64 = self.refinements.iter().take(setting.refinements).sum();
        let of_factor = |&(components, bytes): &(usize, u64)| match components {
            0 => 0,
            all => (u128::from(bytes) * setting.rank.of(all) as u128 / all as u128) as u64,
        };
        let factors: u64 = self.factors.iter().map(of_factor).sum();
        self.fixed + refined + factors
    }

    /// The part of the bytes that a setting touches.
    pub fn fraction(&self, setting: Setting) -> f64 {
        self.bytes(setting) as f64 / self.bytes(Setting::FULL).max(1) as f64
    }

    /// The setting that touches as much of the bytes as a fraction allows, to a thousandth of them: without the last refinements, and where
    /// none is left with less components of what is in factors.
    ///
    /// # Errors
    /// [`ExecError::FractionBelow`] for less than the least that the model can do with.
    pub fn at(&self, fraction: Fraction) -> Result<Setting, ExecError> {
        // As fractions are read off a table.
        let allowed = (fraction.0 + THOUSANDTH) * self.bytes(Setting::FULL) as f64;
        let fits = |setting: &Setting| self.bytes(*setting) as f64 <= allowed;
        let refined = |refinements| Setting {
            refinements,
            rank: RankFraction::FULL,
        };
        let refined = (0..=self.refinements.len()).rev().map(refined);
        if let Some(found) = refined.clone().find(fits) {
            return Ok(found);
        }
        // More components never touch less.
        let most = self.components();
        let (mut fits_none, mut fits_some) = (most, 0);
        while fits_some + 1 < fits_none {
            let middle = fits_some + (fits_none - fits_some) / 2;
            match fits(&self.cut(middle)?) {
                true => fits_some = middle,
                false => fits_none = middle,
            }
        }
        match fits_some {
            0 => Err(ExecError::FractionBelow {
                asked: fraction.0,
                least: self.least(),
            }),
            components => self.cut(components),
        }
    }

    /// The least part of the bytes that the model can do with.
    pub fn least(&self) -> f64 {
        let least = self.cut(1.min(self.components()));
        least.map_or(1.0, |least| self.fraction(least))
    }

    /// The most components that a factor has.
    fn components(&self) -> usize {
        let all = self.factors.iter().map(|factor| factor.0);
        all.max().unwrap_or(0)
    }

    /// No refinement, and of the factor with most components so many of them.
    fn cut(&self, components: usize) -> Result<Setting, ExecError> {
        let rank = match self.components() {
            0 => RankFraction::FULL,
            most => RankFraction::new(components as f32 / most as f32)?,
        };
        Ok(Setting {
            refinements: 0,
            rank,
        })
    }
}

/// The components of a factor or a basis; `None` for what is used as a whole.
fn components(role: Role, tensor: &ModelTensor) -> Option<usize> {
    match (role, MatrixId::of(role)) {
        (Role::Basis { .. }, _) => Some(tensor.rows),
        (_, Some((_, Part::A | Part::ResidualA))) => Some(tensor.rows),
        (_, Some((_, Part::B | Part::ResidualB | Part::Projected))) => Some(tensor.cols),
        _ => None,
    }
}

/// The place of a matrix' refinement among those of a model, with its tensor.
pub(crate) fn refinement(file: &ModelFile, matrix: MatrixId) -> Option<(usize, &ModelTensor)> {
    let all = file.tensors.iter();
    let all = all.filter(|tensor| matches!(tensor.role, Role::Refinement { .. }));
    let role = Role::Refinement { matrix };
    all.enumerate().find(|(_, tensor)| tensor.role == role)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial() -> Dial {
        Dial {
            fixed: 500,
            factors: vec![(4, 80), (10, 20)],
            refinements: vec![200, 100, 100],
        }
    }

    #[test]
    fn a_fraction_touches_as_much_as_it_may() {
        let dial = dial();
        assert_eq!(dial.bytes(Setting::FULL), 1000);
        let at = |fraction| dial.at(Fraction::new(fraction).unwrap()).unwrap();
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
        // Then components: never more than allowed, and no step that would fit is left out.
        let mut before = 600;
        for percent in (53..60).rev() {
            let setting = at(f64::from(percent) / 100.0);
            let bytes = dial.bytes(setting);
            assert_eq!(setting.refinements, 0);
            assert!(
                bytes <= 10 * percent as u64 + 1 && bytes <= before,
                "{percent}: {bytes}"
            );
            before = bytes;
        }
        assert!(before <= 531);
        let fault = dial.at(Fraction::new(0.5).unwrap()).unwrap_err();
        assert!(fault.to_string().contains("0.522"), "{fault}");
    }

    /// Of all that fit the one with most components.
    #[test]
    fn cut_factors_have_as_many_components_as_fit() {
        let dial = Dial {
            fixed: 500,
            factors: vec![(7, 700), (40, 333), (12, 90)],
            refinements: vec![50],
        };
        let least = dial.least();
        for thousandths in 1..=1000 {
            let fraction = f64::from(thousandths) / 1000.0;
            let allowed = (fraction + THOUSANDTH) * dial.bytes(Setting::FULL) as f64;
            let fits = |setting: &Setting| dial.bytes(*setting) as f64 <= allowed;
            let all = (1..=40)
                .rev()
                .map(|components| dial.cut(components).unwrap());
            match (all.clone().find(fits), dial.at(Fraction(fraction))) {
                (Some(expected), Ok(found)) if found.refinements == 0 => {
                    assert_eq!(dial.bytes(found), dial.bytes(expected), "{fraction}");
                }
                (Some(_), Ok(found)) => assert!(found.refinements > 0),
                (None, Err(ExecError::FractionBelow { least: said, .. })) => {
                    assert_eq!(said, least);
                    assert!(fraction < least);
                }
                other => panic!("{fraction}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_fraction_is_a_part() {
        for fraction in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
            assert!(Fraction::new(fraction).is_err(), "{fraction}");
        }
        assert_eq!(Fraction::new(1.0).unwrap(), Fraction::FULL);
    }
}

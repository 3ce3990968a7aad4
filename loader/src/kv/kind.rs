//! Kinds of KV cache and their names.

use std::fmt;
use std::str::FromStr;

use htc_formats::DType;

use crate::error::ExecError;

/// Number format of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvType {
    /// float16.
    #[default]
    F16,
    /// float32, for comparisons without rounding and models whose keys exceed float16.
    F32,
    /// 32 signed bytes with a float16 scale: 34 bytes.
    Q8_0,
    /// 32 codes of four bits with a float16 scale: 18 bytes.
    Q4_0,
}

// As in llama.cpp.
htc_formats::names!(KvType { F16 "f16", F32 "f32", Q8_0 "q8_0", Q4_0 "q4_0" });

impl KvType {
    /// Returns the tensor type.
    pub fn dtype(self) -> DType {
        match self {
            KvType::F16 => DType::F16,
            KvType::F32 => DType::F32,
            KvType::Q8_0 => DType::Q8_0,
            KvType::Q4_0 => DType::Q4_0,
        }
    }
}

/// Rule for the rank per head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvRank {
    /// Fraction of the head size, in (0, 1]: rounded, at least 1.
    Ratio(f32),
    /// Smallest rank with this fraction of the energy, in (0, 1]; the maximum over the heads of a
    /// layer (OjaKV, appendix A.2).
    Energy(f32),
}

impl KvRank {
    /// Returns the rank, given the energies of every head of a layer.
    pub(super) fn resolve<'a>(self, size: usize, heads: impl Iterator<Item = &'a [f32]>) -> usize {
        match self {
            KvRank::Ratio(ratio) => {
                ((f64::from(ratio) * size as f64).round() as usize).clamp(1, size.max(1))
            }
            KvRank::Energy(part) => heads
                .map(|head| rank_for_energy(head, part))
                .max()
                .unwrap_or(1),
        }
    }

    pub(super) fn check(self) -> Result<(), ExecError> {
        let (KvRank::Ratio(part) | KvRank::Energy(part)) = self;
        if part > 0.0 && part <= 1.0 {
            Ok(())
        } else {
            Err(ExecError::KvFractionRange { found: part })
        }
    }
}

/// Returns the number of leading energies that make up `part`.
fn rank_for_energy(energies: &[f32], part: f32) -> usize {
    let total: f64 = energies.iter().map(|&energy| f64::from(energy)).sum();
    let mut sum = 0.0;
    let enough = energies.iter().position(|&energy| {
        sum += f64::from(energy);
        sum >= f64::from(part) * total
    });
    enough.map_or(energies.len(), |index| index + 1).max(1)
}

impl fmt::Display for KvRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvRank::Ratio(ratio) => write!(f, "{ratio}"),
            KvRank::Energy(part) => write!(f, "e{part}"),
        }
    }
}

impl FromStr for KvRank {
    type Err = ExecError;

    fn from_str(text: &str) -> Result<Self, ExecError> {
        let (make, number): (fn(f32) -> KvRank, _) = match text.strip_prefix('e') {
            Some(number) => (KvRank::Energy, number),
            None => (KvRank::Ratio, text),
        };
        let rank = make(number.parse().map_err(|_| ExecError::KvName {
            found: text.to_owned(),
        })?);
        rank.check()?;
        Ok(rank)
    }
}

/// Storage format of positions in the KV cache.
///
/// [`FromStr`] and [`Display`](fmt::Display): `f32`, `f16`, `q8_0`, `q4_0`, `q8_0-rotated`,
/// `q4_0-rotated`, `static:R`, `static-hybrid:R` and `oja:R`, where `R` is a fraction of the head
/// size such as `0.6`, or of the energy, such as `e0.95`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum KvKind {
    /// float32.
    F32,
    /// float16.
    #[default]
    F16,
    /// [`KvType::Q8_0`].
    Q8_0 {
        /// Applies a Hadamard transform to heads.
        rotated: bool,
    },
    /// [`KvType::Q4_0`].
    Q4_0 {
        /// Applies a Hadamard transform to heads.
        rotated: bool,
    },
    /// Coordinates in fixed bases.
    Static {
        /// Rank per head.
        rank: KvRank,
    },
    /// [`Static`](KvKind::Static) except for the first and the last positions.
    StaticHybrid {
        /// Rank per head.
        rank: KvRank,
    },
    /// [`StaticHybrid`](KvKind::StaticHybrid) with bases that adapt by Oja's rule (OjaKV).
    Oja {
        /// Rank per head.
        rank: KvRank,
    },
}

impl KvKind {
    /// Returns the type of the stored numbers or coordinates.
    pub fn stored_type(self) -> KvType {
        match self {
            KvKind::F32 => KvType::F32,
            KvKind::Q8_0 { .. } => KvType::Q8_0,
            KvKind::Q4_0 { .. } => KvType::Q4_0,
            _ => KvType::F16,
        }
    }

    /// Returns true if heads get a Hadamard transform.
    pub fn is_rotated(self) -> bool {
        matches!(
            self,
            KvKind::Q8_0 { rotated: true } | KvKind::Q4_0 { rotated: true }
        )
    }

    /// Returns the rank, for kinds that need bases.
    pub fn rank(self) -> Option<KvRank> {
        match self {
            KvKind::Static { rank } | KvKind::StaticHybrid { rank } | KvKind::Oja { rank } => {
                Some(rank)
            }
            _ => None,
        }
    }

    /// Returns true if the first and the last positions stay in full.
    pub fn has_exemptions(self) -> bool {
        matches!(self, KvKind::StaticHybrid { .. } | KvKind::Oja { .. })
    }
}

impl From<KvType> for KvKind {
    fn from(kv_type: KvType) -> Self {
        match kv_type {
            KvType::F16 => KvKind::F16,
            KvType::F32 => KvKind::F32,
            KvType::Q8_0 => KvKind::Q8_0 { rotated: false },
            KvType::Q4_0 => KvKind::Q4_0 { rotated: false },
        }
    }
}

impl fmt::Display for KvKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turned = if self.is_rotated() { "-rotated" } else { "" };
        match self {
            KvKind::F32 | KvKind::F16 | KvKind::Q8_0 { .. } | KvKind::Q4_0 { .. } => {
                write!(f, "{}{turned}", self.stored_type().name())
            }
            KvKind::Static { rank } => write!(f, "static:{rank}"),
            KvKind::StaticHybrid { rank } => write!(f, "static-hybrid:{rank}"),
            KvKind::Oja { rank } => write!(f, "oja:{rank}"),
        }
    }
}

impl FromStr for KvKind {
    type Err = ExecError;

    fn from_str(text: &str) -> Result<Self, ExecError> {
        let unknown = || ExecError::KvName {
            found: text.chars().take(64).collect(),
        };
        let Some((name, rank)) = text.split_once(':') else {
            return match text {
                "f32" => Ok(KvKind::F32),
                "f16" => Ok(KvKind::F16),
                "q8_0" => Ok(KvKind::Q8_0 { rotated: false }),
                "q4_0" => Ok(KvKind::Q4_0 { rotated: false }),
                "q8_0-rotated" => Ok(KvKind::Q8_0 { rotated: true }),
                "q4_0-rotated" => Ok(KvKind::Q4_0 { rotated: true }),
                _ => Err(unknown()),
            };
        };
        let rank = rank.parse().map_err(|error| match error {
            ExecError::KvName { .. } => unknown(),
            error => error,
        })?;
        match name {
            "static" => Ok(KvKind::Static { rank }),
            "static-hybrid" => Ok(KvKind::StaticHybrid { rank }),
            "oja" => Ok(KvKind::Oja { rank }),
            _ => Err(unknown()),
        }
    }
}

//! KV cache options and the resulting plan for a model.

use super::KvShape;
use super::bases::KvBases;
use super::kind::{KvKind, KvType};
use crate::error::ExecError;

/// Options of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct KvOptions {
    /// Storage format.
    pub kind: KvKind,
    /// Number of prompt positions to keep: the last
    /// [`importance_window`](KvOptions::importance_window) and the ones most attended by the last
    /// queries (SnapKV, Li et al. 2024), except in sliding-window layers. `None` keeps all.
    pub max_prompt_positions: Option<usize>,
    /// Maximum number of positions per pass; positions of one pass see each other uncompressed.
    pub max_pass_positions: Option<usize>,
    /// First positions that stay in full.
    pub exempt_start: usize,
    /// Last positions that stay in full.
    pub exempt_recent: usize,
    /// Last queries of a pass that determine importance.
    pub importance_window: usize,
    /// Makes attention read reconstructed keys and values instead of coordinates (OjaKV, section
    /// 3.3). Slower; for comparisons.
    pub reconstruct: bool,
    /// Online basis updates.
    pub oja: OjaOptions,
}

/// Options of online basis updates (OjaKV, table 5).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct OjaOptions {
    /// η of the update after a pass of more than [`period`](OjaOptions::period) positions.
    pub prefill_rate: f32,
    /// η of the other updates.
    pub decode_rate: f32,
    /// Positions that wait in full for an update.
    pub period: usize,
    /// Fraction of a long pass that updates the bases.
    pub salient_fraction: f32,
}

impl Default for OjaOptions {
    fn default() -> Self {
        OjaOptions {
            prefill_rate: 0.1,
            decode_rate: 0.05,
            period: 32,
            salient_fraction: 0.05,
        }
    }
}

impl KvOptions {
    /// Creates default options with this kind.
    pub fn new(kind: impl Into<KvKind>) -> Self {
        KvOptions {
            kind: kind.into(),
            max_prompt_positions: None,
            max_pass_positions: None,
            exempt_start: 32,
            exempt_recent: 32,
            importance_window: 32,
            reconstruct: false,
            oja: OjaOptions::default(),
        }
    }

    /// Returns the smallest valid [`max_prompt_positions`](KvOptions::max_prompt_positions).
    pub fn min_keep(&self) -> usize {
        let both = self
            .exempt_start
            .saturating_add(self.exempt_recent.max(self.importance_window));
        let ends = match self.kind {
            KvKind::StaticHybrid { .. } => both,
            KvKind::Oja { .. } => both.saturating_add(self.oja.period),
            _ => self.importance_window,
        };
        ends.saturating_add(1)
    }

    fn check(&self) -> Result<(), ExecError> {
        if let Some(rank) = self.kind.rank() {
            rank.check()?;
        }
        for (what, found) in [
            ("the rate of updates behind a prompt", self.oja.prefill_rate),
            ("the rate of updates", self.oja.decode_rate),
            (
                "the part of a prompt that updates bases",
                self.oja.salient_fraction,
            ),
        ] {
            if !(found > 0.0 && found <= 1.0) {
                return Err(ExecError::OptionRange {
                    what,
                    expected: "a number above 0 and at most 1",
                    found: found.into(),
                });
            }
        }
        for (what, found) in [
            ("the window of importance", Some(self.importance_window)),
            ("the period of updates", Some(self.oja.period)),
            ("the step of a pass", self.max_pass_positions),
        ] {
            if found == Some(0) {
                return Err(ExecError::OptionRange {
                    what,
                    expected: "at least 1 position",
                    found: 0.0,
                });
            }
        }
        match self.max_prompt_positions {
            Some(found) if found < self.min_keep() => Err(ExecError::KeepTooSmall {
                kind: self.kind.to_string(),
                found,
                least: self.min_keep(),
            }),
            _ => Ok(()),
        }
    }
}

/// Storage plan of a KV cache: [`KvOptions`] validated for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct KvPlan {
    shape: KvShape,
    kind: KvKind,
    ranks: Vec<[usize; 2]>,
    reconstruct: bool,
}

impl KvPlan {
    /// Creates the plan for a model of this shape.
    ///
    /// # Errors
    /// [`ExecError`] for options out of range, heads that are not whole blocks, and missing or
    /// mismatched bases.
    pub fn new(
        shape: KvShape,
        options: &KvOptions,
        bases: Option<&KvBases>,
    ) -> Result<Self, ExecError> {
        options.check()?;
        let kind = options.kind;
        let block = kind.stored_type().dtype().block_len();
        if !shape.head_size.is_multiple_of(block) {
            return Err(ExecError::KvHeadSize {
                kind: kind.to_string(),
                block,
                head_size: shape.head_size,
            });
        }
        let mut ranks = Vec::new();
        if let Some(rank) = kind.rank() {
            let bases = bases.ok_or_else(|| ExecError::NoKvBases {
                kind: kind.to_string(),
            })?;
            bases.check_shape(shape)?;
            ranks = (0..shape.layers)
                .map(|layer| [0, 1].map(|side| bases.rank(layer, side, rank)))
                .collect();
        }
        Ok(KvPlan {
            shape,
            kind,
            ranks,
            reconstruct: options.reconstruct,
        })
    }

    /// Creates a plan that stores every position as `kv_type`.
    ///
    /// # Errors
    /// [`ExecError::KvHeadSize`] for heads that are not whole blocks.
    pub fn uncompressed(shape: KvShape, kv_type: KvType) -> Result<Self, ExecError> {
        KvPlan::new(shape, &KvOptions::new(kv_type), None)
    }

    /// Returns the shape of the model.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Returns the kind.
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    /// Returns the ranks of keys and values of a layer, if compressed.
    pub fn ranks(&self, layer: usize) -> Option<[usize; 2]> {
        self.ranks.get(layer).copied()
    }

    /// Returns true if attention reads reconstructed keys and values.
    pub fn reconstructs(&self) -> bool {
        self.reconstruct
    }

    /// Returns the bytes of a position in all layers, as the kind stores it.
    pub fn bytes_per_position(&self) -> usize {
        if self.ranks.is_empty() {
            self.full_bytes_per_position()
        } else {
            let numbers: usize = self.ranks.iter().flatten().sum();
            2 * numbers * self.shape.kv_heads
        }
    }

    /// Returns the bytes of an uncompressed position in all layers.
    pub fn full_bytes_per_position(&self) -> usize {
        self.shape.position_bytes(self.kind.stored_type())
    }
}

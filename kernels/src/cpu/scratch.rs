//! Reusable scratch space.

use htc_formats::bands::GROUP_ROWS;

use super::activations::Strip;
use super::int_gemm::Panel;

/// Scratch space of products and attention kernels. It grows to the largest request; reuse it so
/// that a decoding step allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Vec<f32>,
    strips: Vec<Strip>,
    panels: Vec<Panel>,
    /// Inner vectors of factorised projections, used together with `buffer`.
    pub(super) inner: Vec<f32>,
    /// Products of row classes, before they are scattered to the rows.
    pub(super) classes: Vec<f32>,
}

impl Scratch {
    /// Creates empty scratch space.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// Returns `len` numbers of unspecified value.
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        &mut self.buffer[..len]
    }

    /// Returns super-blocks and panels of unspecified content.
    pub(super) fn integers(
        &mut self,
        strips: usize,
        panels: usize,
    ) -> (&mut [Strip], &mut [Panel]) {
        if self.strips.len() < strips {
            self.strips.resize(strips, Strip::ZERO);
        }
        if self.panels.len() < panels {
            self.panels.resize(panels, Panel::EMPTY);
        }
        (&mut self.strips[..strips], &mut self.panels[..panels])
    }

    /// Returns numbers, super-blocks and sums of unspecified value, of the given lengths.
    pub(super) fn bands(
        &mut self,
        [len, strips, sums]: [usize; 3],
    ) -> (&mut [f32], &mut [Strip], &mut [[f32; GROUP_ROWS]]) {
        if self.inner.len() < len {
            self.inner.resize(len, 0.0);
        }
        if self.strips.len() < strips {
            self.strips.resize(strips, Strip::ZERO);
        }
        if self.buffer.len() < sums * GROUP_ROWS {
            self.buffer.resize(sums * GROUP_ROWS, 0.0);
        }
        let (sums, _) = self.buffer[..sums * GROUP_ROWS].as_chunks_mut();
        (&mut self.inner[..len], &mut self.strips[..strips], sums)
    }

    /// Returns numbers and super-blocks of unspecified value.
    pub(super) fn inner(&mut self, len: usize, strips: usize) -> (&mut [f32], &mut [Strip]) {
        if self.inner.len() < len {
            self.inner.resize(len, 0.0);
        }
        if self.strips.len() < strips {
            self.strips.resize(strips, Strip::ZERO);
        }
        (&mut self.inner[..len], &mut self.strips[..strips])
    }
}

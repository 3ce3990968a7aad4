//! Working memory that a caller keeps between calls.

use htc_formats::bands::GROUP_ROWS;

use super::activations::Strip;
use super::int_gemm::Panel;

/// Working memory of products and of the attention kernels. It grows to the
/// largest need and is meant to be kept, so that a decoding step allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Vec<f32>,
    strips: Vec<Strip>,
    panels: Vec<Panel>,
    /// Inner vectors of factorised slots, beside which products need `buffer`.
    pub(super) inner: Vec<f32>,
    /// Products of classes of rows, before they are put in the order of the rows.
    pub(super) classes: Vec<f32>,
}

impl Scratch {
    /// Empty working memory.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// `len` numbers of unspecified value.
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        &mut self.buffer[..len]
    }

    /// Strips and panels of unspecified content.
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

    /// Numbers, strips and sums of unspecified value, as many as `room` says.
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

    /// Numbers and strips of unspecified value.
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

//! Reusable scratch space.

use htc_formats::bands::GROUP_ROWS;

use super::activations::SuperBlock;
use super::int_gemm::Panel;

/// Scratch space of products and attention kernels. It grows to the largest request; reuse it so
/// that a decoding step allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Vec<f32>,
    super_blocks: Vec<SuperBlock>,
    panels: Vec<Panel>,
    /// Inner vectors of factorised projections, used together with `buffer`.
    pub(super) inner: Vec<f32>,
    /// Products of row classes, before they are scattered to the rows.
    pub(super) class_products: Vec<f32>,
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
    pub(super) fn int_gemm_buffers(
        &mut self,
        super_blocks: usize,
        panels: usize,
    ) -> (&mut [SuperBlock], &mut [Panel]) {
        if self.super_blocks.len() < super_blocks {
            self.super_blocks.resize(super_blocks, SuperBlock::ZERO);
        }
        if self.panels.len() < panels {
            self.panels.resize(panels, Panel::EMPTY);
        }
        (
            &mut self.super_blocks[..super_blocks],
            &mut self.panels[..panels],
        )
    }

    /// Returns numbers, super-blocks and sums of unspecified value, of the given lengths.
    pub(super) fn column_group_buffers(
        &mut self,
        [len, super_blocks, sums]: [usize; 3],
    ) -> (&mut [f32], &mut [SuperBlock], &mut [[f32; GROUP_ROWS]]) {
        if self.inner.len() < len {
            self.inner.resize(len, 0.0);
        }
        if self.super_blocks.len() < super_blocks {
            self.super_blocks.resize(super_blocks, SuperBlock::ZERO);
        }
        if self.buffer.len() < sums * GROUP_ROWS {
            self.buffer.resize(sums * GROUP_ROWS, 0.0);
        }
        let (sums, _) = self.buffer[..sums * GROUP_ROWS].as_chunks_mut();
        (
            &mut self.inner[..len],
            &mut self.super_blocks[..super_blocks],
            sums,
        )
    }

    /// Returns numbers and super-blocks of unspecified value.
    pub(super) fn projection_buffers(
        &mut self,
        len: usize,
        super_blocks: usize,
    ) -> (&mut [f32], &mut [SuperBlock]) {
        if self.inner.len() < len {
            self.inner.resize(len, 0.0);
        }
        if self.super_blocks.len() < super_blocks {
            self.super_blocks.resize(super_blocks, SuperBlock::ZERO);
        }
        (
            &mut self.inner[..len],
            &mut self.super_blocks[..super_blocks],
        )
    }
}

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
        grown(&mut self.buffer, len, 0.0)
    }

    /// Returns super-blocks and panels of unspecified content.
    pub(super) fn int_gemm_buffers(
        &mut self,
        super_blocks: usize,
        panels: usize,
    ) -> (&mut [SuperBlock], &mut [Panel]) {
        (
            grown(&mut self.super_blocks, super_blocks, SuperBlock::ZERO),
            grown(&mut self.panels, panels, Panel::EMPTY),
        )
    }

    /// Returns numbers, super-blocks and sums of unspecified value, of the given lengths.
    pub(super) fn column_group_buffers(
        &mut self,
        [len, super_blocks, sums]: [usize; 3],
    ) -> (&mut [f32], &mut [SuperBlock], &mut [[f32; GROUP_ROWS]]) {
        (
            grown(&mut self.inner, len, 0.0),
            grown(&mut self.super_blocks, super_blocks, SuperBlock::ZERO),
            grown(&mut self.buffer, sums * GROUP_ROWS, 0.0)
                .as_chunks_mut()
                .0,
        )
    }

    /// Returns numbers and super-blocks of unspecified value.
    pub(super) fn projection_buffers(
        &mut self,
        len: usize,
        super_blocks: usize,
    ) -> (&mut [f32], &mut [SuperBlock]) {
        (
            grown(&mut self.inner, len, 0.0),
            grown(&mut self.super_blocks, super_blocks, SuperBlock::ZERO),
        )
    }
}

/// Returns the first `len` elements of `buffer`, which grows to that length.
pub(super) fn grown<T: Clone>(buffer: &mut Vec<T>, len: usize, filler: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, filler);
    }
    &mut buffer[..len]
}

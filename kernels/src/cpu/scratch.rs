//! Working memory that a caller keeps between calls.

use super::activations::Strip;

/// Working memory of products and of the attention kernels. It grows to the
/// largest need and is meant to be kept, so that a decoding step allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Vec<f32>,
    strips: Vec<Strip>,
    /// Inner vectors of factorised slots, beside which products need `buffer`.
    pub(super) inner: Vec<f32>,
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

//! Working memory that a caller keeps between calls.

/// Working memory of [`matmul`](super::matmul()) and the attention kernels. It grows to the
/// largest need and is meant to be kept, so that a decoding step allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Vec<f32>,
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
}

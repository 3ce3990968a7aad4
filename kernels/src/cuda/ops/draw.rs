//! Sampling of a token on the device, so that the host does not read all logits.

use super::{F32_BYTES, GrowingBuffer, byte_span, kernel_count};
use crate::cuda::device::{
    Device, DeviceError, DeviceMemory, DeviceSpan, Kernel, kernel_arguments,
};

/// Sampling parameters: top-k, top-p, then softmax at a temperature; ties by token id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParameters {
    /// Temperature, above 0, applied after top-k and top-p.
    pub temperature: f32,
    /// Number of candidates for top-k; 0 for all.
    pub top_k: usize,
    /// Probability mass for top-p; 1 for all.
    pub top_p: f32,
    /// Uniform random number in `[0, 1)` that selects among the candidates in token order.
    pub uniform: f64,
}

kernel_arguments! {
    /// `Draw` of `draw.cu`.
    struct DrawArgument {
        x: DeviceSpan,
        out: DeviceSpan,
        uniform: f64,
        numbers: u32,
        top_k: u32,
        top_p: f32,
        temperature: f32,
    }
}

/// Maximum number of logits; their weights are summed in 64 bits.
pub const MAX_SAMPLED_LOGITS: usize = 1 << 22;

const NO_INDEX: u32 = u32::MAX;

/// Output buffer of sampling.
#[derive(Debug)]
pub struct TokenSampler<D: Device> {
    out: GrowingBuffer<D>,
}

impl<D: Device> Default for TokenSampler<D> {
    fn default() -> Self {
        TokenSampler {
            out: GrowingBuffer::default(),
        }
    }
}

impl<D: Device> TokenSampler<D> {
    /// Begins to sample from the first `numbers` elements of `x`. Weights are integer multiples of
    /// 2^-40 of the largest.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`] for no elements, more than [`MAX_SAMPLED_LOGITS`], or a short
    /// allocation.
    pub fn begin(
        &mut self,
        device: &D,
        x: &D::Memory,
        numbers: usize,
        draw: &SamplingParameters,
    ) -> Result<(), DeviceError> {
        const KERNEL: Kernel<DrawArgument> = Kernel::new("draw_token", 1024);
        let out = self.out.reserve(device, 2 * F32_BYTES)?;
        if !(1..=MAX_SAMPLED_LOGITS).contains(&numbers) {
            return Err(super::shape_mismatch(
                "numbers to draw from",
                numbers,
                MAX_SAMPLED_LOGITS,
            ));
        }
        let arguments = DrawArgument {
            x: byte_span(x, "numbers", 0, &[numbers], F32_BYTES)?,
            out: out.span("what is drawn", 0, 2 * F32_BYTES)?,
            uniform: draw.uniform,
            numbers: kernel_count("numbers", numbers)?,
            top_k: kernel_count("numbers", draw.top_k.min(numbers))?,
            top_p: draw.top_p,
            temperature: draw.temperature,
        };
        // SAFETY: a block reads the logits and writes two words, which the spans cover.
        unsafe { device.launch(&KERNEL, [1, 1, 1], 0, &arguments) }
    }

    /// Returns the token after all earlier operations; `None` if a logit is not finite.
    pub fn take(&self, device: &D) -> Result<Option<u32>, DeviceError> {
        let Some(out) = &self.out.0 else {
            return Ok(None);
        };
        let mut words = [0; 2 * F32_BYTES];
        device.download(out, 0, &mut words)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| words[4 * at + i]));
        Ok((word(1) == NO_INDEX).then(|| word(0)))
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests;

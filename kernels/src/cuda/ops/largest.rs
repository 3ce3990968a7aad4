use super::{F32_BYTES, GrowingBuffer, byte_span, kernel_count};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Maximum k.
pub const MAX_TOP_K: usize = 64;

const BLOCK: usize = 4096;

const NO_INDEX: u32 = u32::MAX;

kernel_arguments! {
    // Layouts as in `sampling.cu`.

    struct Seek {
        x: DeviceSpan,
        before: DeviceSpan,
        out: DeviceSpan,
        numbers: u32,
        most: u32,
    }
}

/// Buffers of a top-k selection.
#[derive(Debug)]
pub struct TopK<D: Device> {
    buffer: GrowingBuffer<D>,
    result_offset: usize,
    k: usize,
}

impl<D: Device> Default for TopK<D> {
    fn default() -> Self {
        TopK {
            buffer: GrowingBuffer::default(),
            result_offset: 0,
            k: 0,
        }
    }
}

impl<D: Device> TopK<D> {
    /// Begins to select the `most` largest, at most [`MAX_TOP_K`], of the first `numbers` elements
    /// of `x`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`] for a short allocation or too large a k.
    pub fn begin(
        &mut self,
        device: &D,
        x: &D::Memory,
        numbers: usize,
        most: usize,
    ) -> Result<(), DeviceError> {
        const KERNEL: Kernel<Seek> = Kernel::new("largest", 256);
        if !(1..=MAX_TOP_K).contains(&most) {
            return Err(DeviceError::OutOfBounds {
                operand: "the largest",
                start: 0,
                needed: most,
                available: MAX_TOP_K,
            });
        }
        let record = 1 + 2 * most;
        let blocks = |numbers: usize| numbers.div_ceil(BLOCK).max(1);
        let mut passes = vec![blocks(numbers)];
        while let Some(&last) = passes.last().filter(|&&last| last > 1) {
            passes.push(blocks(last * most));
        }
        let words = passes.iter().sum::<usize>() * record;
        let buffer = self.buffer.reserve(device, words * F32_BYTES)?;
        let (mut before, mut at, mut numbers) = (None, 0, numbers);
        for &blocks in &passes {
            let arguments = Seek {
                x: match before {
                    None => byte_span(x, "numbers", 0, &[numbers], F32_BYTES)?,
                    Some(_) => DeviceSpan::NULL,
                },
                before: before.unwrap_or(DeviceSpan::NULL),
                out: byte_span(
                    buffer,
                    "the largest",
                    at * F32_BYTES,
                    &[blocks, record],
                    F32_BYTES,
                )?,
                numbers: kernel_count("numbers", numbers)?,
                most: most as u32,
            };
            let grid = [kernel_count("blocks", blocks)?, 1, 1];
            // SAFETY: a block reads its existing elements, or the records of the previous pass, and
            // writes a record; the spans cover them.
            unsafe { device.launch(&KERNEL, grid, 0, &arguments)? };
            (before, self.result_offset) = (Some(arguments.out), at);
            (at, numbers) = (at + blocks * record, blocks * most);
        }
        self.k = most;
        Ok(())
    }

    /// Returns index and value of the selected elements after all earlier operations, in descending
    /// order with ties by index; `None` if an element is not finite.
    pub fn take(&self, device: &D) -> Result<Option<Vec<(u32, f32)>>, DeviceError> {
        let Some(buffer) = &self.buffer.0 else {
            return Ok(None);
        };
        let mut record = vec![0; (1 + 2 * self.k) * F32_BYTES];
        device.download(buffer, self.result_offset * F32_BYTES, &mut record)?;
        let words = record.as_chunks::<F32_BYTES>().0.iter();
        let words: Vec<u32> = words.map(|&bytes| u32::from_le_bytes(bytes)).collect();
        let Some((&NO_INDEX, found)) = words.split_first() else {
            return Ok(None);
        };
        let found = found.as_chunks::<2>().0.iter();
        let found = found.filter(|&&[_, place]| place != NO_INDEX);
        Ok(Some(
            found
                .map(|&[value, place]| (place, f32::from_bits(value)))
                .collect(),
        ))
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests;

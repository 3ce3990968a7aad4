//! Top-k selection on the device, so that the host does not read all logits.

use super::{F32, bytes, count};
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Memory, Span};

/// Maximum k.
pub const MOST_LARGEST: usize = 64;

const BLOCK: usize = 4096;

/// Index for "none".
const NO_PLACE: u32 = u32::MAX;

#[derive(Clone, Copy)]
#[repr(C)]
struct Seek {
    x: Span,
    before: Span,
    out: Span,
    numbers: u32,
    most: u32,
}

// SAFETY: layout as in `sampling.cu`, without padding.
unsafe impl Arguments for Seek {}

/// Buffers of a top-k selection.
#[derive(Debug)]
pub struct Largest<D: Device> {
    room: Option<D::Memory>,
    /// Offset of the last record in words, and k.
    found: usize,
    most: usize,
}

impl<D: Device> Default for Largest<D> {
    fn default() -> Self {
        Largest {
            room: None,
            found: 0,
            most: 0,
        }
    }
}

impl<D: Device> Largest<D> {
    /// Begins to select the `most` largest, at most [`MOST_LARGEST`], of the first `numbers`
    /// elements of `x`. Each block selects from its own elements, and the next pass from their
    /// results.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for a short allocation or too large a k, or a device error.
    pub fn seek(
        &mut self,
        device: &D,
        (x, numbers): (&D::Memory, usize),
        most: usize,
    ) -> Result<(), DeviceError> {
        const KERNEL: Kernel<Seek> = Kernel::new("largest", 256);
        if !(1..=MOST_LARGEST).contains(&most) {
            return Err(DeviceError::Range {
                what: "the largest",
                start: 0,
                needed: most,
                found: MOST_LARGEST,
            });
        }
        let record = 1 + 2 * most;
        let blocks = |numbers: usize| numbers.div_ceil(BLOCK).max(1);
        let mut passes = vec![blocks(numbers)];
        while let Some(&last) = passes.last().filter(|&&last| last > 1) {
            passes.push(blocks(last * most));
        }
        let words = passes.iter().sum::<usize>() * record;
        if self
            .room
            .as_ref()
            .is_none_or(|room| room.bytes() < words * F32)
        {
            self.room = None;
            self.room = Some(device.allocate(words * F32)?);
        }
        let Some(room) = &self.room else {
            return Ok(());
        };
        let (mut before, mut at, mut numbers) = (None, 0, numbers);
        for &blocks in &passes {
            let arguments = Seek {
                x: match before {
                    None => bytes(x, "numbers", 0, &[numbers], F32)?,
                    Some(_) => Span::NONE,
                },
                before: before.unwrap_or(Span::NONE),
                out: bytes(room, "the largest", at * F32, &[blocks, record], F32)?,
                numbers: count("numbers", numbers)?,
                most: most as u32,
            };
            // SAFETY: a block reads its existing elements, or the records of the previous pass, and
            // writes a record; the spans cover them.
            unsafe { device.launch(&KERNEL, [count("blocks", blocks)?, 1, 1], 0, &arguments)? };
            (before, self.found) = (Some(arguments.out), at);
            (at, numbers) = (at + blocks * record, blocks * most);
        }
        self.most = most;
        Ok(())
    }

    /// Returns index and value of the selected elements after all earlier operations, in descending
    /// order with ties by index; `None` if an element is not finite.
    ///
    /// # Errors
    /// The error of an earlier operation.
    pub fn take(&self, device: &D) -> Result<Option<Vec<(u32, f32)>>, DeviceError> {
        let Some(room) = &self.room else {
            return Ok(None);
        };
        let mut record = vec![0; (1 + 2 * self.most) * F32];
        device.download(room, self.found * F32, &mut record)?;
        let words = record.as_chunks::<F32>().0.iter();
        let words: Vec<u32> = words.map(|&bytes| u32::from_le_bytes(bytes)).collect();
        let Some((&NO_PLACE, found)) = words.split_first() else {
            return Ok(None);
        };
        let found = found.as_chunks::<2>().0.iter();
        let found = found.filter(|&&[_, place]| place != NO_PLACE);
        Ok(Some(
            found
                .map(|&[value, place]| (place, f32::from_bits(value)))
                .collect(),
        ))
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;
    use crate::cuda::{Emulated, ops};

    fn found(device: &Emulated, numbers: &[f32], most: usize) -> Option<Vec<(u32, f32)>> {
        let x = ops::put(device, numbers).unwrap();
        let mut largest = Largest::default();
        largest.seek(device, (&x, numbers.len()), most).unwrap();
        largest.take(device).unwrap()
    }

    #[test]
    fn top_k_matches_a_full_sort() {
        let device = Emulated::new(3);
        for (numbers, most) in [
            (1, 1),
            (5, 64),
            (300, 3),
            (4096, 1),
            (4097, 64),
            (40_000, 1),
            // In three passes.
            (262_145, 64),
        ] {
            let x: Vec<f32> = (0..numbers)
                .map(|i| ((i * 7919 % 1009) as f32 - 500.0) * if i % 3 == 0 { -0.0 } else { 0.25 })
                .collect();
            let mut expected: Vec<(u32, f32)> = (0..).zip(x.iter().copied()).collect();
            expected.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            expected.truncate(most);
            assert_eq!(
                found(&device, &x, most).unwrap(),
                expected,
                "{numbers}, {most}"
            );
        }
    }

    #[test]
    fn non_finite_elements_give_no_result() {
        let device = Emulated::new(4);
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 4095, 9000] {
                let mut x = vec![1.0; 9001];
                x[at] = strange;
                assert_eq!(found(&device, &x, 2), None, "{strange} at {at}");
            }
        }
        let x = ops::put(&device, &[1.0; 8]).unwrap();
        let mut largest = Largest::default();
        for most in [0, MOST_LARGEST + 1] {
            assert!(largest.seek(&device, (&x, 8), most).is_err());
        }
        assert!(largest.seek(&device, (&x, 9), 1).is_err());
    }
}

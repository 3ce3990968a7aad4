//! Reporting of values that the KV cache type cannot represent.

use crate::cuda::device::{Device, DeviceError, DeviceMemory, DeviceSpan};

/// Device memory in which kernels record the first unrepresentable value, one entry per launch.
#[derive(Debug)]
pub struct FaultEntries<D: Device> {
    memory: D::Memory,
    entries: usize,
}

/// A value that the KV cache type cannot represent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Entry of the launch.
    pub entry: usize,
    /// Row, counted from the first that the launch wrote.
    pub row: usize,
    /// The value.
    pub value: f32,
}

impl<D: Device> FaultEntries<D> {
    /// Allocates `entries` empty entries.
    pub fn new(device: &D, entries: usize) -> Result<Self, DeviceError> {
        let memory = device.allocate(8 * entries)?;
        let faults = FaultEntries { memory, entries };
        faults.clear(device)?;
        Ok(faults)
    }

    fn clear(&self, device: &D) -> Result<(), DeviceError> {
        device.upload(&vec![u8::MAX; 8 * self.entries], &self.memory, 0)
    }

    /// Returns the fault of the first entry that has one, after all earlier operations, and clears
    /// all entries.
    pub fn take_first(&self, device: &D) -> Result<Option<Fault>, DeviceError> {
        let mut bytes = vec![0; 8 * self.entries];
        device.download(&self.memory, 0, &mut bytes)?;
        let numbers = bytes.as_chunks::<8>().0.iter();
        let mut numbers = numbers.map(|&bytes| u64::from_le_bytes(bytes)).enumerate();
        let Some((entry, found)) = numbers.find(|&(_, number)| number != u64::MAX) else {
            return Ok(None);
        };
        self.clear(device)?;
        Ok(Some(Fault {
            entry,
            row: (found >> 32) as usize,
            value: f32::from_bits(found as u32),
        }))
    }

    pub(super) fn entry_span(&self, entry: usize) -> Result<DeviceSpan, DeviceError> {
        self.memory.span("faults", 8 * entry, 8)
    }
}

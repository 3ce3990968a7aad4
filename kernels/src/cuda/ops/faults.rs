//! Reporting of values that the KV cache type cannot represent.

use crate::cuda::device::{Device, DeviceError, DeviceMemory, DeviceSpan};

/// Device memory in which kernels record the first unrepresentable value, one entry per launch.
#[derive(Debug)]
pub struct FaultEntries<D: Device> {
    memory: D::Memory,
    slots: usize,
}

/// The entry of a launch in [`FaultEntries`].
#[derive(Debug)]
pub struct FaultEntry<'a, D: Device> {
    entries: &'a FaultEntries<D>,
    index: usize,
}

impl<D: Device> FaultEntry<'_, D> {
    pub(super) fn span(&self) -> Result<DeviceSpan, DeviceError> {
        self.entries.memory.span("faults", 8 * self.index, 8)
    }
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
    /// Allocates `slots` empty entries.
    ///
    /// # Errors
    /// A device error.
    pub fn new(device: &D, slots: usize) -> Result<Self, DeviceError> {
        let memory = device.allocate(8 * slots)?;
        let faults = FaultEntries { memory, slots };
        faults.clear(device)?;
        Ok(faults)
    }

    fn clear(&self, device: &D) -> Result<(), DeviceError> {
        device.upload(&vec![u8::MAX; 8 * self.slots], &self.memory, 0)
    }

    /// Returns the fault of the first entry that has one, after all earlier operations, and clears
    /// all entries.
    ///
    /// # Errors
    /// A device error.
    pub fn take_first(&self, device: &D) -> Result<Option<Fault>, DeviceError> {
        let mut bytes = vec![0; 8 * self.slots];
        device.download(&self.memory, 0, &mut bytes)?;
        let numbers = bytes.as_chunks::<8>().0.iter();
        let mut numbers = numbers.map(|&bytes| u64::from_le_bytes(bytes)).enumerate();
        let Some((slot, found)) = numbers.find(|&(_, number)| number != u64::MAX) else {
            return Ok(None);
        };
        self.clear(device)?;
        Ok(Some(Fault {
            entry: slot,
            row: (found >> 32) as usize,
            value: f32::from_bits(found as u32),
        }))
    }

    /// Returns the entry `index`.
    pub fn entry(&self, index: usize) -> FaultEntry<'_, D> {
        FaultEntry {
            entries: self,
            index,
        }
    }
}

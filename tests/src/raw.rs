//! Builds GGUF byte by byte, for invalid files.

/// A file under construction.
#[derive(Clone, Debug)]
pub struct RawGguf {
    /// Bytes so far.
    pub bytes: Vec<u8>,
}

impl RawGguf {
    /// Writes magic, version and counts.
    pub fn new(version: u32, tensors: u64, entries: u64) -> Self {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(entries.to_le_bytes());
        RawGguf { bytes }
    }

    /// Appends a u32.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Appends a u64.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Appends a string with its length.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        self
    }

    /// Appends zeros.
    #[must_use]
    pub fn zeros(mut self, count: usize) -> Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }
}

/// Offsets of the fields of an entry of the tensor table.
#[derive(Clone, Copy, Debug)]
pub struct TensorRow {
    /// The number of dimensions, u32.
    pub dimensions: usize,
    /// The first dimension, u64.
    pub dims: usize,
    /// The type, u32.
    pub kind: usize,
    /// The offset, u64.
    pub offset: usize,
}

/// Finds the table entry of a tensor.
pub fn tensor_row(bytes: &[u8], name: &str) -> TensorRow {
    let mut pattern = (name.len() as u64).to_le_bytes().to_vec();
    pattern.extend(name.as_bytes());
    let at = bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
        .unwrap_or_else(|| panic!("no tensor {name}"));
    let dimensions = at + pattern.len();
    let count: [u8; 4] = bytes[dimensions..][..4].try_into().unwrap();
    let dims = dimensions + 4;
    let kind = dims + 8 * u32::from_le_bytes(count) as usize;
    TensorRow {
        dimensions,
        dims,
        kind,
        offset: kind + 4,
    }
}

/// Overwrites a u32.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Overwrites a u64.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Reads a u64.
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

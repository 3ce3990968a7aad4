//! KV cache rows, full or as low-rank coordinates.

mod low_rank;

pub use low_rank::{DeviceLowRankRows, KvRowsFrom, expand_low_rank, map_rows};

use super::faults::FaultEntries;
use super::{F32_BYTES, byte_span, float_span, kernel_count, shape_mismatch};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

const KV_BLOCK: usize = 32;

/// Storage type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvElement {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Signed 8-bit codes with a scale per 32 elements.
    Q8_0,
    /// 4-bit codes with a scale per 32 elements.
    Q4_0,
}

impl KvElement {
    fn kernel_code(self) -> u32 {
        match self {
            KvElement::F32 => 0,
            KvElement::F16 => 1,
            KvElement::Q8_0 => 2,
            KvElement::Q4_0 => 3,
        }
    }

    /// Returns the bytes of codes, in whole blocks, and of scales.
    pub(super) fn row_bytes(self, size: usize) -> [usize; 2] {
        match self {
            KvElement::F32 => [4 * size, 0],
            KvElement::F16 => [2 * size, 0],
            KvElement::Q8_0 => [size, 2 * (size / KV_BLOCK)],
            KvElement::Q4_0 => [size / 2, 2 * (size / KV_BLOCK)],
        }
    }

    fn has_blocks(self) -> bool {
        matches!(self, KvElement::Q8_0 | KvElement::Q4_0)
    }
}

/// Shape of the heads of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// Number of kv heads.
    pub heads: usize,
    /// Head size; a multiple of the block size for block types.
    pub size: usize,
}

/// A buffer of rows `[heads, capacity, size]` of one type.
#[derive(Debug)]
pub struct KvRows<D: Device> {
    numbers: KvElement,
    shape: KvHeads,
    capacity: usize,
    codes: D::Memory,
    scales: D::Memory,
}

kernel_arguments! {
    // Layouts as in `kv.cu`.

    /// `KvRows` of `kv.cuh`.
    #[derive(Debug, Default)]
    pub(super) struct KvRowsArgument {
        codes: DeviceSpan,
        scales: DeviceSpan,
        numbers: u32,
        capacity: u32,
    }

    struct Gather {
        from: DeviceSpan,
        to: DeviceSpan,
        rows: DeviceSpan,
        heads: u32,
        used: u32,
        from_capacity: u32,
        to_capacity: u32,
        row_bytes: u32,
        unused: u32,
    }

    struct Append {
        x: DeviceSpan,
        rows: KvRowsArgument,
        fault: DeviceSpan,
        n: u32,
        heads: u32,
        size: u32,
        first: u32,
        position: u32,
        unused: u32,
    }

    struct Widen {
        rows: KvRowsArgument,
        to: DeviceSpan,
        heads: u32,
        size: u32,
        first: u32,
        count: u32,
        to_first: u32,
        to_capacity: u32,
    }
}

impl KvRowsArgument {
    pub(super) fn codes(self) -> DeviceSpan {
        self.codes
    }
}

impl<D: Device> KvRows<D> {
    /// Allocates rows of unspecified content.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn new(
        device: &D,
        numbers: KvElement,
        shape: KvHeads,
        capacity: usize,
    ) -> Result<Self, DeviceError> {
        if numbers.has_blocks() && !shape.size.is_multiple_of(KV_BLOCK) {
            return Err(shape_mismatch(
                "numbers of a head (whole blocks)",
                KV_BLOCK,
                shape.size,
            ));
        }
        let [codes, scales] = numbers.row_bytes(shape.size).map(|row| {
            let bytes = shape.heads.checked_mul(capacity);
            let bytes = bytes.and_then(|rows| rows.checked_mul(row));
            device.allocate(bytes.unwrap_or(usize::MAX))
        });
        Ok(KvRows {
            numbers,
            shape,
            capacity,
            codes: codes?,
            scales: scales?,
        })
    }

    pub(super) fn kv_type(&self) -> KvElement {
        self.numbers
    }

    /// Returns the memory of elements or codes.
    pub fn memory(&self) -> &D::Memory {
        &self.codes
    }

    /// Returns the capacity in rows per head.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number and size of the heads.
    pub fn shape(&self) -> KvHeads {
        self.shape
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        let row: usize = self.numbers.row_bytes(self.shape.size).iter().sum();
        self.shape.heads * self.capacity * row
    }

    pub(super) fn kernel_argument(&self) -> Result<KvRowsArgument, DeviceError> {
        let [codes, scales] = self.numbers.row_bytes(self.shape.size);
        let rows = [self.shape.heads, self.capacity];
        Ok(KvRowsArgument {
            codes: byte_span(&self.codes, "rows", 0, &rows, codes)?,
            scales: byte_span(&self.scales, "scales of rows", 0, &rows, scales)?,
            numbers: self.numbers.kernel_code(),
            capacity: kernel_count("rows of a head", self.capacity)?,
        })
    }

    /// Returns a copy with the given capacity: its first `used` rows, or the rows named by `rows
    /// [heads, used]`.
    pub fn with_capacity(
        &self,
        device: &D,
        rows: Option<&[u32]>,
        used: usize,
        capacity: usize,
    ) -> Result<Self, DeviceError> {
        let to = KvRows::new(device, self.numbers, self.shape, capacity)?;
        let widths = self.numbers.row_bytes(self.shape.size);
        let sides = [(&self.codes, &to.codes), (&self.scales, &to.scales)];
        for ((from, to), width) in sides.into_iter().zip(widths) {
            let shape = GatherShape {
                heads: self.shape.heads,
                used,
                from: self.capacity,
                to: capacity,
                row_bytes: width,
            };
            gather(device, shape, rows, from, to)?;
        }
        Ok(to)
    }

    /// Returns a copy of the `used` rows without the `gap` rows after the first `front` of each
    /// head.
    pub fn without_rows(
        &self,
        device: &D,
        front: usize,
        gap: usize,
        used: usize,
    ) -> Result<Self, DeviceError> {
        let rows = (0..front).chain(front + gap..used).map(|row| row as u32);
        let rows: Vec<u32> = rows.collect();
        let of_heads = rows.repeat(self.shape.heads);
        self.with_capacity(device, Some(&of_heads), rows.len(), self.capacity)
    }
}

#[derive(Clone, Copy)]
struct GatherShape {
    heads: usize,
    used: usize,
    from: usize,
    to: usize,
    row_bytes: usize,
}

fn gather<D: Device>(
    device: &D,
    shape: GatherShape,
    rows: Option<&[u32]>,
    from: &D::Memory,
    to: &D::Memory,
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Gather> = Kernel::new("kv_gather", 64);
    let GatherShape {
        heads,
        used,
        row_bytes,
        ..
    } = shape;
    if used == 0 || row_bytes == 0 {
        return Ok(());
    }
    let last = match rows {
        None => used - 1,
        Some(rows) if rows.len() == heads * used => {
            rows.iter().copied().max().unwrap_or(0) as usize
        }
        Some(rows) => {
            return Err(shape_mismatch(
                "rows that are moved",
                heads * used,
                rows.len(),
            ));
        }
    };
    for (needed, found) in [(last + 1, shape.from), (used, shape.to)] {
        if needed > found {
            return Err(shape_mismatch("rows of a head", needed, found));
        }
    }
    let named = rows.map(|rows| put_u32(device, rows)).transpose()?;
    let arguments = Gather {
        from: byte_span(from, "rows", 0, &[heads, shape.from], row_bytes)?,
        to: byte_span(to, "rows", 0, &[heads, shape.to], row_bytes)?,
        rows: match &named {
            Some(memory) => byte_span(memory, "rows that are moved", 0, &[heads, used], 4)?,
            None => DeviceSpan::NULL,
        },
        heads: kernel_count("heads", heads)?,
        used: kernel_count("rows", used)?,
        from_capacity: kernel_count("rows", shape.from)?,
        to_capacity: kernel_count("rows", shape.to)?,
        row_bytes: kernel_count("bytes of a row", row_bytes)?,
        unused: 0,
    };
    let grid = [kernel_count("rows of all heads", heads * used)?, 1, 1];
    // SAFETY: a block reads a row below `from` and writes one below `to` of its head, which the
    // spans cover.
    unsafe { device.launch(&KERNEL, grid, 0, &arguments) }
}

fn put_u32<D: Device>(device: &D, numbers: &[u32]) -> Result<D::Memory, DeviceError> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let memory = device.allocate(bytes.len())?;
    device.upload(&bytes, &memory, 0)?;
    Ok(memory)
}

/// Rows of a batch that are appended to a cache.
#[derive(Clone, Copy, Debug)]
pub struct AppendedRows {
    /// First row in the batch.
    pub from: usize,
    /// Number of rows.
    pub count: usize,
    /// Row of the cache for the first one.
    pub to: usize,
    /// Position that faults report for the first one.
    pub position: usize,
}

/// Writes rows of `x [.., heads, size]` to the cache. An unrepresentable value is recorded in entry
/// `entry`.
///
/// # Errors
/// A device error; [`DeviceError::OutOfBounds`] beyond the capacity.
pub fn append_rows<D: Device>(
    device: &D,
    rows: &KvRows<D>,
    appended: AppendedRows,
    x: &D::Memory,
    faults: &FaultEntries<D>,
    entry: usize,
) -> Result<(), DeviceError> {
    const NUMBERS: Kernel<Append> = Kernel::new("kv_append", 256);
    const BLOCKS: Kernel<Append> = Kernel::new("kv_append_blocks", 64);
    let KvHeads { heads, size } = rows.shape;
    let AppendedRows {
        from,
        count: n,
        to: first,
        position,
    } = appended;
    check_rows(rows, first, n)?;
    let from = from.saturating_mul(heads * size * F32_BYTES);
    let arguments = Append {
        x: byte_span(x, "keys or values", from, &[n, heads, size], F32_BYTES)?,
        rows: rows.kernel_argument()?,
        fault: faults.entry_span(entry)?,
        n: kernel_count("rows", n)?,
        heads: kernel_count("heads", heads)?,
        size: kernel_count("a head", size)?,
        first: kernel_count("rows", first)?,
        position: kernel_count("positions", position)?,
        unused: 0,
    };
    let (kernel, numbers) = if rows.numbers.has_blocks() {
        (&BLOCKS, n * heads * (size / KV_BLOCK))
    } else {
        (&NUMBERS, n * heads * size)
    };
    // SAFETY: a thread reads an element or block of `x` and writes it to a row below the capacity;
    // the spans cover both.
    unsafe { super::launch_per_element(device, kernel, numbers, &arguments) }
}

pub(super) fn check_rows<D: Device>(
    rows: &KvRows<D>,
    first: usize,
    n: usize,
) -> Result<(), DeviceError> {
    check_range("rows of a head", first, n, rows.capacity)
}

fn check_range(
    operand: &'static str,
    start: usize,
    needed: usize,
    available: usize,
) -> Result<(), DeviceError> {
    if start
        .checked_add(needed)
        .is_some_and(|end| end <= available)
    {
        return Ok(());
    }
    Err(DeviceError::OutOfBounds {
        operand,
        start,
        needed,
        available,
    })
}

/// Writes `count` rows of each head from `first` on as `f32` to `to [heads, to_capacity, size]`,
/// starting at row `to_first`.
pub fn rows_to_f32<D: Device>(
    device: &D,
    rows: &KvRows<D>,
    [first, n]: [usize; 2],
    to: &D::Memory,
    [to_first, to_capacity]: [usize; 2],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Widen> = Kernel::new("kv_widen", 64);
    let KvHeads { heads, size } = rows.shape;
    check_rows(rows, first, n)?;
    check_range("rows to write", to_first, n, to_capacity)?;
    let arguments = Widen {
        rows: rows.kernel_argument()?,
        to: float_span(to, "rows", &[heads, to_capacity, size])?,
        heads: kernel_count("heads", heads)?,
        size: kernel_count("a head", size)?,
        first: kernel_count("rows", first)?,
        count: kernel_count("rows", n)?,
        to_first: kernel_count("rows", to_first)?,
        to_capacity: kernel_count("rows", to_capacity)?,
    };
    let grid = [kernel_count("rows of all heads", heads * n)?, 1, 1];
    // SAFETY: a block reads a row below the capacity and writes one below `to_capacity`; the spans
    // cover both.
    unsafe { device.launch(&KERNEL, grid, 0, &arguments) }
}

//! KV cache rows, full or as low-rank coordinates.

use super::faults::FaultEntry;
use super::{F32_BYTES, byte_span, download_floats, float_span, kernel_count, shape_mismatch};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, KernelArguments};

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

    /// Returns the bytes of the codes of `size` elements, in whole blocks, and of their scales.
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

/// Layout as in `kv.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct KvRowsArgument {
    codes: DeviceSpan,
    scales: DeviceSpan,
    numbers: u32,
    capacity: u32,
}

impl KvRowsArgument {
    pub(super) const NONE: KvRowsArgument = KvRowsArgument {
        codes: DeviceSpan::NULL,
        scales: DeviceSpan::NULL,
        numbers: 0,
        capacity: 0,
    };

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
            // An overflowing size exceeds the memory of any device.
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
    ///
    /// # Errors
    /// A device error; also for a row beyond the capacity.
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
    ///
    /// # Errors
    /// A device error.
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

#[derive(Clone, Copy)]
#[repr(C)]
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

// SAFETY: layout as in `kv.cu`, without padding.
unsafe impl KernelArguments for Gather {}

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
    let range = |what, needed, found| shape_mismatch(what, needed, found);
    let last = match rows {
        None => used - 1,
        Some(rows) if rows.len() == heads * used => {
            rows.iter().copied().max().unwrap_or(0) as usize
        }
        Some(rows) => return Err(range("rows that are moved", heads * used, rows.len())),
    };
    if last >= shape.from || used > shape.to {
        let (needed, found) = if last >= shape.from {
            (last + 1, shape.from)
        } else {
            (used, shape.to)
        };
        return Err(range("rows of a head", needed, found));
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

#[derive(Clone, Copy)]
#[repr(C)]
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

// SAFETY: layout as in `kv.cu`, without padding.
unsafe impl KernelArguments for Append {}

/// Writes `x [n, heads, size]` to the rows from `first` on. An unrepresentable value is recorded in
/// `fault`, with rows counted from `position`.
///
/// # Errors
/// A device error; [`DeviceError::OutOfBounds`] beyond the capacity.
pub fn append_rows<D: Device>(
    device: &D,
    rows: &KvRows<D>,
    [first, n, position]: [usize; 3],
    x: &D::Memory,
    fault: FaultEntry<'_, D>,
) -> Result<(), DeviceError> {
    const NUMBERS: Kernel<Append> = Kernel::new("kv_append", 256);
    const BLOCKS: Kernel<Append> = Kernel::new("kv_append_blocks", 64);
    let KvHeads { heads, size } = rows.shape;
    check_rows(rows, first, n)?;
    let arguments = Append {
        x: float_span(x, "keys or values", &[n, heads, size])?,
        rows: rows.kernel_argument()?,
        fault: fault.span()?,
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
    if first.checked_add(n).is_some_and(|end| end <= rows.capacity) {
        Ok(())
    } else {
        Err(DeviceError::OutOfBounds {
            operand: "rows of a head",
            start: first,
            needed: n,
            available: rows.capacity,
        })
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
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

// SAFETY: layout as in `kv.cu`, without padding.
unsafe impl KernelArguments for Widen {}

/// Writes `count` rows of each head from `first` on as `f32` to `to [heads, to_capacity, size]`,
/// starting at row `to_first`.
///
/// # Errors
/// A device error; [`DeviceError::OutOfBounds`] for a row beyond the capacity.
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
    check_target(to_first, n, to_capacity)?;
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

fn check_target(first: usize, n: usize, capacity: usize) -> Result<(), DeviceError> {
    if first.checked_add(n).is_some_and(|end| end <= capacity) {
        Ok(())
    } else {
        Err(DeviceError::OutOfBounds {
            operand: "rows to write",
            start: first,
            needed: n,
            available: capacity,
        })
    }
}

/// Low-rank coordinates `[heads, capacity, rank]` in half precision and their bases `[heads, rank,
/// size]`.
#[derive(Debug)]
pub struct DeviceLowRankRows<D: Device> {
    /// Coordinates: heads of `rank` elements.
    pub rows: KvRows<D>,
    /// Bases.
    pub basis: D::Memory,
    /// Head size.
    pub size: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Expand {
    coordinates: DeviceSpan,
    basis: DeviceSpan,
    to: DeviceSpan,
    heads: u32,
    size: u32,
    rank: u32,
    capacity: u32,
    count: u32,
    to_first: u32,
    to_capacity: u32,
    unused: u32,
}

// SAFETY: layout as in `kv.cu`, without padding.
unsafe impl KernelArguments for Expand {}

/// As [`rows_to_f32`] for the first `n` rows of coordinates, multiplied by the basis.
///
/// # Errors
/// As [`rows_to_f32`].
pub fn expand_low_rank<D: Device>(
    device: &D,
    low: &DeviceLowRankRows<D>,
    n: usize,
    to: &D::Memory,
    [to_first, to_capacity]: [usize; 2],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Expand> = Kernel::new("kv_expand", 64);
    let (KvHeads { heads, size: rank }, size) = (low.rows.shape, low.size);
    if low.rows.numbers != KvElement::F16 {
        return Err(shape_mismatch(
            "bytes of a coordinate",
            2,
            low.rows.numbers.row_bytes(1)[0],
        ));
    }
    check_rows(&low.rows, 0, n)?;
    check_target(to_first, n, to_capacity)?;
    let arguments = Expand {
        coordinates: low.rows.kernel_argument()?.codes,
        basis: float_span(&low.basis, "bases", &[heads, rank, size])?,
        to: float_span(to, "rows", &[heads, to_capacity, size])?,
        heads: kernel_count("heads", heads)?,
        size: kernel_count("a head", size)?,
        rank: kernel_count("the rank", rank)?,
        capacity: kernel_count("rows", low.rows.capacity)?,
        count: kernel_count("rows", n)?,
        to_first: kernel_count("rows", to_first)?,
        to_capacity: kernel_count("rows", to_capacity)?,
        unused: 0,
    };
    let grid = [kernel_count("rows of all heads", heads * n)?, 1, 1];
    // SAFETY: a block reads a row of coordinates and the basis of its head and writes a row below
    // `to_capacity`; the spans cover them.
    unsafe { device.launch(&KERNEL, grid, 0, &arguments) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Map {
    from: DeviceSpan,
    matrix: DeviceSpan,
    to: DeviceSpan,
    fault: DeviceSpan,
    squares: DeviceSpan,
    heads: u32,
    count: u32,
    from_capacity: u32,
    from_size: u32,
    from_first: u32,
    to_capacity: u32,
    to_size: u32,
    to_first: u32,
}

// SAFETY: layout as in `kv.cu`, without padding.
unsafe impl KernelArguments for Map {}

/// Rows of keys or values from a first row on.
#[derive(Debug)]
pub struct KvRowsFrom<'a, D: Device> {
    /// All rows.
    pub rows: &'a KvRows<D>,
    /// Index of the first.
    pub first: usize,
}

/// Multiplies `n` rows of each head by its matrix in `matrix [heads, to size, from size]` and
/// writes them to `to`, both in half precision. Returns the squared norms of each row before and
/// after, head by head. An unrepresentable value is recorded in `fault`.
///
/// # Errors
/// As [`append_rows`]; also for rows of another type.
pub fn map_rows<D: Device>(
    device: &D,
    n: usize,
    from: KvRowsFrom<'_, D>,
    matrix: &D::Memory,
    to: KvRowsFrom<'_, D>,
    fault: FaultEntry<'_, D>,
) -> Result<Vec<[f32; 2]>, DeviceError> {
    const KERNEL: Kernel<Map> = Kernel::new("kv_map", 64);
    let KvRowsFrom {
        rows: from,
        first: from_first,
    } = from;
    let KvRowsFrom {
        rows: to,
        first: to_first,
    } = to;
    check_rows(from, from_first, n)?;
    check_rows(to, to_first, n)?;
    let heads = from.shape.heads;
    let alike = from.numbers == KvElement::F16 && to.numbers == KvElement::F16;
    if !alike || to.shape.heads != heads {
        return Err(shape_mismatch(
            "heads of rows in half precision",
            heads,
            if alike { to.shape.heads } else { 0 },
        ));
    }
    let squares = device.allocate(2 * F32_BYTES * heads * n)?;
    let arguments = Map {
        from: from.kernel_argument()?.codes,
        matrix: float_span(matrix, "matrices", &[heads, to.shape.size, from.shape.size])?,
        to: to.kernel_argument()?.codes,
        fault: fault.span()?,
        squares: float_span(&squares, "squares", &[heads, n, 2])?,
        heads: kernel_count("heads", heads)?,
        count: kernel_count("rows", n)?,
        from_capacity: kernel_count("rows", from.capacity)?,
        from_size: kernel_count("a head", from.shape.size)?,
        from_first: kernel_count("rows", from_first)?,
        to_capacity: kernel_count("rows", to.capacity)?,
        to_size: kernel_count("a head", to.shape.size)?,
        to_first: kernel_count("rows", to_first)?,
    };
    let grid = [kernel_count("rows of all heads", heads * n)?, 1, 1];
    // SAFETY: a block reads a row below the capacity of `from` and the matrix of its head, and
    // writes a row of `to` and two squares; the spans cover them. Its shared memory holds a row.
    unsafe { device.launch(&KERNEL, grid, from.shape.size * F32_BYTES, &arguments)? };
    let squares = download_floats(device, &squares, 2 * heads * n)?;
    Ok(squares.as_chunks::<2>().0.to_vec())
}

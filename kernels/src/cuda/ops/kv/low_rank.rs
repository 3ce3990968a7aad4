//! Low-rank coordinates of keys and values.

use std::sync::Arc;

use super::super::faults::FaultEntries;
use super::super::{F32_BYTES, download_floats, float_span, kernel_count, shape_mismatch};
use super::{KvElement, KvHeads, KvRows, check_range, check_rows};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Low-rank coordinates `[heads, capacity, rank]` in half precision and their bases `[heads, rank,
/// size]`.
#[derive(Debug)]
pub struct DeviceLowRankRows<D: Device> {
    /// Coordinates: heads of `rank` elements.
    pub rows: KvRows<D>,
    /// Bases.
    pub basis: Arc<D::Memory>,
    /// Head size.
    pub size: usize,
}

impl<D: Device> DeviceLowRankRows<D> {
    /// Returns a copy of the first `used` rows that shares the bases.
    ///
    /// # Errors
    /// A device error.
    pub fn copied(&self, device: &D, used: usize) -> Result<Self, DeviceError> {
        Ok(DeviceLowRankRows {
            rows: self
                .rows
                .with_capacity(device, None, used, self.rows.capacity)?,
            basis: Arc::clone(&self.basis),
            size: self.size,
        })
    }
}

kernel_arguments! {
    // Layouts as in `kv.cu`.

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
}

/// As [`rows_to_f32`](super::rows_to_f32) for the first `n` rows of coordinates, multiplied by the
/// basis.
///
/// # Errors
/// As [`rows_to_f32`](super::rows_to_f32).
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
    check_range("rows to write", to_first, n, to_capacity)?;
    let arguments = Expand {
        coordinates: low.rows.kernel_argument()?.codes,
        basis: float_span(&*low.basis, "bases", &[heads, rank, size])?,
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

/// Rows of a cache, from row `first` of each head on.
#[derive(Debug)]
pub struct KvRowsFrom<'a, D: Device> {
    /// Rows of all heads.
    pub rows: &'a KvRows<D>,
    /// First row of each head.
    pub first: usize,
}

/// Multiplies `n` rows of each head, from `from.first` on, by its matrix in `matrix [heads, to size,
/// from size]` and writes them from row `to.first` on, both in half precision. Returns the squared
/// norms of each row before and after, head by head. An unrepresentable value is recorded in entry
/// `entry`.
///
/// # Errors
/// As [`append_rows`](super::append_rows); also for rows of another type.
pub fn map_rows<D: Device>(
    device: &D,
    n: usize,
    from: KvRowsFrom<'_, D>,
    matrix: &D::Memory,
    to: KvRowsFrom<'_, D>,
    faults: &FaultEntries<D>,
    entry: usize,
) -> Result<Vec<[f32; 2]>, DeviceError> {
    const KERNEL: Kernel<Map> = Kernel::new("kv_map", 64);
    let (from_first, to_first) = (from.first, to.first);
    let (from, to) = (from.rows, to.rows);
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
        fault: faults.entry_span(entry)?,
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

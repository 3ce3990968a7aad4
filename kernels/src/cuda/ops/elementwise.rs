//! Norms, sums, activations and rotary embeddings.

use htc_formats::model::RopePairs;

use super::{F32_BYTES, byte_span, float_span, kernel_count, launch_per_element, shape_mismatch};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Shape of a row-major matrix of floats.
#[derive(Clone, Copy, Debug)]
pub struct RowsShape {
    /// Rows.
    pub rows: usize,
    /// Elements per row.
    pub cols: usize,
}

kernel_arguments! {
    // Layouts as in `elementwise.cu`.

    struct RmsNorm {
        x: DeviceSpan,
        weight: DeviceSpan,
        out: DeviceSpan,
        width: u32,
        epsilon: f32,
    }

    struct Add {
        x: DeviceSpan,
        y: DeviceSpan,
        numbers: u64,
        width: u32,
        unused: u32,
    }

    struct Activate {
        gate: DeviceSpan,
        up: DeviceSpan,
        numbers: u64,
    }

    struct Softcap {
        x: DeviceSpan,
        numbers: u64,
        cap: f32,
        unused: u32,
    }

    struct Rotate {
        frequencies: DeviceSpan,
        cosines: DeviceSpan,
        sines: DeviceSpan,
        start: u64,
        pairs: u32,
        n: u32,
        factor: f32,
        unused: u32,
    }

    struct Rope {
        x: DeviceSpan,
        cosines: DeviceSpan,
        sines: DeviceSpan,
        heads: u32,
        size: u32,
        pairs: u32,
        neighbours: u32,
    }

    struct Hadamard {
        x: DeviceSpan,
        size: u32,
        factor: f32,
    }
}

/// Returns the block size for the sum of squares of a row, as in `rows.cuh`: four elements per
/// thread, in whole warps.
pub(super) fn norm_threads(width: usize) -> u32 {
    const WARP: usize = 32;
    let warps = width.div_ceil(4 * WARP).clamp(1, 32);
    (warps * WARP) as u32
}

/// Computes `out = x / sqrt(mean(x²) + epsilon) * weight` for each row; `out` may be `x`.
pub fn rms_norm<D: Device>(
    device: &D,
    shape: RowsShape,
    x: &D::Memory,
    weight: &D::Memory,
    epsilon: f32,
    out: &D::Memory,
) -> Result<(), DeviceError> {
    let RowsShape { rows, cols: width } = shape;
    let arguments = RmsNorm {
        x: float_span(x, "x", &[rows, width])?,
        weight: float_span(weight, "the weight of a norm", &[width])?,
        out: float_span(out, "out", &[rows, width])?,
        width: kernel_count("a row", width)?,
        epsilon,
    };
    let kernel = Kernel::<RmsNorm>::new("rms_norm", norm_threads(width));
    let grid = [kernel_count("rows", rows)?, 1, 1];
    // SAFETY: a block reads and writes a row of each, which the spans cover.
    unsafe { device.launch(&kernel, grid, 0, &arguments) }
}

/// Computes `x += y` element by element.
pub fn add<D: Device>(
    device: &D,
    numbers: usize,
    x: &D::Memory,
    y: &D::Memory,
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Add> = Kernel::new("add", 256);
    let arguments = Add {
        x: float_span(x, "x", &[numbers])?,
        y: float_span(y, "y", &[numbers])?,
        numbers: numbers as u64,
        width: 0,
        unused: 0,
    };
    // SAFETY: a thread accesses one of `numbers` elements of each, which the spans cover.
    unsafe { launch_per_element(device, &KERNEL, numbers, &arguments) }
}

/// Computes `x += y` for each row.
pub fn add_rows<D: Device>(
    device: &D,
    shape: RowsShape,
    x: &D::Memory,
    y: &D::Memory,
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Add> = Kernel::new("add_rows", 256);
    let RowsShape { rows, cols: width } = shape;
    let arguments = Add {
        x: float_span(x, "x", &[rows, width])?,
        y: float_span(y, "y", &[width])?,
        numbers: (rows * width) as u64,
        width: kernel_count("a row", width)?,
        unused: 0,
    };
    // SAFETY: a thread accesses one of `rows * width` elements of `x` and one of a row of `y`,
    // which the spans cover.
    unsafe { launch_per_element(device, &KERNEL, rows * width, &arguments) }
}

/// Activation function of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateActivation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
}

/// Computes `gate = f(gate) * up` element by element.
pub fn gated_activation<D: Device>(
    device: &D,
    function: GateActivation,
    numbers: usize,
    gate: &D::Memory,
    up: &D::Memory,
) -> Result<(), DeviceError> {
    const SILU: Kernel<Activate> = Kernel::new("silu_mul", 256);
    const GELU: Kernel<Activate> = Kernel::new("gelu_mul", 256);
    let arguments = Activate {
        gate: float_span(gate, "gate", &[numbers])?,
        up: float_span(up, "up", &[numbers])?,
        numbers: numbers as u64,
    };
    let kernel = match function {
        GateActivation::Silu => &SILU,
        GateActivation::GeluTanh => &GELU,
    };
    // SAFETY: a thread accesses one of `numbers` elements of each, which the spans cover.
    unsafe { launch_per_element(device, kernel, numbers, &arguments) }
}

/// Computes `x = cap * tanh(x / cap)` element by element.
pub fn softcap<D: Device>(
    device: &D,
    numbers: usize,
    x: &D::Memory,
    cap: f32,
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Softcap> = Kernel::new("softcap", 256);
    let arguments = Softcap {
        x: float_span(x, "x", &[numbers])?,
        numbers: numbers as u64,
        cap,
        unused: 0,
    };
    // SAFETY: a thread accesses one of `numbers` elements, which the span covers.
    unsafe { launch_per_element(device, &KERNEL, numbers, &arguments) }
}

/// Computes cosines and sines `[n, pairs]`, both times `factor`, of `n` positions times each of
/// `frequencies` (float64, radians per position), and writes them from row `first` on.
///
/// # Errors
/// As [`rms_norm`].
pub fn rope_tables<D: Device>(
    device: &D,
    positions: std::ops::Range<usize>,
    frequencies: &D::Memory,
    pairs: usize,
    factor: f32,
    [cosines, sines]: [&D::Memory; 2],
    first: usize,
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Rotate> = Kernel::new("rotate_to", 64);
    let n = positions.len();
    let first = first.saturating_mul(pairs * F32_BYTES);
    let arguments = Rotate {
        frequencies: byte_span(frequencies, "frequencies", 0, &[pairs], 8)?,
        cosines: byte_span(cosines, "cosines", first, &[n, pairs], F32_BYTES)?,
        sines: byte_span(sines, "sines", first, &[n, pairs], F32_BYTES)?,
        start: positions.start as u64,
        pairs: kernel_count("pairs", pairs)?,
        n: kernel_count("positions", n)?,
        factor,
        unused: 0,
    };
    // SAFETY: a thread writes one of `n * pairs` elements of each and reads a frequency; the spans
    // cover them.
    unsafe { launch_per_element(device, &KERNEL, n * pairs, &arguments) }
}

/// Shape of the heads for the rotary embedding.
#[derive(Clone, Copy, Debug)]
pub struct RopeShape {
    /// Positions.
    pub rows: usize,
    /// Heads per row.
    pub heads: usize,
    /// Head size.
    pub size: usize,
    /// Rotated pairs per head.
    pub pairs: usize,
}

/// Checks that rotated pairs fit in a head.
pub(super) fn check_pairs(pairs: usize, size: usize) -> Result<(), DeviceError> {
    let (needed, found) = (2 * pairs * F32_BYTES, size * F32_BYTES);
    if needed > found {
        return Err(shape_mismatch("pairs of a head", needed, found));
    }
    Ok(())
}

/// Applies the rotary embedding to `x [rows, heads, size]` with `cosines` and `sines [rows,
/// pairs]`.
pub fn rope<D: Device>(
    device: &D,
    which: RopePairs,
    shape: RopeShape,
    x: &D::Memory,
    [cosines, sines]: [&D::Memory; 2],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Rope> = Kernel::new("rope", 256);
    let RopeShape {
        rows,
        heads,
        size,
        pairs,
    } = shape;
    check_pairs(pairs, size)?;
    let arguments = Rope {
        x: float_span(x, "x", &[rows, heads, size])?,
        cosines: float_span(cosines, "cosines", &[rows, pairs])?,
        sines: float_span(sines, "sines", &[rows, pairs])?,
        heads: kernel_count("heads", heads)?,
        size: kernel_count("a head", size)?,
        pairs: kernel_count("pairs", pairs)?,
        neighbours: u32::from(which == RopePairs::Adjacent),
    };
    let grid = [kernel_count("rows", rows)?, 1, 1];
    // SAFETY: a block accesses a row of each, which the spans cover, and the pairs lie within a
    // head.
    unsafe { device.launch(&KERNEL, grid, 0, &arguments) }
}

/// Applies the normalised Walsh–Hadamard transform in place to each run of `size` elements of `x`,
/// a power of two.
pub fn hadamard<D: Device>(
    device: &D,
    numbers: usize,
    size: usize,
    x: &D::Memory,
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Hadamard> = Kernel::new("hadamard", 128);
    if !size.is_power_of_two() || !numbers.is_multiple_of(size) {
        return Err(shape_mismatch(
            "a block of the Hadamard transform (a power of two that divides the numbers)",
            size * F32_BYTES,
            numbers * F32_BYTES,
        ));
    }
    let arguments = Hadamard {
        x: float_span(x, "x", &[numbers])?,
        size: kernel_count("a block of the Hadamard transform", size)?,
        factor: (1.0 / (size as f64).sqrt()) as f32,
    };
    let grid = [kernel_count("blocks", numbers / size)?, 1, 1];
    // SAFETY: a block accesses `size` elements, which the span covers, and as many in its shared
    // memory.
    unsafe { device.launch(&KERNEL, grid, size * F32_BYTES, &arguments) }
}

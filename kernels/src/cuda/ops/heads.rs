//! Fused operations on queries, keys and values between projection and attention.

use htc_formats::model::RopePairs;

use super::elementwise::check_pairs;
use super::faults::FaultEntries;
use super::kv::{KvHeads, KvRows, KvRowsArgument, check_rows};
use super::{F32_BYTES, float_span, kernel_count, shape_mismatch};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Maximum parts of a launch.
pub const MAX_HEADS_PARTS: usize = 3;

const SHARED: usize = 48 << 10;

/// Rows of heads of equal size.
#[derive(Clone, Copy, Debug)]
pub struct HeadsShape {
    /// Rows.
    pub rows: usize,
    /// Head size.
    pub size: usize,
}

/// Destination of appended rows.
#[derive(Debug)]
pub struct AppendTarget<'a, D: Device> {
    /// Destination rows.
    pub rows: &'a KvRows<D>,
    /// Fault entry.
    pub fault_entry: usize,
}

/// Operations on heads `x [rows, heads, size]`, applied in field order.
#[derive(Debug)]
pub struct HeadsPart<'a, D: Device> {
    /// The values, updated in place.
    pub x: &'a D::Memory,
    /// Heads per row.
    pub heads: usize,
    /// Bias `[heads, size]`, added to each row.
    pub bias: Option<&'a D::Memory>,
    /// Weight `[size]` and epsilon of a norm of each head.
    pub norm: Option<(&'a D::Memory, f32)>,
    /// Applies the rotary embedding.
    pub rotate: bool,
    /// KV cache rows to which the result is also written.
    pub append: Option<AppendTarget<'a, D>>,
}

/// Rotary embedding of the rows.
#[derive(Debug)]
pub struct RopeRows<'a, D: Device> {
    /// Pairing of elements.
    pub pairing: RopePairs,
    /// Pairs per head.
    pub pairs: usize,
    /// Cosines and sines `[rows, pairs]`.
    pub cosines_and_sines: [&'a D::Memory; 2],
}

kernel_arguments! {
    // Layouts as in `kv.cu`.

    #[derive(Default)]
    struct Part {
        x: DeviceSpan,
        bias: DeviceSpan,
        weight: DeviceSpan,
        rows: KvRowsArgument,
        fault: DeviceSpan,
        heads: u32,
        epsilon: f32,
        turned: u32,
        appended: u32,
    }

    struct Heads {
        cosines: DeviceSpan,
        sines: DeviceSpan,
        n: u32,
        size: u32,
        pairs: u32,
        neighbours: u32,
        first: u32,
        position: u32,
        count: u32,
        unused: u32,
        parts: [Part; MAX_HEADS_PARTS],
    }
}

/// Processes up to [`MAX_HEADS_PARTS`] parts with separate memory. Appending requires `faults`: the
/// entries, the cache row of the first row, and the position reported for it.
///
/// # Errors
/// [`DeviceError::OutOfBounds`] for mismatched shapes.
pub fn prepare_heads<D: Device>(
    device: &D,
    shape: HeadsShape,
    turn: Option<&RopeRows<'_, D>>,
    append: Option<(&FaultEntries<D>, [usize; 2])>,
    parts: &[HeadsPart<'_, D>],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Heads> = Kernel::new("heads_ready", 64);
    let HeadsShape { rows, size } = shape;
    let pairs = turn.map_or(0, |turn| turn.pairs);
    check_pairs(pairs, size)?;
    if size * F32_BYTES > SHARED || parts.len() > MAX_HEADS_PARTS {
        return Err(shape_mismatch(
            "a head in shared memory",
            size * F32_BYTES,
            SHARED,
        ));
    }
    let [cosines, sines] = match turn {
        Some(turn) => turn
            .cosines_and_sines
            .map(|side| float_span(side, "rotations", &[rows, pairs])),
        None => [Ok(DeviceSpan::NULL), Ok(DeviceSpan::NULL)],
    };
    let [first, position] = append.map_or([0; 2], |(_, places)| places);
    let mut arguments = Heads {
        cosines: cosines?,
        sines: sines?,
        n: kernel_count("rows", rows)?,
        size: kernel_count("a head", size)?,
        pairs: kernel_count("pairs", pairs)?,
        neighbours: turn
            .is_some_and(|turn| turn.pairing == RopePairs::Adjacent)
            .into(),
        first: kernel_count("rows", first)?,
        position: kernel_count("positions", position)?,
        count: parts.len() as u32,
        unused: 0,
        parts: [Part::default(); MAX_HEADS_PARTS],
    };
    let mut blocks = 0;
    for (to, part) in arguments.parts.iter_mut().zip(parts) {
        *to = part.argument(shape, append)?;
        to.turned = u32::from(part.rotate && turn.is_some());
        blocks += rows * part.heads;
    }
    let grid = [kernel_count("heads of all rows", blocks)?, 1, 1];
    // SAFETY: a block reads and writes a head of its part, reads the bias, the weight and the
    // rotation of its row, and writes a row below the capacity; the spans cover them. Its shared
    // memory holds a head.
    unsafe { device.launch(&KERNEL, grid, size * F32_BYTES, &arguments) }
}

impl<D: Device> HeadsPart<'_, D> {
    fn argument(
        &self,
        HeadsShape { rows, size }: HeadsShape,
        append: Option<(&FaultEntries<D>, [usize; 2])>,
    ) -> Result<Part, DeviceError> {
        let heads = self.heads;
        let mut part = Part {
            x: float_span(self.x, "heads", &[rows, heads, size])?,
            heads: kernel_count("heads", heads)?,
            ..Part::default()
        };
        if let Some(bias) = self.bias {
            part.bias = float_span(bias, "a bias", &[heads, size])?;
        }
        if let Some((weight, epsilon)) = self.norm {
            part.weight = float_span(weight, "the weight of a norm", &[size])?;
            part.epsilon = epsilon;
        }
        if let (Some(to), Some((faults, [first, _]))) = (&self.append, append) {
            let shape = to.rows.shape();
            if shape != (KvHeads { heads, size }) {
                return Err(shape_mismatch(
                    "numbers of keys and values",
                    shape.heads * shape.size,
                    heads * size,
                ));
            }
            check_rows(to.rows, first, rows)?;
            part.rows = to.rows.kernel_argument()?;
            part.fault = faults.entry_span(to.fault_entry)?;
            part.appended = 1;
        }
        Ok(part)
    }
}

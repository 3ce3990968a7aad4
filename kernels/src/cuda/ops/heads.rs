//! Fused operations on queries, keys and values between projection and attention.

use htc_formats::model::RopePairs;

use super::faults::Faults;
use super::kv::{KvHeads, KvRows, RowsArgument, check_rows};
use super::{F32, count, floats, misfit};
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Span};

/// Maximum parts of a launch.
pub const HEADS_PARTS: usize = 3;

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
pub struct AppendTo<'a, D: Device> {
    /// Destination rows.
    pub rows: &'a KvRows<D>,
    /// Fault entry.
    pub slot: usize,
}

/// Operations on heads `x [rows, heads, size]`, applied in field order. Each gives the same bits as
/// the separate operation.
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
    pub turned: bool,
    /// KV cache rows to which the result is also written.
    pub to: Option<AppendTo<'a, D>>,
}

/// Rotary embedding of the rows.
#[derive(Debug)]
pub struct Turn<'a, D: Device> {
    /// Pairing of elements.
    pub which: RopePairs,
    /// Pairs per head.
    pub pairs: usize,
    /// Cosines and sines `[rows, pairs]`.
    pub sides: [&'a D::Memory; 2],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Part {
    x: Span,
    bias: Span,
    weight: Span,
    rows: RowsArgument,
    fault: Span,
    heads: u32,
    epsilon: f32,
    turned: u32,
    appended: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Heads {
    cosines: Span,
    sines: Span,
    n: u32,
    size: u32,
    pairs: u32,
    neighbours: u32,
    first: u32,
    position: u32,
    count: u32,
    unused: u32,
    parts: [Part; HEADS_PARTS],
}

// SAFETY: layout as in `kv.cu`, without padding.
unsafe impl Arguments for Heads {}

/// Processes up to [`HEADS_PARTS`] parts with separate memory. Appending requires `faults`: the
/// entries, the cache row of the first row, and the position that faults report for it.
///
/// # Errors
/// [`DeviceError::Range`] for mismatched shapes, or a device error.
pub fn heads_ready<D: Device>(
    device: &D,
    shape: HeadsShape,
    turn: Option<&Turn<'_, D>>,
    append: Option<(&Faults<D>, [usize; 2])>,
    parts: &[HeadsPart<'_, D>],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<Heads> = Kernel::new("heads_ready", 64);
    let HeadsShape { rows, size } = shape;
    let pairs = turn.map_or(0, |turn| turn.pairs);
    let misfit = |what, needed, found| misfit(what, needed, found);
    if 2 * pairs > size {
        return Err(misfit("pairs of a head", 2 * pairs * F32, size * F32));
    }
    if size * F32 > SHARED || parts.len() > HEADS_PARTS {
        return Err(misfit("a head in shared memory", size * F32, SHARED));
    }
    let [cosines, sines] = match turn {
        Some(turn) => turn
            .sides
            .map(|side| floats(side, "rotations", &[rows, pairs])),
        None => [Ok(Span::NONE), Ok(Span::NONE)],
    };
    let [first, position] = append.map_or([0; 2], |(_, places)| places);
    let mut arguments = Heads {
        cosines: cosines?,
        sines: sines?,
        n: count("rows", rows)?,
        size: count("a head", size)?,
        pairs: count("pairs", pairs)?,
        neighbours: turn
            .is_some_and(|turn| turn.which == RopePairs::Adjacent)
            .into(),
        first: count("rows", first)?,
        position: count("positions", position)?,
        count: parts.len() as u32,
        unused: 0,
        parts: [Part::NONE; HEADS_PARTS],
    };
    let mut blocks = 0;
    for (to, part) in arguments.parts.iter_mut().zip(parts) {
        *to = part.argument(shape, append)?;
        to.turned = u32::from(part.turned && turn.is_some());
        blocks += rows * part.heads;
    }
    let grid = [count("heads of all rows", blocks)?, 1, 1];
    // SAFETY: a block reads and writes a head of its part, reads the bias, the weight and the
    // rotation of its row, and writes a row below the capacity; the spans cover them. Its shared
    // memory holds a head.
    unsafe { device.launch(&KERNEL, grid, size * F32, &arguments) }
}

impl Part {
    const NONE: Part = Part {
        x: Span::NONE,
        bias: Span::NONE,
        weight: Span::NONE,
        rows: RowsArgument::NONE,
        fault: Span::NONE,
        heads: 0,
        epsilon: 0.0,
        turned: 0,
        appended: 0,
    };
}

impl<D: Device> HeadsPart<'_, D> {
    fn argument(
        &self,
        HeadsShape { rows, size }: HeadsShape,
        append: Option<(&Faults<D>, [usize; 2])>,
    ) -> Result<Part, DeviceError> {
        let heads = self.heads;
        let mut part = Part {
            x: floats(self.x, "heads", &[rows, heads, size])?,
            heads: count("heads", heads)?,
            ..Part::NONE
        };
        if let Some(bias) = self.bias {
            part.bias = floats(bias, "a bias", &[heads, size])?;
        }
        if let Some((weight, epsilon)) = self.norm {
            part.weight = floats(weight, "the weight of a norm", &[size])?;
            part.epsilon = epsilon;
        }
        if let (Some(to), Some((faults, [first, _]))) = (&self.to, append) {
            let shape = to.rows.shape();
            if shape != (KvHeads { heads, size }) {
                return Err(misfit(
                    "numbers of keys and values",
                    shape.heads * shape.size,
                    heads * size,
                ));
            }
            check_rows(to.rows, first, rows)?;
            part.rows = to.rows.argument()?;
            part.fault = faults.slot(to.slot)?;
            part.appended = 1;
        }
        Ok(part)
    }
}

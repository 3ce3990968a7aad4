//! Operations that produce the rows of a product, fused with their quantisation if the product
//! reads them quantised.

use super::super::attention::{Join, Joined, THREADS};
use super::super::elementwise::{self, Gate, RowsShape, norm_threads};
use super::super::{count, each, floats};
use super::launches::{BLOCK, Integers, SLOTS, slots_of};
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Span};

/// An operation that produces the input of a product. Each gives the same bits as the separate
/// operations.
#[derive(Debug)]
pub enum Producer<'a, D: Device> {
    /// RMS norm with optional residual addition.
    Norm(Norm<'a, D>),
    /// Gated activation.
    Gated(Gated<'a, D>),
    /// Final reduction of attention, and its output.
    Joined(&'a Joined<D>, &'a D::Memory),
}

/// Computes `x += added` and writes the norm of `x` to `out`.
#[derive(Debug)]
pub struct Norm<'a, D: Device> {
    /// Shape.
    pub shape: RowsShape,
    /// Input, distinct from `out`.
    pub x: &'a D::Memory,
    /// Residual added first.
    pub added: Option<&'a D::Memory>,
    /// Weight.
    pub weight: &'a D::Memory,
    /// Epsilon added to the mean square.
    pub epsilon: f32,
    /// Output.
    pub out: &'a D::Memory,
}

/// Computes `gate = f(gate) * up`.
#[derive(Debug)]
pub struct Gated<'a, D: Device> {
    /// `f`.
    pub function: Gate,
    /// Elements of all rows.
    pub numbers: usize,
    /// Gate and output.
    pub gate: &'a D::Memory,
    /// Operand multiplied by the activation.
    pub up: &'a D::Memory,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct NormQuantise {
    x: Span,
    y: Span,
    weight: Span,
    out: Span,
    width: u32,
    epsilon: f32,
    count: u32,
    unused: u32,
    to: [Integers; SLOTS],
}

// SAFETY: layout as in `fused.cu`, without padding.
unsafe impl Arguments for NormQuantise {}

#[derive(Clone, Copy)]
#[repr(C)]
struct GateQuantise {
    gate: Span,
    up: Span,
    n: u32,
    width: u32,
    count: u32,
    unused: u32,
    to: [Integers; SLOTS],
}

// SAFETY: layout as in `fused.cu`, without padding.
unsafe impl Arguments for GateQuantise {}

#[derive(Clone, Copy)]
#[repr(C)]
struct JoinQuantise {
    join: Join,
    count: u32,
    unused: u32,
    to: [Integers; SLOTS],
}

// SAFETY: layout as in `attention.cu`, without padding.
unsafe impl Arguments for JoinQuantise {}

impl<D: Device> Producer<'_, D> {
    pub(super) fn fits(&self, x: Span, [n, width]: [usize; 2]) -> bool {
        let begins = |memory| floats(memory, "x", &[n, width]).is_ok_and(|at| at == x);
        match self {
            Producer::Norm(norm) => {
                let RowsShape { rows, width: of } = norm.shape;
                (rows, of) == (n, width) && begins(norm.out)
            }
            Producer::Gated(gated) => gated.numbers == n * width && begins(gated.gate),
            Producer::Joined(joined, out) => {
                let whole = joined.size().is_multiple_of(BLOCK);
                whole && joined.shape() == [n, width] && begins(out)
            }
        }
    }

    pub(super) fn launch(
        &self,
        device: &D,
        shape: [usize; 2],
        places: &[Integers],
    ) -> Result<(), DeviceError> {
        match self {
            Producer::Norm(norm) => norm.launch(device, places),
            Producer::Gated(gated) => gated.launch(device, shape, places),
            Producer::Joined(joined, out) => join(device, joined, out, places),
        }
    }

    /// Produces the rows without quantisation.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for a short allocation, or a device error.
    pub fn finish(&self, device: &D) -> Result<(), DeviceError> {
        match self {
            Producer::Norm(norm) => norm.launch(device, &[]),
            Producer::Gated(gated) => {
                let Gated {
                    function,
                    numbers,
                    gate,
                    up,
                } = *gated;
                elementwise::activate(device, function, numbers, gate, up)
            }
            Producer::Joined(joined, out) => joined.finish(device, out),
        }
    }
}

impl<D: Device> Norm<'_, D> {
    fn launch(&self, device: &D, places: &[Integers]) -> Result<(), DeviceError> {
        let Norm {
            x, weight, epsilon, ..
        } = *self;
        let RowsShape { rows, width } = self.shape;
        if self.added.is_none() && places.is_empty() {
            return elementwise::rms_norm(device, self.shape, x, weight, epsilon, self.out);
        }
        let arguments = NormQuantise {
            x: floats(x, "x", &[rows, width])?,
            y: self.added.map_or(Ok(Span::NONE), |added| {
                floats(added, "what is added", &[rows, width])
            })?,
            weight: floats(weight, "the weight of a norm", &[width])?,
            out: floats(self.out, "out", &[rows, width])?,
            width: count("a row", width)?,
            epsilon,
            count: places.len().min(SLOTS) as u32,
            unused: 0,
            to: slots_of(places),
        };
        let kernel = Kernel::<NormQuantise>::new("norm_quantise", norm_threads(width));
        let grid = [count("rows", rows)?, 1, 1];
        // SAFETY: a block reads and writes a row of each and the quantised row of each form; the
        // spans cover them.
        unsafe { device.launch(&kernel, grid, 0, &arguments) }
    }
}

impl<D: Device> Gated<'_, D> {
    fn launch(
        &self,
        device: &D,
        [n, width]: [usize; 2],
        places: &[Integers],
    ) -> Result<(), DeviceError> {
        const SILU: Kernel<GateQuantise> = Kernel::new("silu_quantise", 256);
        const GELU: Kernel<GateQuantise> = Kernel::new("gelu_quantise", 256);
        let arguments = GateQuantise {
            gate: floats(self.gate, "gate", &[n, width])?,
            up: floats(self.up, "up", &[n, width])?,
            n: count("vectors", n)?,
            width: count("columns", width)?,
            count: places.len().min(SLOTS) as u32,
            unused: 0,
            to: slots_of(places),
        };
        let kernel = match self.function {
            Gate::Silu => &SILU,
            Gate::GeluTanh => &GELU,
        };
        let threads = 8 * n * width.div_ceil(BLOCK);
        // SAFETY: eight threads access a block of `n` rows of `width` elements of each and its
        // quantised form; the spans cover them.
        unsafe { each(device, kernel, threads, &arguments) }
    }
}

fn join<D: Device>(
    device: &D,
    joined: &Joined<D>,
    out: &D::Memory,
    places: &[Integers],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<JoinQuantise> = Kernel::new("join_quantise", THREADS);
    let arguments = JoinQuantise {
        join: joined.argument(out)?,
        count: places.len().min(SLOTS) as u32,
        unused: 0,
        to: slots_of(places),
    };
    // SAFETY: a block reads the records of a head and writes its elements of `out` and the
    // quantised forms of its blocks; the spans cover them. Its shared memory has two elements per
    // split.
    unsafe { device.launch(&KERNEL, joined.grid()?, joined.shared(), &arguments) }
}

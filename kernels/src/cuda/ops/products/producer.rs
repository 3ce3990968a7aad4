use super::super::attention::{Join, PartialAttention, THREADS};
use super::super::elementwise::{self, GateActivation, RowsShape, norm_threads};
use super::super::{float_span, kernel_count, launch_per_element};
use super::launches::MAX_MATRICES;
use super::quantise::{BLOCK, QuantisedVectors, forms_argument};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// An operation that produces the input of a product. Each gives the same bits as the separate
/// operations.
#[derive(Debug)]
pub enum PendingOperation<'a, D: Device> {
    /// RMS norm with optional residual addition.
    Norm(PendingNorm<'a, D>),
    /// Gated activation.
    Gated(PendingGate<'a, D>),
    /// Final reduction of attention, and its output.
    AttentionJoin(&'a PartialAttention<D>, &'a D::Memory),
}

/// Computes `x += added` and writes the norm of `x` to `out`.
#[derive(Debug)]
pub struct PendingNorm<'a, D: Device> {
    /// Shape.
    pub shape: RowsShape,
    /// Input, distinct from `out`.
    pub x: &'a D::Memory,
    /// Residual added first.
    pub residual: Option<&'a D::Memory>,
    /// Weight.
    pub weight: &'a D::Memory,
    /// Epsilon added to the mean square.
    pub epsilon: f32,
    /// Output.
    pub out: &'a D::Memory,
}

/// Computes `gate = f(gate) * up`.
#[derive(Debug)]
pub struct PendingGate<'a, D: Device> {
    /// `f`.
    pub function: GateActivation,
    /// Elements of all rows.
    pub numbers: usize,
    /// Gate and output.
    pub gate: &'a D::Memory,
    /// Operand multiplied by the activation.
    pub up: &'a D::Memory,
}

kernel_arguments! {
    // Layouts as in `fused.cu` and `attention.cu`.

    struct NormQuantise {
        x: DeviceSpan,
        y: DeviceSpan,
        weight: DeviceSpan,
        out: DeviceSpan,
        width: u32,
        epsilon: f32,
        count: u32,
        unused: u32,
        to: [QuantisedVectors; MAX_MATRICES],
    }

    struct GateQuantise {
        gate: DeviceSpan,
        up: DeviceSpan,
        n: u32,
        width: u32,
        count: u32,
        unused: u32,
        to: [QuantisedVectors; MAX_MATRICES],
    }

    struct JoinQuantise {
        join: Join,
        count: u32,
        unused: u32,
        to: [QuantisedVectors; MAX_MATRICES],
    }
}

impl<D: Device> PendingOperation<'_, D> {
    pub(super) fn can_fuse(&self, x: DeviceSpan, [n, width]: [usize; 2]) -> bool {
        let begins = |memory| float_span(memory, "x", &[n, width]).is_ok_and(|at| at == x);
        match self {
            PendingOperation::Norm(norm) => {
                let RowsShape { rows, cols: of } = norm.shape;
                (rows, of) == (n, width) && begins(norm.out)
            }
            PendingOperation::Gated(gated) => gated.numbers == n * width && begins(gated.gate),
            PendingOperation::AttentionJoin(joined, out) => {
                let whole = joined.head_size().is_multiple_of(BLOCK);
                whole && joined.fills([n, width]) && begins(out)
            }
        }
    }

    pub(super) fn launch_fused(
        &self,
        device: &D,
        shape: [usize; 2],
        places: &[QuantisedVectors],
    ) -> Result<(), DeviceError> {
        match self {
            PendingOperation::Norm(norm) => norm.launch(device, places),
            PendingOperation::Gated(gated) => gated.launch(device, shape, places),
            PendingOperation::AttentionJoin(joined, out) => join(device, joined, out, places),
        }
    }

    /// Produces the rows without quantisation.
    pub fn finish(&self, device: &D) -> Result<(), DeviceError> {
        match self {
            PendingOperation::Norm(norm) => norm.launch(device, &[]),
            PendingOperation::Gated(gated) => {
                let PendingGate {
                    function,
                    numbers,
                    gate,
                    up,
                } = *gated;
                elementwise::gated_activation(device, function, numbers, gate, up)
            }
            PendingOperation::AttentionJoin(joined, out) => joined.finish(device, out),
        }
    }
}

impl<D: Device> PendingNorm<'_, D> {
    fn launch(&self, device: &D, places: &[QuantisedVectors]) -> Result<(), DeviceError> {
        let PendingNorm {
            x, weight, epsilon, ..
        } = *self;
        let RowsShape { rows, cols: width } = self.shape;
        if self.residual.is_none() && places.is_empty() {
            return elementwise::rms_norm(device, self.shape, x, weight, epsilon, self.out);
        }
        let arguments = NormQuantise {
            x: float_span(x, "x", &[rows, width])?,
            y: self.residual.map_or(Ok(DeviceSpan::NULL), |added| {
                float_span(added, "what is added", &[rows, width])
            })?,
            weight: float_span(weight, "the weight of a norm", &[width])?,
            out: float_span(self.out, "out", &[rows, width])?,
            width: kernel_count("a row", width)?,
            epsilon,
            count: places.len().min(MAX_MATRICES) as u32,
            unused: 0,
            to: forms_argument(places),
        };
        let kernel = Kernel::<NormQuantise>::new("norm_quantise", norm_threads(width));
        let grid = [kernel_count("rows", rows)?, 1, 1];
        // SAFETY: a block reads and writes a row of each and the quantised row of each form; the
        // spans cover them.
        unsafe { device.launch(&kernel, grid, 0, &arguments) }
    }
}

impl<D: Device> PendingGate<'_, D> {
    fn launch(
        &self,
        device: &D,
        [n, width]: [usize; 2],
        places: &[QuantisedVectors],
    ) -> Result<(), DeviceError> {
        const SILU: Kernel<GateQuantise> = Kernel::new("silu_quantise", 256);
        const GELU: Kernel<GateQuantise> = Kernel::new("gelu_quantise", 256);
        let arguments = GateQuantise {
            gate: float_span(self.gate, "gate", &[n, width])?,
            up: float_span(self.up, "up", &[n, width])?,
            n: kernel_count("vectors", n)?,
            width: kernel_count("columns", width)?,
            count: places.len().min(MAX_MATRICES) as u32,
            unused: 0,
            to: forms_argument(places),
        };
        let kernel = match self.function {
            GateActivation::Silu => &SILU,
            GateActivation::GeluTanh => &GELU,
        };
        let threads = 8 * n * width.div_ceil(BLOCK);
        // SAFETY: eight threads access a block of `n` rows of `width` elements of each and its
        // quantised form; the spans cover them.
        unsafe { launch_per_element(device, kernel, threads, &arguments) }
    }
}

fn join<D: Device>(
    device: &D,
    joined: &PartialAttention<D>,
    out: &D::Memory,
    places: &[QuantisedVectors],
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<JoinQuantise> = Kernel::new("join_quantise", THREADS);
    let arguments = JoinQuantise {
        join: joined.join_arguments(out)?,
        count: places.len().min(MAX_MATRICES) as u32,
        unused: 0,
        to: forms_argument(places),
    };
    // SAFETY: a block reads the records of a head and writes its elements of `out` and the
    // quantised forms of its blocks; the spans cover them. Its shared memory has two elements per
    // split.
    unsafe { device.launch(&KERNEL, joined.grid()?, joined.shared_bytes(), &arguments) }
}

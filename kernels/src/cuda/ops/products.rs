//! Matrix products. In a batch of fewer than 32 rows, each row has the same bits as alone. Larger
//! batches use tensor cores, unless [batch invariance](Workspace::set_batch_invariant) is set;
//! there a row has the same bits at any index of any such batch.

use std::ops::Range;

mod launches;
mod pair;
mod producer;
mod quantise;

#[cfg(test)]
pub(super) use launches::COLUMN_GROUP_KERNELS;
pub(super) use launches::column_group_shared_bytes;
use launches::{ProductOutput, SummationOrder, Targets, multiply};
use pair::{BARRIER_WORDS, multiply_pair};
pub use producer::{PendingGate, PendingNorm, PendingOperation};
use quantise::{InputVectors, allocate_quantised, quantise_inputs};

use super::matrix::DeviceMatrix;
use super::{F32_BYTES, GrowingBuffer, byte_span, shape_mismatch};
use crate::cpu::Input;
use crate::cuda::device::{Device, DeviceError, DeviceMemory, DeviceSpan};

/// Scratch memory, reused between operations.
#[derive(Debug)]
pub struct Workspace<D: Device> {
    quantised_input: GrowingBuffer<D>,
    factor_outputs: GrowingBuffer<D>,
    quantised_factor_outputs: Vec<GrowingBuffer<D>>,
    arrival_counters: Option<D::Memory>,
    barrier_counters: Option<D::Memory>,
    launches: LaunchStrategy,
    order: SummationOrder,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LaunchStrategy {
    /// One for factors, then one for projections.
    #[default]
    TwoStages,
    /// A single launch, if possible.
    SingleLaunch,
    /// One launch per product.
    PerProduct,
}

impl<D: Device> Default for Workspace<D> {
    fn default() -> Self {
        Workspace {
            quantised_input: GrowingBuffer::default(),
            factor_outputs: GrowingBuffer::default(),
            quantised_factor_outputs: Vec::new(),
            arrival_counters: None,
            barrier_counters: None,
            launches: LaunchStrategy::default(),
            order: SummationOrder::default(),
        }
    }
}

impl<D: Device> Workspace<D> {
    /// Returns a workspace with a launch per product and identical results, for tests.
    pub fn with_separate_launches() -> Self {
        Workspace {
            launches: LaunchStrategy::PerProduct,
            ..Workspace::default()
        }
    }

    /// Returns a workspace that runs factors and projections in a single launch with a grid barrier
    /// in between, if all matrices are blocks of one format, with at most four factors, projections
    /// and vectors. Results are identical.
    pub fn with_single_launch() -> Self {
        Workspace {
            launches: LaunchStrategy::SingleLaunch,
            ..Workspace::default()
        }
    }

    /// Gives each row of later batches the same bits as alone.
    pub fn set_batch_invariant(&mut self, batch_invariant: bool) {
        self.order = if batch_invariant {
            SummationOrder::SingleRow
        } else {
            SummationOrder::Tiled
        };
    }
}

/// Returns `count` counters; every launch that uses them resets them.
fn zeroed_counters<'a, D: Device>(
    device: &D,
    memory: &'a mut Option<D::Memory>,
    count: usize,
) -> Result<&'a D::Memory, DeviceError> {
    const LEAST: usize = 4096;
    let kept = match memory.take() {
        Some(memory) if memory.len() >= count * size_of::<u32>() => memory,
        _ => {
            let zeros = vec![0; count.next_multiple_of(LEAST).max(LEAST) * size_of::<u32>()];
            let memory = device.allocate(zeros.len())?;
            device.upload(&zeros, &memory, 0)?;
            memory
        }
    };
    Ok(memory.insert(kept))
}

/// First matrix of a low-rank factorisation; its product with the input is an inner vector.
pub struct Factor<'a, D: Device> {
    /// The matrix.
    pub matrix: &'a DeviceMatrix<D>,
    /// Number of leading rows computed.
    pub rows: usize,
    /// Components of the inner vector in use; the rest up to `rows` are zero.
    pub rank: usize,
}

/// A linear projection, `y = W x`, or `y = W A x` with the matrix `A` of a [`Factor`].
pub struct Projection<'a, D: Device> {
    /// `W`.
    pub matrix: &'a DeviceMatrix<D>,
    /// Leading rows in use: elements per row of `y`.
    pub rows: usize,
    /// Leading columns in use.
    pub cols: usize,
    /// Operand: the input or the output of a factor.
    pub input: Input,
    /// Output `[n, rows]`.
    pub y: &'a D::Memory,
    /// Accumulates into `y`, with the bits of a separate sum.
    pub accumulate: bool,
}

/// Rows per arrival counter of a launch that quantises its output.
const ROWS_PER_COUNTER: usize = 32;

const ALIGNMENT: usize = 256;

/// Computes `y [rows.len(), matrix.rows()]`, the products of a matrix with a range of rows of `x
/// [n, matrix.cols()]`.
pub fn product<D: Device>(
    device: &D,
    rows: Range<usize>,
    matrix: &DeviceMatrix<D>,
    x: &D::Memory,
    y: &D::Memory,
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    product_after(device, None, rows, matrix, [x, y], workspace)
}

/// As [`product`], after a pending operation that produces all the rows.
pub fn product_after<D: Device>(
    device: &D,
    before: Option<PendingOperation<'_, D>>,
    rows: Range<usize>,
    matrix: &DeviceMatrix<D>,
    [x, y]: [&D::Memory; 2],
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    let (n, width) = (rows.len(), matrix.cols());
    let start = rows.start.saturating_mul(width).saturating_mul(F32_BYTES);
    let x = byte_span(x, "x", start, &[n, width], F32_BYTES)?;
    let to = ProductOutput {
        y: byte_span(y, "y", 0, &[n, matrix.rows()], F32_BYTES)?,
        rows: matrix.rows(),
        computed_rows: matrix.rows(),
        quantised: None,
        accumulate: false,
    };
    let all = vec![(matrix, to)];
    let mut vectors = InputVectors::new(n, width, x);
    allocate_quantised(device, &mut vectors, &all, &mut workspace.quantised_input)?;
    quantise_inputs(device, before, &vectors, false)?;
    multiply(device, workspace.order, &[(vectors, all)])
}

/// Applies every projection to each row of `x [n, in]`: those with [`Input::Vector`] to the row,
/// others to the inner vector of their factor.
pub fn project<D: Device>(
    device: &D,
    n: usize,
    x: &D::Memory,
    factors: &[Factor<'_, D>],
    projections: &[Projection<'_, D>],
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    project_after(device, None, n, x, factors, projections, workspace)
}

/// As [`project`], after a pending operation that produces `x`.
pub fn project_after<D: Device>(
    device: &D,
    before: Option<PendingOperation<'_, D>>,
    n: usize,
    x: &D::Memory,
    factors: &[Factor<'_, D>],
    projections: &[Projection<'_, D>],
    workspace: &mut Workspace<D>,
) -> Result<(), DeviceError> {
    let Some(width) = input_width(factors, projections)? else {
        return before.map_or(Ok(()), |before| before.finish(device));
    };
    let x = byte_span(x, "x", 0, &[n, width], F32_BYTES)?;
    let mut end = 0_usize;
    let places: Vec<usize> = factors
        .iter()
        .map(|factor| {
            let numbers = n.saturating_mul(factor.rows).saturating_mul(F32_BYTES);
            end = end.saturating_add(numbers.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT));
            end - numbers.div_ceil(ALIGNMENT) * ALIGNMENT
        })
        .collect();
    let outputs = workspace.factor_outputs.reserve(device, end)?;
    while workspace.quantised_factor_outputs.len() < factors.len() {
        workspace
            .quantised_factor_outputs
            .push(GrowingBuffer::default());
    }
    let counts = factors
        .iter()
        .map(|factor| factor.rows.div_ceil(ROWS_PER_COUNTER));
    let arrived = match counts.clone().sum() {
        0 => None,
        count => Some(zeroed_counters(
            device,
            &mut workspace.arrival_counters,
            count,
        )?),
    };
    let mut counted = 0;
    let mut inner = Vec::with_capacity(factors.len());
    let mut done = Vec::with_capacity(factors.len());
    let mut first = projection_targets(n, projections, Input::Vector)?;
    let of_factors = factors
        .iter()
        .zip(places)
        .zip(counts)
        .zip(&mut workspace.quantised_factor_outputs);
    for (index, (((factor, start), count), of_inner)) in of_factors.enumerate() {
        let x = byte_span(
            outputs,
            "an inner vector",
            start,
            &[n, factor.rows],
            F32_BYTES,
        )?;
        let mut vectors = InputVectors::new(n, factor.rows, x);
        let second = projection_targets(n, projections, Input::Inner(index))?;
        allocate_quantised(device, &mut vectors, &second, of_inner)?;
        let arrived = arrived.map_or(Ok(DeviceSpan::NULL), |memory| {
            byte_span(memory, "counts", 4 * counted, &[count], 4)
        })?;
        counted += count;
        let rounded = match workspace.launches {
            LaunchStrategy::PerProduct => None,
            LaunchStrategy::TwoStages | LaunchStrategy::SingleLaunch => {
                vectors.quantised_output(factor.matrix, arrived)
            }
        };
        let to = ProductOutput {
            y: x,
            rows: factor.rows,
            computed_rows: factor.rank,
            quantised: rounded,
            accumulate: false,
        };
        first.push((factor.matrix, to));
        inner.push((vectors, second));
        done.push(rounded.is_some());
    }
    let mut vectors = InputVectors::new(n, width, x);
    allocate_quantised(device, &mut vectors, &first, &mut workspace.quantised_input)?;
    quantise_inputs(device, before, &vectors, false)?;
    let first = [(vectors, first)];
    if workspace.launches == LaunchStrategy::SingleLaunch {
        let meeting = zeroed_counters(device, &mut workspace.barrier_counters, BARRIER_WORDS)?;
        let rounded = done.iter().all(|&done| done);
        if multiply_pair(device, meeting, &first, &inner, rounded)? {
            return Ok(());
        }
    }
    multiply(device, workspace.order, &first)?;
    for ((vectors, _), &done) in inner.iter().zip(&done) {
        quantise_inputs(device, None, vectors, done)?;
    }
    let together = match workspace.launches {
        LaunchStrategy::PerProduct => 1,
        LaunchStrategy::TwoStages | LaunchStrategy::SingleLaunch => inner.len().max(1),
    };
    let mut of_launches = inner.chunks(together);
    of_launches.try_for_each(|groups| multiply(device, workspace.order, groups))
}

fn projection_targets<'a, D: Device>(
    n: usize,
    projections: &[Projection<'a, D>],
    input: Input,
) -> Result<Targets<'a, D>, DeviceError> {
    let of_input = projections
        .iter()
        .filter(|projection| projection.input == input);
    let targets = of_input.map(|projection| {
        let to = ProductOutput {
            y: byte_span(projection.y, "y", 0, &[n, projection.rows], F32_BYTES)?,
            rows: projection.rows,
            computed_rows: projection.rows,
            quantised: None,
            accumulate: projection.accumulate,
        };
        Ok((projection.matrix, to))
    });
    targets.collect()
}

/// Checks all shapes; `None` if nothing reads the input.
fn input_width<D: Device>(
    factors: &[Factor<'_, D>],
    projections: &[Projection<'_, D>],
) -> Result<Option<usize>, DeviceError> {
    let mut width = None;
    let mut reads = |cols: usize| match width.replace(cols) {
        Some(other) if other != cols => Err(shape_mismatch("columns of the input", cols, other)),
        _ => Ok(()),
    };
    for factor in factors {
        reads(factor.matrix.cols())?;
        if factor.rows > factor.matrix.rows() || factor.rank > factor.rows {
            let rows = factor.matrix.rows().min(factor.rows);
            return Err(shape_mismatch(
                "rows of a factor",
                factor.rows.max(factor.rank),
                rows,
            ));
        }
    }
    for projection in projections {
        match projection.input {
            Input::Vector => reads(projection.cols)?,
            Input::Inner(index) => {
                let rows = factors.get(index).map_or(0, |factor| factor.rows);
                if index >= factors.len() || rows != projection.cols {
                    return Err(shape_mismatch(
                        "numbers of an inner vector",
                        projection.cols,
                        rows,
                    ));
                }
            }
        }
        if projection.rows > projection.matrix.rows() {
            return Err(shape_mismatch(
                "rows of a projection",
                projection.rows,
                projection.matrix.rows(),
            ));
        }
    }
    Ok(width)
}

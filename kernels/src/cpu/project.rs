//! Projections that share an input, each as one matrix or as a factorised pair.

use std::marker::PhantomData;

use super::Cpu;
use super::activations::quantise_rows;
use super::matvec::{PreparedVector, matvec_single_threaded, rows_per_task, super_blocks};
use super::scratch::{Scratch, grown};
use crate::error::{ShapeError, check_at_most, check_numbers, check_size};
use crate::matrix::Matrix;
use crate::pool::Pool;

/// Matrix `A` whose product with the input is the inner vector of factorised projections.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a> {
    /// `A`, `[rows, cols]`.
    pub w: Matrix<'a>,
    /// Number of inner components in use, at most `rows`; the others count as zero. A second
    /// factor's rows are whole blocks, but a rank may be any number.
    pub rank: usize,
}

/// Input of a projection's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The input itself.
    Vector,
    /// The inner vector of the factor of this index.
    Inner(usize),
}

/// Projection `y = W x` or `y = W A x`.
#[derive(Debug)]
pub struct Projection<'a> {
    /// `W`, `[rows, cols]`.
    pub w: Matrix<'a>,
    /// Vector that the matrix multiplies.
    pub input: Input,
    /// `[n, rows]`.
    pub y: &'a mut [f32],
}

impl Cpu {
    /// Applies every projection to every row of `x [n, cols]`.
    ///
    /// One row takes a single fork-join: first all factors and all projections of the input, then
    /// the projections of inner vectors. Vectors are quantised once. Several rows pass both stages
    /// a tile at a time, so that inner vectors stay in the cache.
    ///
    /// # Errors
    /// When a shape does not fit or an input names no factor; nothing is written then.
    pub fn project(
        &self,
        n: usize,
        x: &[f32],
        factors: &[Factor<'_>],
        projections: &mut [Projection<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        if n == 1 {
            return self.project_batch_invariant(n, x, factors, projections, scratch);
        }
        check_shapes(n, x, factors, projections)?;
        for projection in projections.iter_mut() {
            if projection.input == Input::Vector {
                self.matmul(projection.w, n, x, projection.y, scratch)?;
            }
        }
        let mut inner = std::mem::take(&mut scratch.inner);
        let mut outcome = Ok(());
        for (f, factor) in factors.iter().enumerate() {
            let projections = projections
                .iter_mut()
                .filter(|projection| projection.input == Input::Inner(f));
            let all = project_through_factor(self, n, x, factor, projections, &mut inner, scratch);
            outcome = outcome.and(all);
        }
        scratch.inner = inner;
        outcome
    }

    /// As [`Cpu::project`], with every row bit-identical to a batch of one. Products of one vector
    /// and of many otherwise add in another order and round differently; in speculative decoding
    /// that could decide whether a drafted token is accepted. Memory is read once, but weights are
    /// decoded once per vector. Matrices in column groups are batch-invariant
    /// already.
    ///
    /// # Errors
    /// As [`Cpu::project`].
    pub fn project_batch_invariant(
        &self,
        n: usize,
        x: &[f32],
        factors: &[Factor<'_>],
        projections: &mut [Projection<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        check_shapes(n, x, factors, projections)?;
        if n > 0 {
            project_single_rows(self, n, x, factors, projections, scratch);
        }
        Ok(())
    }

    /// As [`Cpu::matmul`], with every row of `y` bit-identical to [`Cpu::matvec`].
    ///
    /// # Errors
    /// As [`Cpu::matmul`].
    pub fn matmul_batch_invariant(
        &self,
        w: Matrix<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        let input = Input::Vector;
        self.project_batch_invariant(n, x, &[], &mut [Projection { w, input, y }], scratch)
    }
}

fn check_shapes(
    n: usize,
    x: &[f32],
    factors: &[Factor<'_>],
    projections: &[Projection<'_>],
) -> Result<(), ShapeError> {
    let numbers = |what, w: &Matrix<'_>| check_numbers(what, &[n, w.cols()], x.len());
    for factor in factors {
        numbers("x (numbers)", &factor.w)?;
        check_at_most("rank (at most)", factor.w.rows(), factor.rank)?;
    }
    for projection in projections {
        match projection.input {
            Input::Vector => numbers("x (numbers)", &projection.w)?,
            Input::Inner(index) => {
                let Some(factor) = factors.get(index) else {
                    return Err(ShapeError::new(
                        "factor (index, below)",
                        factors.len(),
                        index,
                    ));
                };
                check_size(
                    "inner vector (numbers)",
                    projection.w.cols(),
                    factor.w.rows(),
                )?;
            }
        }
        let shape = [n, projection.w.rows()];
        check_numbers("y (numbers)", &shape, projection.y.len())?;
    }
    Ok(())
}

const TILE: usize = 1 << 17;

const TILE_ROWS: usize = 64;

fn project_through_factor<'s, 'y: 's>(
    cpu: &Cpu,
    n: usize,
    x: &[f32],
    factor: &Factor<'_>,
    projections: impl Iterator<Item = &'s mut Projection<'y>>,
    inner: &mut Vec<f32>,
    scratch: &mut Scratch,
) -> Result<(), ShapeError> {
    let (rank, cols) = (factor.w.rows(), factor.w.cols());
    let tile = (TILE / rank.max(1)).max(TILE_ROWS).min(n);
    let mut projections: Vec<_> = projections.collect();
    for start in (0..n).step_by(tile.max(1)) {
        let count = tile.min(n - start);
        let x = &x[start * cols..][..count * cols];
        let inner = grown(inner, count * rank, 0.0);
        cpu.matmul(factor.w, count, x, inner, scratch)?;
        zero_unused_components(inner, rank, factor.rank);
        for projection in &mut projections {
            let rows = projection.w.rows();
            let y = &mut projection.y[start * rows..][..count * rows];
            cpu.matmul(projection.w, count, inner, y, scratch)?;
        }
    }
    Ok(())
}

/// Zeroes the components from `rank` in rows of `width` numbers.
fn zero_unused_components(inner: &mut [f32], width: usize, rank: usize) {
    if rank < width {
        for row in inner.chunks_exact_mut(width) {
            row[rank..].fill(0.0);
        }
    }
}

struct DisjointSlice<'a, T> {
    base: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: equivalent to a mutable slice, except for the disjointness of parts, which the unsafe
// methods require of their caller.
unsafe impl<T: Send + Sync> Sync for DisjointSlice<'_, T> {}

impl<'a, T> DisjointSlice<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        DisjointSlice {
            base: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// # Safety
    /// The part must not be written while the result lives.
    unsafe fn get(&self, start: usize, len: usize) -> &[T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the part lies in the slice; the caller ensures exclusive or shared access.
        unsafe { std::slice::from_raw_parts(self.base.add(start), len) }
    }

    /// # Safety
    /// The part must not be used otherwise while the result lives.
    #[expect(clippy::mut_from_ref, reason = "the caller answers for it")]
    unsafe fn get_mut(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the part lies in the slice; the caller ensures exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}

struct ProductTasks<'a> {
    w: Matrix<'a>,
    input: Input,
    y: DisjointSlice<'a, f32>,
    rows: usize,
    tasks: usize,
}

impl<'a> ProductTasks<'a> {
    fn new(pool: &Pool, n: usize, w: Matrix<'a>, input: Input, y: &'a mut [f32]) -> Self {
        let rows = match (pool.threads(), n) {
            (1, 1) => w.rows().max(1),
            (threads, _) => rows_per_task(&w, threads),
        };
        ProductTasks {
            w,
            input,
            y: DisjointSlice::new(y),
            rows,
            tasks: w.rows().div_ceil(rows),
        }
    }
}

struct InnerVectorLayout {
    numbers: usize,
    super_blocks: usize,
    super_block_count: usize,
}

/// Returns the positions of the inner vectors of a row, and the buffer sizes: their numbers,
/// super-blocks of `x`, super-blocks of inner vectors (only where a product reads them).
fn plan_inner_vectors(
    factors: &[Factor<'_>],
    projections: &[Projection<'_>],
) -> (Vec<InnerVectorLayout>, [usize; 3]) {
    let read = |input| {
        let projections = projections
            .iter()
            .filter(|projection| projection.input == input);
        let matrices = projections.map(|projection| projection.w);
        matrices
            .map(|w| super_blocks(w.dtype(), w.cols()))
            .max()
            .unwrap_or(0)
    };
    let by_factors = factors
        .iter()
        .map(|f| super_blocks(f.w.dtype(), f.w.cols()))
        .max();
    let x_super_blocks = by_factors.unwrap_or(0).max(read(Input::Vector));
    let (mut numbers, mut super_block_count) = (0, 0);
    let mut layouts = Vec::with_capacity(factors.len());
    for (index, factor) in factors.iter().enumerate() {
        let inner = InnerVectorLayout {
            numbers,
            super_blocks: super_block_count,
            super_block_count: read(Input::Inner(index)),
        };
        numbers += factor.w.rows();
        super_block_count += inner.super_block_count;
        layouts.push(inner);
    }
    (layouts, [numbers, x_super_blocks, super_block_count])
}

/// Returns the products of the first stage, which read the vector, and of the second, which read
/// inner vectors. Every row of every product is in one task, and no two of them share a number of
/// `y`.
fn plan_stages<'a>(
    pool: &Pool,
    n: usize,
    factors: &[Factor<'a>],
    projections: &'a mut [Projection<'_>],
    inner: &'a DisjointSlice<'_, f32>,
    layouts: &[InnerVectorLayout],
) -> [Vec<ProductTasks<'a>>; 2] {
    let mut first = Vec::with_capacity(projections.len() + factors.len());
    let mut second = Vec::with_capacity(projections.len());
    for (factor, at) in factors.iter().zip(layouts) {
        // SAFETY: the parts of the factors are disjoint, and no other part is in use yet.
        let y = unsafe { inner.get_mut(n * at.numbers, n * factor.w.rows()) };
        first.push(ProductTasks::new(pool, n, factor.w, Input::Vector, y));
    }
    for projection in projections {
        let stage = match projection.input {
            Input::Vector => &mut first,
            Input::Inner(_) => &mut second,
        };
        stage.push(ProductTasks::new(
            pool,
            n,
            projection.w,
            projection.input,
            &mut *projection.y,
        ));
    }
    [first, second]
}

/// Projects `n ≥ 1` rows with the kernels for one: a task multiplies a block of rows of a matrix,
/// which stays in the cache, with one vector after another.
fn project_single_rows(
    cpu: &Cpu,
    n: usize,
    x: &[f32],
    factors: &[Factor<'_>],
    projections: &mut [Projection<'_>],
    scratch: &mut Scratch,
) {
    let (kernels, pool, cols) = (cpu.kernels, &*cpu.pool, x.len() / n);
    let (layouts, [numbers, x_super_blocks, super_block_count]) =
        plan_inner_vectors(factors, projections);
    let (inner, super_blocks) =
        scratch.projection_buffers(n * numbers, n * (x_super_blocks + super_block_count));
    let (x_super_blocks, inner_super_blocks) = super_blocks.split_at_mut(n * x_super_blocks);
    if !x_super_blocks.is_empty() {
        quantise_rows(kernels, pool, cols, x, x_super_blocks);
    }
    let (x_super_blocks, row_super_blocks) = (&*x_super_blocks, x_super_blocks.len() / n);

    let inner = DisjointSlice::new(inner);
    let inner_super_blocks = DisjointSlice::new(inner_super_blocks);
    let stages = plan_stages(pool, n, factors, projections, &inner, &layouts);
    let tasks = stages
        .each_ref()
        .map(|stage| stage.iter().map(|w| w.tasks).sum());

    let vector = |input: Input, t: usize| match input {
        Input::Vector => PreparedVector {
            numbers: &x[t * cols..][..cols],
            super_blocks: &x_super_blocks[t * row_super_blocks..][..row_super_blocks],
        },
        Input::Inner(index) => {
            let (at, rows) = (&layouts[index], factors[index].w.rows());
            let super_blocks = n * at.super_blocks + t * at.super_block_count;
            // SAFETY: inner vectors are written only in and directly after the first stage, and
            // only products of the second read them.
            unsafe {
                PreparedVector {
                    numbers: inner.get(n * at.numbers + t * rows, rows),
                    super_blocks: inner_super_blocks.get(super_blocks, at.super_block_count),
                }
            }
        }
    };
    let run = |stage: usize, mut task: usize| {
        for work in &stages[stage] {
            if task >= work.tasks {
                task -= work.tasks;
                continue;
            }
            let (start, rows) = (task * work.rows, work.w.rows());
            let count = work.rows.min(rows - start);
            // The rows lie in the matrix.
            let Ok(w) = work.w.row_range(start, count) else {
                return;
            };
            for t in 0..n {
                // SAFETY: every task is called once and its rows are disjoint from all others.
                let y = unsafe { work.y.get_mut(t * rows + start, count) };
                matvec_single_threaded(kernels, w, vector(work.input, t), y);
            }
            return;
        }
    };
    let between = |stage: usize| {
        if stage > 0 {
            return;
        }
        for (factor, at) in factors.iter().zip(&layouts) {
            let rows = factor.w.rows();
            for t in 0..n {
                let super_blocks = n * at.super_blocks + t * at.super_block_count;
                // SAFETY: the first stage has finished and the second has not begun.
                let (numbers, super_blocks) = unsafe {
                    (
                        inner.get_mut(n * at.numbers + t * rows, rows),
                        inner_super_blocks.get_mut(super_blocks, at.super_block_count),
                    )
                };
                zero_unused_components(numbers, rows, factor.rank);
                if !super_blocks.is_empty() {
                    (kernels.quantise)(numbers, super_blocks);
                }
            }
        }
    };
    match tasks {
        [first, 0] => pool.run(first, |task| run(0, task)),
        tasks => pool.run_stages(tasks, run, between),
    }
}

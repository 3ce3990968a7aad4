//! Projections that share an input, each as one matrix or as a factorised pair.

use std::marker::PhantomData;

use super::Cpu;
use super::activations::quantise_rows;
use super::matvec::{Vector, multiply, rows_per_task, strips};
use super::scratch::Scratch;
use crate::error::{ShapeError, check_size, checked_product};
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
pub struct Slot<'a> {
    /// `W`, `[rows, cols]`.
    pub w: Matrix<'a>,
    /// Right operand.
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
        slots: &mut [Slot<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        check(n, x, factors, slots)?;
        if n == 1 {
            single_rows(self, n, x, factors, slots, scratch);
            return Ok(());
        }
        for slot in slots.iter_mut() {
            if slot.input == Input::Vector {
                self.matmul(slot.w, n, x, slot.y, scratch)?;
            }
        }
        let mut inner = std::mem::take(&mut scratch.inner);
        let mut outcome = Ok(());
        for (f, factor) in factors.iter().enumerate() {
            let slots = slots
                .iter_mut()
                .filter(|slot| slot.input == Input::Inner(f));
            let all = two_stages(self, n, x, factor, slots, &mut inner, scratch);
            outcome = outcome.and(all);
        }
        scratch.inner = inner;
        outcome
    }

    /// As [`Cpu::project`], with every row bit-identical to a batch of one. Products of one vector
    /// and of many otherwise add in another order and round differently; in speculative decoding
    /// that could decide whether a drafted token is accepted. Memory is read once, but weights are
    /// decoded once per vector. Matrices in [column groups](super::bands) are batch-invariant
    /// already.
    ///
    /// # Errors
    /// As [`Cpu::project`].
    pub fn project_apart(
        &self,
        n: usize,
        x: &[f32],
        factors: &[Factor<'_>],
        slots: &mut [Slot<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        check(n, x, factors, slots)?;
        if n > 0 {
            single_rows(self, n, x, factors, slots, scratch);
        }
        Ok(())
    }

    /// As [`Cpu::matmul`], with every row of `y` bit-identical to [`Cpu::matvec`].
    ///
    /// # Errors
    /// As [`Cpu::matmul`].
    pub fn matmul_apart(
        &self,
        w: Matrix<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        let input = Input::Vector;
        self.project_apart(n, x, &[], &mut [Slot { w, input, y }], scratch)
    }
}

fn check(
    n: usize,
    x: &[f32],
    factors: &[Factor<'_>],
    slots: &[Slot<'_>],
) -> Result<(), ShapeError> {
    let numbers =
        |what, w: &Matrix<'_>| check_size(what, checked_product(what, &[n, w.cols()])?, x.len());
    for factor in factors {
        numbers("x (numbers)", &factor.w)?;
        if factor.rank > factor.w.rows() {
            return Err(ShapeError {
                argument: "rank (at most)",
                expected: factor.w.rows(),
                actual: factor.rank,
            });
        }
    }
    for slot in slots {
        match slot.input {
            Input::Vector => numbers("x (numbers)", &slot.w)?,
            Input::Inner(index) => {
                let Some(factor) = factors.get(index) else {
                    return Err(ShapeError {
                        argument: "factor (index, below)",
                        expected: factors.len(),
                        actual: index,
                    });
                };
                check_size("inner vector (numbers)", slot.w.cols(), factor.w.rows())?;
            }
        }
        let rows = checked_product("y (numbers)", &[n, slot.w.rows()])?;
        check_size("y (numbers)", rows, slot.y.len())?;
    }
    Ok(())
}

const TILE: usize = 1 << 17;

const TILE_ROWS: usize = 64;

fn two_stages<'s, 'y: 's>(
    cpu: &Cpu,
    n: usize,
    x: &[f32],
    factor: &Factor<'_>,
    slots: impl Iterator<Item = &'s mut Slot<'y>>,
    inner: &mut Vec<f32>,
    scratch: &mut Scratch,
) -> Result<(), ShapeError> {
    let (rank, cols) = (factor.w.rows(), factor.w.cols());
    let tile = (TILE / rank.max(1)).max(TILE_ROWS).min(n);
    let mut slots: Vec<_> = slots.collect();
    if inner.len() < tile * rank {
        inner.resize(tile * rank, 0.0);
    }
    for start in (0..n).step_by(tile.max(1)) {
        let count = tile.min(n - start);
        let x = &x[start * cols..][..count * cols];
        let inner = &mut inner[..count * rank];
        cpu.matmul(factor.w, count, x, inner, scratch)?;
        clear_tails(inner, rank, factor.rank);
        for slot in &mut slots {
            let rows = slot.w.rows();
            let y = &mut slot.y[start * rows..][..count * rows];
            cpu.matmul(slot.w, count, inner, y, scratch)?;
        }
    }
    Ok(())
}

/// Zeroes the components from `rank` in rows of `width` numbers.
fn clear_tails(inner: &mut [f32], width: usize, rank: usize) {
    if rank < width {
        for row in inner.chunks_exact_mut(width) {
            row[rank..].fill(0.0);
        }
    }
}

struct Shared<'a, T> {
    base: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: equivalent to a mutable slice, except for the disjointness of parts, which the unsafe
// methods require of their caller.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Shared {
            base: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// # Safety
    /// The part must not be written while the result lives.
    unsafe fn part(&self, start: usize, len: usize) -> &[T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the part lies in the slice; the caller ensures exclusive or shared access.
        unsafe { std::slice::from_raw_parts(self.base.add(start), len) }
    }

    /// # Safety
    /// The part must not be used otherwise while the result lives.
    #[expect(clippy::mut_from_ref, reason = "the caller answers for it")]
    unsafe fn part_mut(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the part lies in the slice; the caller ensures exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}

struct Work<'a> {
    w: Matrix<'a>,
    input: Input,
    y: Shared<'a, f32>,
    rows: usize,
    tasks: usize,
}

impl<'a> Work<'a> {
    fn new(pool: &Pool, n: usize, w: Matrix<'a>, input: Input, y: &'a mut [f32]) -> Self {
        let rows = match (pool.threads(), n) {
            (1, 1) => w.rows().max(1),
            (threads, _) => rows_per_task(&w, threads),
        };
        Work {
            w,
            input,
            y: Shared::new(y),
            rows,
            tasks: w.rows().div_ceil(rows),
        }
    }
}

struct Inner {
    numbers: usize,
    strips: usize,
    strip_count: usize,
}

/// Returns the positions of the inner vectors of a row, and the buffer sizes: their numbers,
/// super-blocks of `x`, super-blocks of inner vectors (only where a product reads them).
fn places(factors: &[Factor<'_>], slots: &[Slot<'_>]) -> (Vec<Inner>, [usize; 3]) {
    let read = |input| {
        let slots = slots.iter().filter(|slot| slot.input == input);
        let matrices = slots.map(|slot| slot.w);
        matrices
            .map(|w| strips(w.dtype(), w.cols()))
            .max()
            .unwrap_or(0)
    };
    let by_factors = factors
        .iter()
        .map(|f| strips(f.w.dtype(), f.w.cols()))
        .max();
    let x_strips = by_factors.unwrap_or(0).max(read(Input::Vector));
    let (mut numbers, mut strip_count) = (0, 0);
    let mut inners = Vec::with_capacity(factors.len());
    for (index, factor) in factors.iter().enumerate() {
        let inner = Inner {
            numbers,
            strips: strip_count,
            strip_count: read(Input::Inner(index)),
        };
        numbers += factor.w.rows();
        strip_count += inner.strip_count;
        inners.push(inner);
    }
    (inners, [numbers, x_strips, strip_count])
}

/// Returns the products of the first stage, which read the vector, and of the second, which read
/// inner vectors. Every row of every product is in one task, and no two of them share a number of
/// `y`.
fn works<'a>(
    pool: &Pool,
    n: usize,
    factors: &[Factor<'a>],
    slots: &'a mut [Slot<'_>],
    inner: &'a Shared<'_, f32>,
    inners: &[Inner],
) -> [Vec<Work<'a>>; 2] {
    let mut first = Vec::with_capacity(slots.len() + factors.len());
    let mut second = Vec::with_capacity(slots.len());
    for (factor, at) in factors.iter().zip(inners) {
        // SAFETY: the parts of the factors are disjoint.
        let y = unsafe { inner.part_mut(n * at.numbers, n * factor.w.rows()) };
        first.push(Work::new(pool, n, factor.w, Input::Vector, y));
    }
    for slot in slots {
        let stage = match slot.input {
            Input::Vector => &mut first,
            Input::Inner(_) => &mut second,
        };
        stage.push(Work::new(pool, n, slot.w, slot.input, &mut *slot.y));
    }
    [first, second]
}

/// Projects `n ≥ 1` rows with the kernels for one: a task multiplies a block of rows of a matrix,
/// which stays in the cache, with one vector after another.
fn single_rows(
    cpu: &Cpu,
    n: usize,
    x: &[f32],
    factors: &[Factor<'_>],
    slots: &mut [Slot<'_>],
    scratch: &mut Scratch,
) {
    let (kernels, pool, cols) = (cpu.kernels, &*cpu.pool, x.len() / n);
    let (inners, [numbers, x_strips, strip_count]) = places(factors, slots);
    let (inner, strips) = scratch.inner(n * numbers, n * (x_strips + strip_count));
    let (x_strips, inner_strips) = strips.split_at_mut(n * x_strips);
    if !x_strips.is_empty() {
        quantise_rows(kernels, pool, cols, x, x_strips);
    }
    let (x_strips, of_row) = (&*x_strips, x_strips.len() / n);

    let inner = Shared::new(inner);
    let inner_strips = Shared::new(inner_strips);
    let stages = works(pool, n, factors, slots, &inner, &inners);
    let tasks = stages
        .each_ref()
        .map(|works| works.iter().map(|w| w.tasks).sum());

    let vector = |input: Input, t: usize| match input {
        Input::Vector => Vector {
            numbers: &x[t * cols..][..cols],
            strips: &x_strips[t * of_row..][..of_row],
        },
        Input::Inner(index) => {
            let (at, rows) = (&inners[index], factors[index].w.rows());
            let strips = n * at.strips + t * at.strip_count;
            // SAFETY: inner vectors are written only in and directly after the first stage, and
            // only products of the second read them.
            unsafe {
                Vector {
                    numbers: inner.part(n * at.numbers + t * rows, rows),
                    strips: inner_strips.part(strips, at.strip_count),
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
                let y = unsafe { work.y.part_mut(t * rows + start, count) };
                multiply(kernels, w, vector(work.input, t), y);
            }
            return;
        }
    };
    let between = |stage: usize| {
        if stage > 0 {
            return;
        }
        for (factor, at) in factors.iter().zip(&inners) {
            let rows = factor.w.rows();
            for t in 0..n {
                let strips = n * at.strips + t * at.strip_count;
                // SAFETY: the first stage has finished and the second has not begun.
                let (numbers, strips) = unsafe {
                    (
                        inner.part_mut(n * at.numbers + t * rows, rows),
                        inner_strips.part_mut(strips, at.strip_count),
                    )
                };
                clear_tails(numbers, rows, factor.rank);
                if !strips.is_empty() {
                    (kernels.quantise)(numbers, strips);
                }
            }
        }
    };
    match tasks {
        [first, 0] => pool.run(first, |task| run(0, task)),
        tasks => pool.run_stages(tasks, run, between),
    }
}

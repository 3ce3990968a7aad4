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
            one_row(self, x, factors, slots, scratch);
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
}

pub(super) fn check(
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
pub(super) fn clear_tails(inner: &mut [f32], width: usize, rank: usize) {
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
    fn new(pool: &Pool, w: Matrix<'a>, input: Input, y: &'a mut [f32]) -> Self {
        let rows = match pool.threads() {
            1 => w.rows().max(1),
            threads => rows_per_task(&w, threads),
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

/// Returns the positions of the inner vectors, and the buffer sizes: their numbers, super-blocks of
/// `x`, super-blocks of inner vectors (only where a product reads them).
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
    factors: &[Factor<'a>],
    slots: &'a mut [Slot<'_>],
    inner: &'a Shared<'_, f32>,
    inners: &[Inner],
) -> [Vec<Work<'a>>; 2] {
    let mut first = Vec::with_capacity(slots.len() + factors.len());
    let mut second = Vec::with_capacity(slots.len());
    for (factor, at) in factors.iter().zip(inners) {
        // SAFETY: the parts of the factors are disjoint.
        let y = unsafe { inner.part_mut(at.numbers, factor.w.rows()) };
        first.push(Work::new(pool, factor.w, Input::Vector, y));
    }
    for slot in slots {
        let stage = match slot.input {
            Input::Vector => &mut first,
            Input::Inner(_) => &mut second,
        };
        stage.push(Work::new(pool, slot.w, slot.input, &mut *slot.y));
    }
    [first, second]
}

fn one_row(
    cpu: &Cpu,
    x: &[f32],
    factors: &[Factor<'_>],
    slots: &mut [Slot<'_>],
    scratch: &mut Scratch,
) {
    let (kernels, pool) = (cpu.kernels, &*cpu.pool);
    let (inners, [numbers, x_strips, strip_count]) = places(factors, slots);
    let (inner, strips) = scratch.inner(numbers, x_strips + strip_count);
    let (x_strips, inner_strips) = strips.split_at_mut(x_strips);
    if !x_strips.is_empty() {
        quantise_rows(kernels, pool, x.len(), x, x_strips);
    }
    let x = Vector {
        numbers: x,
        strips: x_strips,
    };

    let inner = Shared::new(inner);
    let inner_strips = Shared::new(inner_strips);
    let stages = works(pool, factors, slots, &inner, &inners);
    let tasks = stages
        .each_ref()
        .map(|works| works.iter().map(|w| w.tasks).sum());

    let run = |stage: usize, mut task: usize| {
        for work in &stages[stage] {
            if task >= work.tasks {
                task -= work.tasks;
                continue;
            }
            let start = task * work.rows;
            let count = work.rows.min(work.w.rows() - start);
            let x = match work.input {
                Input::Vector => x,
                Input::Inner(index) => {
                    let (at, rows) = (&inners[index], factors[index].w.rows());
                    // SAFETY: inner vectors are written only in and directly after the first stage,
                    // and this is the second.
                    unsafe {
                        Vector {
                            numbers: inner.part(at.numbers, rows),
                            strips: inner_strips.part(at.strips, at.strip_count),
                        }
                    }
                }
            };
            // SAFETY: every task is called once and its rows are disjoint from all others.
            let y = unsafe { work.y.part_mut(start, count) };
            // The rows lie in the matrix.
            if let Ok(w) = work.w.row_range(start, count) {
                multiply(kernels, w, x, y);
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
            // SAFETY: the first stage has finished and the second has not begun.
            let (numbers, strips) = unsafe {
                (
                    inner.part_mut(at.numbers, rows),
                    inner_strips.part_mut(at.strips, at.strip_count),
                )
            };
            clear_tails(numbers, rows, factor.rank);
            if !strips.is_empty() {
                (kernels.quantise)(numbers, strips);
            }
        }
    };
    match tasks {
        [first, 0] => pool.run(first, |task| run(0, task)),
        tasks => pool.run_stages(tasks, run, between),
    }
}

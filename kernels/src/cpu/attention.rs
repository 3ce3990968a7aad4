//! Causal attention with grouped heads, over all earlier positions or a window of them.

use super::Cpu;
use super::gemm::for_each_block;
use super::heads::Columns;
use super::kernels::Kernels;
use super::kv::{KvNumbers, KvView};
use super::scratch::Scratch;
use crate::error::ShapeError;

/// What models differ in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// A score is `scale * q · k`.
    pub scale: f32,
    /// `cap` above 0: a score `s` becomes `cap * tanh(s / cap)`, before what is not visible is
    /// left out.
    pub softcap: Option<f32>,
    /// `w` of at least 1: position `p` sees the positions `p'` with `p - p' < w`; all of
    /// `0 ..= p` where there is no window.
    pub window: Option<usize>,
}

impl Attention {
    /// The first position that `position` sees.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// `Ok` where every position sees itself.
    pub(crate) fn check(&self) -> Result<(), ShapeError> {
        if self.window == Some(0) {
            return Err(ShapeError {
                what: "window (positions, at least)",
                expected: 1,
                found: 0,
            });
        }
        Ok(())
    }
}

/// Positions that one task of a decoding step looks at.
const SPLIT: usize = 256;

/// Heads whose scores a task of a decoding step holds at a time.
const TOGETHER: usize = 4;

impl Cpu {
    /// Attention of the queries of one position, `q [heads, head_size]`, the last of the first
    /// `positions` of `kv`; `out` has the shape of `q`. Query head `h` reads kv head
    /// `h / (heads / kv_heads)`.
    ///
    /// The positions are cut into stretches, so that few heads and a long context still occupy every
    /// thread; each stretch gives a maximum, a sum and a weighted sum of values, which are combined
    /// in order. The heads of a group read a key or value together.
    ///
    /// # Errors
    /// When a shape does not fit, `positions` or the window is 0, or `kv` holds fewer than
    /// `positions`.
    #[allow(clippy::too_many_arguments)] // the operands of attention
    pub fn attention_decode(
        &self,
        q: &[f32],
        kv: &KvView<'_>,
        positions: usize,
        attention: &Attention,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<(), ShapeError> {
        let (kernels, pool) = (self.kernels, &*self.pool);
        attention.check()?;
        let Some(position) = positions.checked_sub(1) else {
            return Err(ShapeError {
                what: "positions (at least)",
                expected: 1,
                found: 0,
            });
        };
        let Some((all_keys, all_values)) = kv.halves() else {
            // Which is not for speed.
            return self.attention_prefill(q, 1, position, kv, attention, scratch, out);
        };
        let heads = kv.check_queries(q.len(), 1, position, out.len())?;
        if heads == 0 {
            return Ok(());
        }
        let size = kv.head_size();
        let group = heads / kv.kv_heads();
        let begin = attention.first_visible(position);
        let splits = (positions - begin).div_ceil(SPLIT);
        let Kernels {
            loops,
            heads: products,
            ..
        } = kernels;
        // Of every head and stretch: the weighted sum, the maximum, the sum; the heads of a group
        // follow each other.
        let part = size + 2;
        let parts = scratch.take(kv.kv_heads() * splits * group * part);
        pool.chunks_mut(parts, group * part, |task, parts| {
            let (kv_head, split) = (task / splits, task % splits);
            let first = begin + split * SPLIT;
            let count = SPLIT.min(positions - first);
            let start = (kv_head * kv.capacity() + first) * size;
            let range = start..start + count * size;
            let (keys, values) = (&all_keys[range.clone()], &all_values[range]);
            let q = &q[kv_head * group * size..][..group * size];
            let (sums, ends) = parts.split_at_mut(group * size);
            sums.fill(0.0);
            let mut buffer = [0.0; TOGETHER * SPLIT];
            let together = q
                .chunks(TOGETHER * size)
                .zip(sums.chunks_mut(TOGETHER * size));
            for ((q, sums), ends) in together.zip(ends.chunks_mut(TOGETHER * 2)) {
                let scores = &mut buffer[..q.len() / size * count];
                (products.scores)(q, keys, size, attention.scale, scores);
                if let Some(cap) = attention.softcap {
                    (loops.softcap)(scores, cap);
                }
                for (scores, end) in scores.chunks_exact_mut(count).zip(ends.as_chunks_mut().0) {
                    let max = (loops.max)(scores);
                    *end = [max, (loops.exp_sum)(scores, max)];
                }
                (products.weighted_sum)(scores, values, size, sums);
            }
        });
        for (head, out) in out.chunks_exact_mut(size).enumerate() {
            let (kv_head, g) = (head / group, head % group);
            let of_split = |split: usize| {
                let (sums, ends) = parts[(kv_head * splits + split) * group * part..]
                    [..group * part]
                    .split_at(group * size);
                (&sums[g * size..][..size], [ends[2 * g], ends[2 * g + 1]])
            };
            let max = (0..splits).fold(f32::NEG_INFINITY, |max, split| {
                max.max(of_split(split).1[0])
            });
            let mut total = 0.0;
            out.fill(0.0);
            for split in 0..splits {
                let (sums, [split_max, sum]) = of_split(split);
                let weight = (split_max - max).exp();
                total += weight * sum;
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out += weight * sum;
                }
            }
            (loops.scale)(out, 1.0 / total);
        }
        Ok(())
    }
}

/// Positions whose scores a task of a prefill holds at a time.
const KEYS: usize = 64;

/// Queries that a task of a prefill has at most: as many as use a key or value that was widened.
const WIDEST: usize = 64;

/// Numbers that lie on a cache line.
const LINE: usize = 16;

impl Cpu {
    /// Causal attention of `n` positions, `q [n, heads, head_size]` at positions `start ..`, over
    /// `kv`, which holds their keys and values too; `out` has the shape of `q`. Heads as in
    /// [`Cpu::attention_decode`].
    ///
    /// A task is a block of queries that read the same kv head. It goes through the positions in
    /// tiles and keeps a running maximum and sum (online softmax), so that its working memory does
    /// not grow with the context. A query is a column: keys and values are used in the order in which
    /// they are stored, and a maximum over positions needs nothing from the neighbouring lanes.
    ///
    /// # Errors
    /// When a shape does not fit, the window is 0 or `kv` holds fewer than `start + n` positions.
    #[allow(clippy::too_many_arguments)] // the operands of attention
    pub fn attention_prefill(
        &self,
        q: &[f32],
        n: usize,
        start: usize,
        kv: &KvView<'_>,
        attention: &Attention,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<(), ShapeError> {
        let (kernels, pool) = (self.kernels, &*self.pool);
        attention.check()?;
        let heads = kv.check_queries(q.len(), n, start, out.len())?;
        if heads == 0 {
            return Ok(());
        }
        let size = kv.head_size();
        let group = heads / kv.kv_heads();
        // Queries of a task: the whole group at some positions, or one head at more of them.
        let together = if 2 * group <= WIDEST { group } else { 1 };
        let height = WIDEST / together;
        let task_scratch = Task::numbers(size, WIDEST);
        let scratch = scratch.take(task_scratch * pool.threads());
        // `out` seen as [n, heads * size] is cut into blocks of some positions of some heads.
        for_each_block(
            pool,
            out,
            [n, heads * size],
            [height, together * size],
            scratch,
            |[row, column], mut out, scratch| {
                let (keys, values) = kv.head(column / size / group);
                let rows = height.min(n - row);
                let columns = rows * together;
                let width = columns.next_multiple_of(kernels.heads.lanes);
                let mut task = Task::new(scratch, size, width);
                // The last position stands in for columns that are not used.
                let positions = (0..width).map(|c| start + row + (c / together).min(rows - 1));
                task.set_queries(
                    (0..columns).map(|c| {
                        let at = (row + c / together) * heads * size + column + c % together * size;
                        &q[at..][..size]
                    }),
                    attention.scale,
                );
                let (seen_by_all, end) = (start + row + 1, start + row + rows);
                let begin = attention.first_visible(start + row);
                let begin_of_last = attention.first_visible(end - 1);
                for tile in (begin..end).step_by(KEYS) {
                    let count = KEYS.min(end - tile);
                    let range = tile * size..(tile + count) * size;
                    task.score(kernels, keys.slice(range.clone()), attention.softcap);
                    if tile + count > seen_by_all || tile < begin_of_last {
                        task.mask(
                            kernels,
                            count,
                            positions.clone().map(|p| {
                                [attention.first_visible(p), p + 1].map(|p| p.saturating_sub(tile))
                            }),
                        );
                    }
                    task.add(kernels, values.slice(range));
                }
                for (c, attended) in task.finish(columns).enumerate() {
                    out.row_mut(c / together)[c % together * size..][..size]
                        .copy_from_slice(attended);
                }
            },
        );
        Ok(())
    }
}

/// `to [cols, rows]` from `[rows, cols]`, in blocks that the compiler turns in registers.
fn transpose(from: &[f32], [rows, cols]: [usize; 2], to: &mut [f32]) {
    const SIDE: usize = 4;
    for row in (0..rows).step_by(SIDE) {
        let height = SIDE.min(rows - row);
        let whole = if height == SIDE {
            cols / SIDE * SIDE
        } else {
            0
        };
        for col in (0..whole).step_by(SIDE) {
            let mut block = [[0.0; SIDE]; SIDE];
            for (r, block) in block.iter_mut().enumerate() {
                block.copy_from_slice(&from[(row + r) * cols + col..][..SIDE]);
            }
            for c in 0..SIDE {
                let to = &mut to[(col + c) * rows + row..][..SIDE];
                to.copy_from_slice(&[block[0][c], block[1][c], block[2][c], block[3][c]]);
            }
        }
        for col in whole..cols {
            for r in row..row + height {
                to[col * rows + r] = from[r * cols + col];
            }
        }
    }
}

/// Numbers as float32, in `room` where they are not stored so.
fn in_f32<'a>(kernels: &Kernels, numbers: KvNumbers<'a>, room: &'a mut [f32]) -> &'a [f32] {
    match numbers {
        KvNumbers::F32(numbers) => numbers,
        KvNumbers::F16(halves) => {
            let wide = &mut room[..halves.len()];
            (kernels.heads.widen)(halves, wide);
            wide
        }
    }
}

/// The working memory of a block of queries, which are the columns.
struct Task<'a> {
    size: usize,
    width: usize,
    /// `[size, width]`, times the scale.
    queries: &'a mut [f32],
    /// `[KEYS, width]`: scores, then weights.
    scores: &'a mut [f32],
    /// `[size, width]`: the weighted sums.
    sums: &'a mut [f32],
    /// `[KEYS, size]`: keys or values of a tile.
    tile: &'a mut [f32],
    max: &'a mut [f32],
    total: &'a mut [f32],
    shrink: &'a mut [f32],
    /// The rows of a tile that a column sees.
    first: [i32; WIDEST],
    end: [i32; WIDEST],
    fresh: bool,
}

impl<'a> Task<'a> {
    /// Numbers of working memory.
    fn numbers(size: usize, width: usize) -> usize {
        (2 * width + KEYS) * size.next_multiple_of(LINE) + (KEYS + 3) * width + 2 * LINE
    }

    fn new(scratch: &'a mut [f32], size: usize, width: usize) -> Self {
        // A register then lies on one cache line.
        let padding = scratch
            .as_ptr()
            .align_offset(LINE * size_of::<f32>())
            .min(LINE);
        let mut rest = &mut scratch[padding..];
        let mut take = |len: usize| {
            let (taken, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            taken
        };
        let task = Task {
            size,
            width,
            queries: take(size * width),
            scores: take(KEYS * width),
            sums: take(size * width),
            max: take(width),
            total: take(width),
            shrink: take(width),
            tile: take(KEYS * size),
            first: [0; WIDEST],
            end: [0; WIDEST],
            fresh: true,
        };
        task.max.fill(f32::NEG_INFINITY);
        task.total.fill(0.0);
        task
    }

    /// Makes every query a column, times `scale`.
    fn set_queries<'q>(&mut self, queries: impl Iterator<Item = &'q [f32]>, scale: f32) {
        // The sums are not needed yet; columns without a query stay 0.
        self.sums.fill(0.0);
        for (row, q) in self.sums.chunks_exact_mut(self.size).zip(queries) {
            for (row, q) in row.iter_mut().zip(q) {
                *row = q * scale;
            }
        }
        transpose(self.sums, [self.width, self.size], self.queries);
    }

    /// Scores of every column with `keys [count, size]`.
    fn score(&mut self, kernels: &Kernels, keys: KvNumbers<'_>, softcap: Option<f32>) {
        let tile = in_f32(kernels, keys, self.tile);
        let rows = tile.len() / self.size;
        let scores = &mut self.scores[..rows * self.width];
        let operands = Columns {
            a: tile,
            strides: [self.size, 1],
            rows,
            b: self.queries,
            width: self.width,
            keep: None,
        };
        (kernels.heads.columns)(operands, scores);
        if let Some(cap) = softcap {
            (kernels.loops.softcap)(scores, cap);
        }
    }

    /// Leaves out what is not visible of the `rows` positions of a tile: of every column, where it
    /// begins and ends to see.
    fn mask(&mut self, kernels: &Kernels, rows: usize, visible: impl Iterator<Item = [usize; 2]>) {
        for ((first, end), visible) in self.first.iter_mut().zip(&mut self.end).zip(visible) {
            // At most the rows, so that it fits.
            [*first, *end] = visible.map(|position| position.min(rows) as i32);
        }
        let scores = &mut self.scores[..rows * self.width];
        (kernels.loops.mask_columns)(scores, &self.first[..self.width], &self.end[..self.width]);
    }

    /// Weights from the scores, and the sums with `values [count, size]`.
    fn add(&mut self, kernels: &Kernels, values: KvNumbers<'_>) {
        let tile = in_f32(kernels, values, self.tile);
        let rows = tile.len() / self.size;
        let weights = &mut self.scores[..rows * self.width];
        (kernels.loops.column_softmax)(weights, self.max, self.total, self.shrink);
        let operands = Columns {
            a: tile,
            strides: [1, self.size],
            rows: self.size,
            b: weights,
            width: self.width,
            keep: (!self.fresh).then_some(self.shrink),
        };
        (kernels.heads.columns)(operands, self.sums);
        self.fresh = false;
    }

    /// What each of the first `columns` columns attended to.
    fn finish(&mut self, columns: usize) -> impl Iterator<Item = &[f32]> {
        for total in &mut *self.total {
            *total = 1.0 / *total;
        }
        for row in self.sums.chunks_exact_mut(self.width) {
            for (sum, factor) in row.iter_mut().zip(&*self.total) {
                *sum *= factor;
            }
        }
        // The queries are not needed any more.
        transpose(self.sums, [self.size, self.width], self.queries);
        self.queries.chunks_exact(self.size).take(columns)
    }
}

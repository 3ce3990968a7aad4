//! Causal attention with grouped heads, over all earlier positions or a window of them.

use super::gemm::{Target, for_each_block};
use super::heads::Columns;
use super::kernels::{self, Kernels};
use super::kv::KvView;
use super::scratch::Scratch;
use crate::error::ShapeError;
use crate::pool::Pool;

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
    pool: &Pool,
    q: &[f32],
    kv: &KvView<'_>,
    positions: usize,
    attention: &Attention,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let kernels = kernels::detected();
    attention_decode_with(kernels, pool, q, kv, positions, attention, scratch, out)
}

#[allow(clippy::too_many_arguments)] // the operands of attention
pub(super) fn attention_decode_with(
    kernels: &Kernels,
    pool: &Pool,
    q: &[f32],
    kv: &KvView<'_>,
    positions: usize,
    attention: &Attention,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    attention.check()?;
    let Some(position) = positions.checked_sub(1) else {
        return Err(ShapeError {
            what: "positions (at least)",
            expected: 1,
            found: 0,
        });
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
        let (keys, values) = kv.head(kv_head);
        let first = begin + split * SPLIT;
        let count = SPLIT.min(positions - first);
        let range = first * size..(first + count) * size;
        let (keys, values) = (&keys[range.clone()], &values[range]);
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
            let (sums, ends) = parts[(kv_head * splits + split) * group * part..][..group * part]
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

/// Positions whose scores a task of a prefill holds at a time.
const KEYS: usize = 64;

/// Numbers that lie on a cache line.
const LINE: usize = 16;

/// Causal attention of `n` positions, `q [n, heads, head_size]` at positions `start ..`, over
/// `kv`, which holds their keys and values too; `out` has the shape of `q`. Heads as in
/// [`attention_decode`].
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
    pool: &Pool,
    q: &[f32],
    n: usize,
    start: usize,
    kv: &KvView<'_>,
    attention: &Attention,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let kernels = kernels::detected();
    attention_prefill_with(kernels, pool, q, n, start, kv, attention, scratch, out)
}

#[allow(clippy::too_many_arguments)] // the operands of attention
pub(super) fn attention_prefill_with(
    kernels: &Kernels,
    pool: &Pool,
    q: &[f32],
    n: usize,
    start: usize,
    kv: &KvView<'_>,
    attention: &Attention,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    attention.check()?;
    let heads = kv.check_queries(q.len(), n, start, out.len())?;
    if heads == 0 {
        return Ok(());
    }
    let size = kv.head_size();
    let group = heads / kv.kv_heads();
    let widest = kernels.heads.lanes * kernels.heads.registers;
    // Queries of a task: the whole group at some positions, or one head at more of them.
    let together = if 2 * group <= widest { group } else { 1 };
    let height = widest / together;
    let task_scratch = Task::numbers(size, widest);
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
            for c in 0..columns {
                let at = (row + c / together) * heads * size + column + c % together * size;
                task.set_query(c, &q[at..][..size], attention.scale);
            }
            // The last position stands in for columns that are not used.
            let position = |c: usize| start + row + (c / together).min(rows - 1);
            let end = start + row + rows;
            for tile in (attention.first_visible(start + row)..end).step_by(KEYS) {
                let count = KEYS.min(end - tile);
                let range = tile * size..(tile + count) * size;
                task.score(kernels, &keys[range.clone()], attention.softcap);
                let first_end = start + row + 1;
                let last_begin = attention.first_visible(end - 1);
                if tile + count > first_end || tile < last_begin {
                    for c in 0..width {
                        let visible = attention.first_visible(position(c))..position(c) + 1;
                        task.mask(c, tile, count, visible);
                    }
                }
                task.add(kernels, &values[range]);
            }
            task.finish(&mut out, columns, together);
        },
    );
    Ok(())
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
            fresh: true,
        };
        task.queries.fill(0.0);
        task.max.fill(f32::NEG_INFINITY);
        task.total.fill(0.0);
        task
    }

    /// Makes `q [size]` a column.
    fn set_query(&mut self, column: usize, q: &[f32], scale: f32) {
        for (row, q) in self.queries.chunks_exact_mut(self.width).zip(q) {
            row[column] = q * scale;
        }
    }

    /// Scores of every column with `keys [count, size]`.
    fn score(&mut self, kernels: &Kernels, keys: &[u16], softcap: Option<f32>) {
        let rows = keys.len() / self.size;
        let tile = &mut self.tile[..keys.len()];
        let scores = &mut self.scores[..rows * self.width];
        (kernels.heads.widen)(keys, tile);
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

    /// Leaves out what a column does not see of the `count` positions from `tile` on.
    fn mask(&mut self, column: usize, tile: usize, count: usize, visible: std::ops::Range<usize>) {
        for (position, row) in self
            .scores
            .chunks_exact_mut(self.width)
            .take(count)
            .enumerate()
        {
            if !visible.contains(&(tile + position)) {
                row[column] = f32::NEG_INFINITY;
            }
        }
    }

    /// Weights from the scores, and the sums with `values [count, size]`.
    fn add(&mut self, kernels: &Kernels, values: &[u16]) {
        let rows = values.len() / self.size;
        let tile = &mut self.tile[..values.len()];
        let weights = &mut self.scores[..rows * self.width];
        (kernels.loops.column_softmax)(weights, self.max, self.total, self.shrink);
        (kernels.heads.widen)(values, tile);
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

    /// Writes the columns to `out`, `together` to a row.
    fn finish(&self, out: &mut Target<'_>, columns: usize, together: usize) {
        for c in 0..columns {
            let out = &mut out.row_mut(c / together)[c % together * self.size..][..self.size];
            let factor = 1.0 / self.total[c];
            for (out, row) in out.iter_mut().zip(self.sums.chunks_exact(self.width)) {
                *out = row[c] * factor;
            }
        }
    }
}

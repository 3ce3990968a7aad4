//! Causal attention with grouped heads and optional sliding windows.

mod decode;
mod importance;

use super::Cpu;
use super::gemm::for_each_block;
use super::heads::ColumnOperands;
use super::kernels::Kernels;
use super::kv::{KvNumbers, KvView};
use super::low_rank::transpose;
use super::scratch::Scratch;
use crate::error::ShapeError;

/// Attention parameters of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Factor of the scores: `scale * q · k`.
    pub scale: f32,
    /// Soft cap `cap > 0`: a score `s` becomes `cap * tanh(s / cap)` before masking.
    pub softcap: Option<f32>,
    /// Sliding window `w ≥ 1`: position `p` sees the positions `p'` with `p - p' < w`; without a
    /// window, all of `0 ..= p`.
    pub window: Option<usize>,
}

impl Attention {
    /// Returns the first position that `position` sees.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Checks that every position sees itself.
    pub(crate) fn check(&self) -> Result<(), ShapeError> {
        if self.window == Some(0) {
            return Err(ShapeError::new("window (positions, at least)", 1, 0));
        }
        Ok(())
    }
}

const TILE_POSITIONS: usize = 64;

const MAX_QUERIES: usize = 64;

const LINE_NUMBERS: usize = 16;

impl Cpu {
    /// Computes causal attention of `n` positions, `q [n, heads, head_size]` at positions `start
    /// ..`, over `kv`, which already holds their keys and values; `out` has the shape of `q`. Heads
    /// are grouped as in [`Cpu::attention_decode`].
    ///
    /// A task is a block of queries that read the same KV head. It processes positions in tiles
    /// with a running maximum and sum (online softmax), so its scratch space does not grow with the
    /// context. A query is a column: keys and values are used in storage order, and the maximum
    /// over positions needs no operation across lanes.
    ///
    /// Low-rank positions have separate scores and weighted sums of coordinates, which share the
    /// maximum and the sum of weights and are expanded at the end (OjaKV, section 3.2).
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
        let together = if 2 * group <= MAX_QUERIES { group } else { 1 };
        let height = MAX_QUERIES / together;
        let ranks = kv.low_rank().map_or([0; 2], |low| low.shape.ranks);
        let task_scratch = QueryBlock::scratch_len(size, ranks, MAX_QUERIES);
        let scratch = scratch.take(task_scratch * pool.threads());
        // Cut `out`, viewed as [n, heads * size], into blocks of some positions of some heads.
        for_each_block(
            pool,
            out,
            [n, heads * size],
            [height, together * size],
            scratch,
            |[row, column], mut out, scratch| {
                let kv_head = column / size / group;
                let rows = height.min(n - row);
                let columns = rows * together;
                let width = columns.next_multiple_of(kernels.attention.lanes);
                let mut block = QueryBlock::new(scratch, size, ranks, width);
                // The last position fills unused columns.
                let positions = (0..width).map(|c| start + row + (c / together).min(rows - 1));
                block.set_queries(
                    (0..columns).map(|c| {
                        let at = (row + c / together) * heads * size + column + c % together * size;
                        &q[at..][..size]
                    }),
                    attention.scale,
                );
                let begin = attention.first_visible(start + row);
                let begin_of_last = attention.first_visible(start + row + rows - 1);
                if let Some(low) = kv.low_rank() {
                    block.project_queries(kernels, low.basis(0, kv_head));
                    let (begin, begin_of_last) = (kv.low_row(begin), kv.low_row(begin_of_last));
                    for tile in (begin..low.shape.positions).step_by(TILE_POSITIONS) {
                        let count = TILE_POSITIONS.min(low.shape.positions - tile);
                        let [keys, values] = low.rows(kv_head, tile..tile + count);
                        block.score(kernels, Storage::LowRank, keys, attention.softcap);
                        if tile < begin_of_last {
                            let visible = positions.clone().map(|p| {
                                let first = kv.low_row(attention.first_visible(p));
                                [first.saturating_sub(tile), count]
                            });
                            block.mask(kernels, count, visible);
                        }
                        block.add_values(kernels, Storage::LowRank, values);
                    }
                }
                let [compressed, _] = kv.compressed();
                let (begin, begin_of_last) = (kv.full_row(begin), kv.full_row(begin_of_last));
                let visible_to_all = start + row + 1 - compressed;
                let end = visible_to_all + rows - 1;
                for tile in (begin..end).step_by(TILE_POSITIONS) {
                    let count = TILE_POSITIONS.min(end - tile);
                    let [keys, values] = kv.rows(kv_head, tile..tile + count);
                    block.score(kernels, Storage::Full, keys, attention.softcap);
                    if tile + count > visible_to_all || tile < begin_of_last {
                        let visible = positions.clone().map(|p| {
                            let first = kv.full_row(attention.first_visible(p));
                            [first, p + 1 - compressed].map(|p| p.saturating_sub(tile))
                        });
                        block.mask(kernels, count, visible);
                    }
                    block.add_values(kernels, Storage::Full, values);
                }
                if let Some(low) = kv.low_rank() {
                    block.expand_low_rank(kernels, low.basis(1, kv_head));
                }
                for (c, attended) in block.finish(columns).enumerate() {
                    out.row_mut(c / together)[c % together * size..][..size]
                        .copy_from_slice(attended);
                }
            },
        );
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Storage {
    Full,
    /// Stored as coordinates.
    LowRank,
}

struct QueryBlock<'a> {
    size: usize,
    ranks: [usize; 2],
    width: usize,
    /// `[size, width]`, times the scale.
    queries: &'a mut [f32],
    /// `[TILE_POSITIONS, width]`: scores, then weights.
    scores: &'a mut [f32],
    /// `[size, width]`: weighted sums.
    sums: &'a mut [f32],
    /// `[TILE_POSITIONS, size]`: keys or values of a tile.
    tile: &'a mut [f32],
    max: &'a mut [f32],
    total: &'a mut [f32],
    rescale: &'a mut [f32],
    /// `[rank of keys, width]`: coordinates of the queries.
    low_queries: &'a mut [f32],
    /// `[rank of values, width]`: weighted sums of coordinates.
    low_sums: &'a mut [f32],
    decay: &'a mut [f32],
    first: [i32; MAX_QUERIES],
    end: [i32; MAX_QUERIES],
    is_empty: [bool; 2],
}

impl<'a> QueryBlock<'a> {
    fn scratch_len(size: usize, [keys, values]: [usize; 2], width: usize) -> usize {
        let low = (keys + values + 1) * width;
        (2 * width + TILE_POSITIONS) * size.next_multiple_of(LINE_NUMBERS)
            + (TILE_POSITIONS + 3) * width
            + low
            + 2 * LINE_NUMBERS
    }

    fn new(scratch: &'a mut [f32], size: usize, ranks: [usize; 2], width: usize) -> Self {
        // Aligned so that a register lies on one cache line.
        let padding = scratch
            .as_ptr()
            .align_offset(LINE_NUMBERS * size_of::<f32>())
            .min(LINE_NUMBERS);
        let mut rest = &mut scratch[padding..];
        let mut take = |len: usize| {
            let (buffer, remaining) = std::mem::take(&mut rest).split_at_mut(len);
            rest = remaining;
            buffer
        };
        let block = QueryBlock {
            size,
            ranks,
            width,
            queries: take(size * width),
            scores: take(TILE_POSITIONS * width),
            sums: take(size * width),
            max: take(width),
            total: take(width),
            rescale: take(width),
            low_queries: take(ranks[0] * width),
            low_sums: take(ranks[1] * width),
            decay: take(width),
            tile: take(TILE_POSITIONS * size),
            first: [0; MAX_QUERIES],
            end: [0; MAX_QUERIES],
            is_empty: [true; 2],
        };
        block.max.fill(f32::NEG_INFINITY);
        block.total.fill(0.0);
        block.decay.fill(1.0);
        block
    }

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

    /// Computes the coordinates of the queries in the key components `basis [rank, size]`.
    fn project_queries(&mut self, kernels: &Kernels, basis: &[f32]) {
        let operands = ColumnOperands {
            a: basis,
            strides: [self.size, 1],
            rows: self.ranks[0],
            b: self.queries,
            width: self.width,
            keep: None,
        };
        (kernels.attention.gemm_columns)(operands, self.low_queries);
    }

    /// Computes the scores of every column with keys `[count, size]`, or `[count, rank]`.
    fn score(
        &mut self,
        kernels: &Kernels,
        storage: Storage,
        keys: KvNumbers<'_>,
        softcap: Option<f32>,
    ) {
        let tile = keys.decode_f32(kernels, self.tile);
        let (depth, queries) = match storage {
            Storage::Full => (self.size, &*self.queries),
            Storage::LowRank => (self.ranks[0], &*self.low_queries),
        };
        let rows = tile.len() / depth;
        let scores = &mut self.scores[..rows * self.width];
        let operands = ColumnOperands {
            a: tile,
            strides: [depth, 1],
            rows,
            b: queries,
            width: self.width,
            keep: None,
        };
        (kernels.attention.gemm_columns)(operands, scores);
        if let Some(cap) = softcap {
            (kernels.loops.softcap)(scores, cap);
        }
    }

    /// Masks the invisible ones of the `rows` positions of a tile; `visible` gives the first and
    /// end position of each column.
    fn mask(&mut self, kernels: &Kernels, rows: usize, visible: impl Iterator<Item = [usize; 2]>) {
        for ((first, end), visible) in self.first.iter_mut().zip(&mut self.end).zip(visible) {
            // At most the number of rows, so that it fits.
            [*first, *end] = visible.map(|position| position.min(rows) as i32);
        }
        let scores = &mut self.scores[..rows * self.width];
        (kernels.loops.mask_columns)(scores, &self.first[..self.width], &self.end[..self.width]);
    }

    /// Turns scores into weights and adds the weighted values `[count, size]`, or `[count, rank]`.
    /// Low-rank tiles come first.
    fn add_values(&mut self, kernels: &Kernels, storage: Storage, values: KvNumbers<'_>) {
        let tile = values.decode_f32(kernels, self.tile);
        let (depth, sums, is_empty) = match storage {
            Storage::Full => (self.size, &mut *self.sums, &mut self.is_empty[0]),
            Storage::LowRank => (self.ranks[1], &mut *self.low_sums, &mut self.is_empty[1]),
        };
        let rows = tile.len() / depth;
        let weights = &mut self.scores[..rows * self.width];
        (kernels.loops.column_softmax)(weights, self.max, self.total, self.rescale);
        let operands = ColumnOperands {
            a: tile,
            strides: [1, depth],
            rows: depth,
            b: weights,
            width: self.width,
            keep: (!*is_empty).then_some(self.rescale),
        };
        (kernels.attention.gemm_columns)(operands, sums);
        *is_empty = false;
        if storage == Storage::Full && !self.is_empty[1] {
            for (decay, rescale) in self.decay.iter_mut().zip(&*self.rescale) {
                *decay *= rescale;
            }
        }
    }

    /// Expands the sums of coordinates with the value components `basis [rank, size]` and adds
    /// them. The queries' own positions are stored in full, so `sums` is never empty.
    fn expand_low_rank(&mut self, kernels: &Kernels, basis: &[f32]) {
        if self.is_empty[1] {
            return;
        }
        for row in self.low_sums.chunks_exact_mut(self.width) {
            for (sum, factor) in row.iter_mut().zip(&*self.decay) {
                *sum *= factor;
            }
        }
        self.rescale.fill(1.0);
        let operands = ColumnOperands {
            a: basis,
            strides: [1, self.size],
            rows: self.size,
            b: self.low_sums,
            width: self.width,
            keep: Some(self.rescale),
        };
        (kernels.attention.gemm_columns)(operands, self.sums);
    }

    fn finish(&mut self, columns: usize) -> impl Iterator<Item = &[f32]> {
        for total in &mut *self.total {
            *total = 1.0 / *total;
        }
        for row in self.sums.chunks_exact_mut(self.width) {
            for (sum, factor) in row.iter_mut().zip(&*self.total) {
                *sum *= factor;
            }
        }
        // The queries are no longer needed.
        transpose(self.sums, [self.size, self.width], self.queries);
        self.queries.chunks_exact(self.size).take(columns)
    }
}

//! Attention of a single position, split over positions to occupy all threads.

use std::ops::Range;

use super::Attention;
use crate::cpu::Cpu;
use crate::cpu::kernels::Kernels;
use crate::cpu::kv::{KvNumbers, KvView};
use crate::cpu::low_rank::{LowRankView, multiply_batch};
use crate::cpu::scratch::Scratch;
use crate::error::ShapeError;

/// Positions per task of a decoding step.
pub(super) const SPLIT_POSITIONS: usize = 256;

const HEADS_PER_PASS: usize = 4;

const DECODED_HEADS_PER_PASS: usize = 8;

/// Numbers of decoded keys or values per tile, to stay in the L1 cache.
pub(super) const TILE_NUMBERS: usize = 8192;

struct PositionRun<'a> {
    keys: KvNumbers<'a>,
    values: KvNumbers<'a>,
    /// Sizes of a key and of a value.
    sizes: [usize; 2],
}

impl Cpu {
    /// Computes attention of the queries `q [heads, head_size]` of one position, the last of the
    /// first `positions` of `kv`; `out` has the shape of `q`. Query head `h` reads KV head `h /
    /// (heads / kv_heads)`.
    ///
    /// The positions are split into ranges, so that few heads and a long context still occupy every
    /// thread (split-K, as in Flash-Decoding). Each split gives a maximum, a sum and a weighted sum
    /// of values, which are combined in order. The heads of a group read a key or value together.
    /// Low-rank positions form separate splits of coordinates, whose sums are expanded once.
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
        attention.check()?;
        let Some(position) = positions.checked_sub(1) else {
            return Err(ShapeError::new("positions (at least)", 1, 0));
        };
        let size = kv.head_size();
        let float32 = matches!(
            kv.head_types(),
            [KvNumbers::F32(_), _] | [_, KvNumbers::F32(_)]
        );
        if float32 || size > TILE_NUMBERS {
            // The batch-invariant path is not optimised for speed.
            return self.attention_prefill(q, 1, position, kv, attention, scratch, out);
        }
        let heads = kv.check_queries(q.len(), 1, position, out.len())?;
        if heads == 0 {
            return Ok(());
        }
        let group = heads / kv.kv_heads();
        let low_queries = kv
            .low_rank()
            .map(|low| self.query_coordinates(low, group, q));
        let visible = VisibleSplits::new(kv, attention, positions);
        // Per head and split: the weighted sum, the maximum, the sum. The heads of a group are
        // adjacent.
        let part = size + 2;
        let splits = visible.splits();
        let parts = scratch.take(kv.kv_heads() * splits * group * part);
        self.pool.chunks_mut(parts, group * part, |task, parts| {
            let (kv_head, split) = (task / splits, task % splits);
            let (sums, ends) = parts.split_at_mut(group * size);
            sums.fill(0.0);
            let (is_low, rows) = visible.run(split);
            let (queries, sizes, [keys, values]) = match (kv.low_rank(), &low_queries) {
                (Some(low), Some(queries)) if is_low => {
                    (&queries[..], low.shape.ranks, low.rows(kv_head, rows))
                }
                _ => (q, [size; 2], kv.rows(kv_head, rows)),
            };
            let q = &queries[kv_head * group * sizes[0]..][..group * sizes[0]];
            let run = PositionRun {
                keys,
                values,
                sizes,
            };
            let sums = &mut sums[..group * run.sizes[1]];
            match (run.keys, run.values) {
                (KvNumbers::F16(keys), KvNumbers::F16(values)) => {
                    let stored = [keys, values];
                    attend_f16(self.kernels, attention, stored, run.sizes, q, sums, ends);
                }
                _ => attend_decoded(self.kernels, attention, &run, q, sums, ends),
            }
        });
        self.combine(kv, &visible, group, parts, out);
        Ok(())
    }

    /// Returns the coordinates `[heads, rank]` of queries `[heads, head_size]` in the bases of
    /// keys.
    fn query_coordinates(&self, low: &LowRankView<'_>, group: usize, q: &[f32]) -> Vec<f32> {
        let (rank, size) = (low.shape.ranks[0], low.shape.head_size);
        let mut queries = vec![0.0; q.len() / size * rank];
        self.pool
            .chunks_mut(&mut queries, group * rank, |kv_head, queries| {
                let a = low.projection(0, kv_head);
                let q = &q[kv_head * group * size..][..group * size];
                multiply_batch(self.kernels, a, q, queries);
            });
        queries
    }

    /// Combines the partial results of all splits into the output of every head.
    fn combine(
        &self,
        kv: &KvView<'_>,
        visible: &VisibleSplits,
        group: usize,
        parts: &[f32],
        out: &mut [f32],
    ) {
        let (size, splits) = (kv.head_size(), visible.splits());
        let part = size + 2;
        let low_size = kv.low_rank().map_or(0, |low| low.shape.ranks[1]);
        let mut coordinates = vec![0.0; out.len() / size * low_size];
        for (head, out) in out.chunks_exact_mut(size).enumerate() {
            let (kv_head, g) = (head / group, head % group);
            let split_result = |split: usize| {
                let (sums, ends) = parts[(kv_head * splits + split) * group * part..]
                    [..group * part]
                    .split_at(group * size);
                let size = if split < visible.full { size } else { low_size };
                (&sums[g * size..][..size], [ends[2 * g], ends[2 * g + 1]])
            };
            let max = (0..splits).fold(f32::NEG_INFINITY, |max, split| {
                max.max(split_result(split).1[0])
            });
            let mut total = 0.0;
            out.fill(0.0);
            for split in 0..splits {
                let (sums, [split_max, sum]) = split_result(split);
                let weight = (split_max - max).exp();
                total += weight * sum;
                let to = if split < visible.full {
                    &mut *out
                } else {
                    &mut coordinates[head * low_size..][..low_size]
                };
                for (out, sum) in to.iter_mut().zip(sums) {
                    *out += weight * sum;
                }
            }
            (self.kernels.loops.scale)(out, 1.0 / total);
            if low_size > 0 {
                let head_coordinates = &mut coordinates[head * low_size..][..low_size];
                (self.kernels.loops.scale)(head_coordinates, 1.0 / total);
            }
        }
        if let Some(low) = kv.low_rank().filter(|_| visible.low > 0) {
            self.pool.chunks_mut(out, group * size, |kv_head, out| {
                let a = low.expansion(1, kv_head);
                let group_coordinates =
                    &coordinates[kv_head * group * low_size..][..group * low_size];
                let mut expanded = vec![0.0; out.len()];
                multiply_batch(self.kernels, a, group_coordinates, &mut expanded);
                for (out, expanded) in out.iter_mut().zip(expanded) {
                    *out += expanded;
                }
            });
        }
    }
}

/// Splits of the positions visible to one position.
struct VisibleSplits {
    /// Visible rows in full and in low rank.
    rows: [Range<usize>; 2],
    /// Number of splits of each kind.
    full: usize,
    low: usize,
}

impl VisibleSplits {
    /// Splits for the last of the first `positions` positions.
    fn new(kv: &KvView<'_>, attention: &Attention, positions: usize) -> Self {
        let first = attention.first_visible(positions - 1);
        let [compressed, _] = kv.compressed();
        let rows = [
            kv.full_row(first)..positions - compressed,
            kv.low_row(first)..compressed,
        ];
        let [full, low] = rows
            .each_ref()
            .map(|rows| rows.len().div_ceil(SPLIT_POSITIONS));
        VisibleSplits { rows, full, low }
    }

    fn splits(&self) -> usize {
        self.full + self.low
    }

    /// Returns true for a low-rank split, and its rows within the rows of that kind.
    fn run(&self, split: usize) -> (bool, Range<usize>) {
        let low = split >= self.full;
        let (rows, split) = if low {
            (&self.rows[1], split - self.full)
        } else {
            (&self.rows[0], split)
        };
        let first = rows.start + split * SPLIT_POSITIONS;
        (low, first..rows.end.min(first + SPLIT_POSITIONS))
    }
}

/// Computes the maximum and the sum of every head and replaces scores by weights.
fn softmax(
    kernels: &Kernels,
    attention: &Attention,
    count: usize,
    scores: &mut [f32],
    ends: &mut [f32],
) {
    if let Some(cap) = attention.softcap {
        (kernels.loops.softcap)(scores, cap);
    }
    for (scores, end) in scores.chunks_exact_mut(count).zip(ends.as_chunks_mut().0) {
        let max = (kernels.loops.max)(scores);
        *end = [max, (kernels.loops.exp_sum)(scores, max)];
    }
}

fn attend_f16(
    kernels: &Kernels,
    attention: &Attention,
    [keys, values]: [&[u16]; 2],
    [key_size, value_size]: [usize; 2],
    q: &[f32],
    sums: &mut [f32],
    ends: &mut [f32],
) {
    let count = keys.len() / key_size;
    let mut buffer = [0.0; HEADS_PER_PASS * SPLIT_POSITIONS];
    let together = q
        .chunks(HEADS_PER_PASS * key_size)
        .zip(sums.chunks_mut(HEADS_PER_PASS * value_size));
    for ((q, sums), ends) in together.zip(ends.chunks_mut(HEADS_PER_PASS * 2)) {
        let scores = &mut buffer[..q.len() / key_size * count];
        (kernels.attention.scores)(q, keys, key_size, attention.scale, scores);
        softmax(kernels, attention, count, scores, ends);
        (kernels.attention.weighted_sum)(scores, values, value_size, sums);
    }
}

/// Scores of heads, `[heads, count]`, of which the columns from `first` on are computed.
pub(super) struct ScoreColumns<'a> {
    pub scores: &'a mut [f32],
    pub count: usize,
    pub first: usize,
}

/// Computes the scores of all keys, decoding as many keys of `size` numbers at a time as fit `tile`
/// and `tile_scores`.
pub(super) fn score_decoded(
    kernels: &Kernels,
    attention: &Attention,
    q: &[f32],
    keys: KvNumbers<'_>,
    size: usize,
    [tile, tile_scores]: [&mut [f32]; 2],
    columns: ScoreColumns<'_>,
) {
    let (heads, total) = (q.len() / size, keys.len() / size);
    let rows = (tile.len() / size).min(tile_scores.len() / heads).max(1);
    for first in (0..total).step_by(rows) {
        let rows = rows.min(total - first);
        let keys = keys.slice(first * size..(first + rows) * size);
        let keys = keys.decode_f32(kernels, tile);
        let tile_scores = &mut tile_scores[..heads * rows];
        (kernels.attention.scores_f32)(q, keys, size, attention.scale, tile_scores);
        let heads = columns.scores.chunks_exact_mut(columns.count);
        for (scores, tile_scores) in heads.zip(tile_scores.chunks_exact(rows)) {
            scores[columns.first + first..][..rows].copy_from_slice(tile_scores);
        }
    }
}

fn attend_decoded(
    kernels: &Kernels,
    attention: &Attention,
    run: &PositionRun<'_>,
    q: &[f32],
    sums: &mut [f32],
    ends: &mut [f32],
) {
    let [key_size, value_size] = run.sizes;
    let count = run.keys.len() / key_size;
    let (mut tile, mut tile_scores) = (
        [0.0; TILE_NUMBERS],
        [0.0; DECODED_HEADS_PER_PASS * SPLIT_POSITIONS],
    );
    let mut buffer = [0.0; DECODED_HEADS_PER_PASS * SPLIT_POSITIONS];
    let together = q
        .chunks(DECODED_HEADS_PER_PASS * key_size)
        .zip(sums.chunks_mut(DECODED_HEADS_PER_PASS * value_size));
    for ((q, sums), ends) in together.zip(ends.chunks_mut(DECODED_HEADS_PER_PASS * 2)) {
        let heads = q.len() / key_size;
        let scores = &mut buffer[..heads * count];
        let columns = ScoreColumns {
            scores,
            count,
            first: 0,
        };
        let buffers = [&mut tile[..], &mut tile_scores[..]];
        score_decoded(kernels, attention, q, run.keys, key_size, buffers, columns);
        softmax(kernels, attention, count, scores, ends);
        let rows = (TILE_NUMBERS / value_size).clamp(1, SPLIT_POSITIONS);
        for first in (0..count).step_by(rows) {
            let rows = rows.min(count - first);
            let values = run
                .values
                .slice(first * value_size..(first + rows) * value_size);
            let values = values.decode_f32(kernels, &mut tile);
            let tile_scores = &mut tile_scores[..heads * rows];
            let heads = tile_scores.chunks_exact_mut(rows);
            for (tile_scores, weights) in heads.zip(scores.chunks_exact(count)) {
                tile_scores.copy_from_slice(&weights[first..first + rows]);
            }
            (kernels.attention.weighted_sum_f32)(tile_scores, values, value_size, sums);
        }
    }
}

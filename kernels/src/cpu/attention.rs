//! Causal attention with grouped heads.

use super::gemm::{Target, View, for_each_block};
use super::kernels::{self, Kernels};
use super::kv::KvView;
use super::scratch::Scratch;
use crate::error::ShapeError;
use crate::pool::Pool;

/// Positions that one task of a decoding step looks at.
const SPLIT: usize = 256;

/// Attention of the queries of one position, `q [heads, head_size]`, over positions `0 .. len` of
/// `kv`; `out` has the shape of `q`. Query head `h` reads kv head `h / (heads / kv_heads)`, and a
/// score is `scale * q · k`.
///
/// The positions are cut into stretches, so that few heads and a long context still occupy every
/// thread; each stretch gives a maximum, a sum and a weighted sum of values, which are combined
/// in order.
///
/// # Errors
/// When a shape does not fit, `len` is 0 or `kv` holds fewer than `len` positions.
pub fn attention_decode(
    pool: &Pool,
    q: &[f32],
    kv: &KvView<'_>,
    len: usize,
    scale: f32,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    attention_decode_with(kernels::detected(), pool, q, kv, len, scale, scratch, out)
}

#[allow(clippy::too_many_arguments)] // the operands of attention
pub(super) fn attention_decode_with(
    kernels: &Kernels,
    pool: &Pool,
    q: &[f32],
    kv: &KvView<'_>,
    len: usize,
    scale: f32,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let Some(position) = len.checked_sub(1) else {
        return Err(ShapeError {
            what: "len (positions, at least)",
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
    let splits = len.div_ceil(SPLIT);
    // Of every head and stretch: the weighted sum, the maximum, the sum.
    let part = size + 2;
    let parts = scratch.take(kv.kv_heads() * splits * group * part);
    pool.chunks_mut(parts, group * part, |task, parts| {
        let (kv_head, split) = (task / splits, task % splits);
        let (keys, values) = kv.head(kv_head);
        let first = split * SPLIT;
        let count = SPLIT.min(len - first);
        let range = first * size..(first + count) * size;
        let (keys, values) = (&keys[range.clone()], &values[range]);
        let mut buffer = [0.0; SPLIT];
        let scores = &mut buffer[..count];
        for (g, part) in parts.chunks_exact_mut(part).enumerate() {
            let head = kv_head * group + g;
            (kernels.scores)(&q[head * size..][..size], keys, scale, scores);
            let max = (kernels.max)(scores);
            let (sums, rest) = part.split_at_mut(size);
            rest[0] = max;
            rest[1] = (kernels.exp_sum)(scores, max);
            sums.fill(0.0);
            (kernels.weighted_sum)(scores, values, sums);
        }
    });
    for (head, out) in out.chunks_exact_mut(size).enumerate() {
        let (kv_head, g) = (head / group, head % group);
        let of_split =
            |split: usize| &parts[((kv_head * splits + split) * group + g) * part..][..part];
        let max = (0..splits).fold(f32::NEG_INFINITY, |max, s| max.max(of_split(s)[size]));
        let mut total = 0.0;
        out.fill(0.0);
        for split in 0..splits {
            let part = of_split(split);
            let weight = (part[size] - max).exp();
            total += weight * part[size + 1];
            (kernels.weighted_sum)(&[weight], &part[..size], out);
        }
        (kernels.scale)(out, 1.0 / total);
    }
    Ok(())
}

/// Queries of one task of a prefill.
const QUERIES: usize = 64;

/// Positions whose scores a task of a prefill holds at a time.
const KEYS: usize = 256;

/// Causal attention of `n` positions, `q [n, heads, head_size]` at positions `position ..`, over
/// `kv`, which holds their keys and values too; `out` has the shape of `q`. Heads and scores as
/// in [`attention_decode`].
///
/// A task is a block of queries of one head. It goes through the positions in tiles and keeps a
/// running maximum and sum (online softmax), so that its working memory does not grow with the
/// context.
///
/// # Errors
/// When a shape does not fit or `kv` holds fewer than `position + n` positions.
#[allow(clippy::too_many_arguments)] // the operands of attention
pub fn attention_prefill(
    pool: &Pool,
    q: &[f32],
    n: usize,
    position: usize,
    kv: &KvView<'_>,
    scale: f32,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let kernels = kernels::detected();
    attention_prefill_with(kernels, pool, q, n, position, kv, scale, scratch, out)
}

#[allow(clippy::too_many_arguments)] // the operands of attention
pub(super) fn attention_prefill_with(
    kernels: &Kernels,
    pool: &Pool,
    q: &[f32],
    n: usize,
    position: usize,
    kv: &KvView<'_>,
    scale: f32,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let heads = kv.check_queries(q.len(), n, position, out.len())?;
    if heads == 0 {
        return Ok(());
    }
    let size = kv.head_size();
    let group = heads / kv.kv_heads();
    let task_scratch = QUERIES * (KEYS + size);
    let scratch = scratch.take(task_scratch * pool.threads());
    // `out` seen as [n, heads * size] is cut into blocks of some queries of one head.
    for_each_block(
        pool,
        out,
        [n, heads * size],
        [QUERIES, size],
        scratch,
        |[start, column], mut out, scratch| {
            let head = column / size;
            let (keys, values) = kv.head(head / group);
            let rows = QUERIES.min(n - start);
            let q = View::new(
                &q[start * heads * size + column..],
                rows,
                size,
                heads * size,
            );
            let (scores, sums) = scratch.split_at_mut(QUERIES * KEYS);
            let mut max = [f32::NEG_INFINITY; QUERIES];
            let mut total = [0.0; QUERIES];
            sums[..rows * size].fill(0.0);
            // Positions that the last query of the block sees.
            let seen = position + start + rows;
            for tile in (0..seen).step_by(KEYS) {
                let cols = KEYS.min(seen - tile);
                let k = View::new(&keys[tile * size..], cols, size, size);
                let mut target = Target::new(scores, rows, cols);
                target.multiply(q, k.transposed(), scale, false);
                for row in 0..rows {
                    let visible = (position + start + row + 1).saturating_sub(tile).min(cols);
                    let (scores, masked) = target.row_mut(row).split_at_mut(visible);
                    masked.fill(0.0);
                    let new_max = max[row].max((kernels.max)(scores));
                    let shrink = (max[row] - new_max).exp();
                    max[row] = new_max;
                    total[row] = total[row] * shrink + (kernels.exp_sum)(scores, new_max);
                    (kernels.scale)(&mut sums[row * size..][..size], shrink);
                }
                let p = View::new(scores, rows, cols, cols);
                let v = View::new(&values[tile * size..], cols, size, size);
                Target::new(sums, rows, size).multiply(p, v, 1.0, true);
            }
            for row in 0..rows {
                let out = out.row_mut(row);
                out.copy_from_slice(&sums[row * size..][..size]);
                (kernels.scale)(out, 1.0 / total[row]);
            }
        },
    );
    Ok(())
}

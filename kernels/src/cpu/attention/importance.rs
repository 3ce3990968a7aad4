//! Importance of positions: attention weights summed over the last queries.

use super::Attention;
use super::decode::{ScoreColumns, TILE_NUMBERS, score_decoded};
use crate::cpu::Cpu;
use crate::cpu::kv::{KvNumbers, KvView};
use crate::cpu::low_rank::{LowRankView, multiply_batch};
use crate::error::{ShapeError, check_numbers};

impl Cpu {
    /// Sums the attention weights that the queries `q [n, heads, head_size]` at positions `start
    /// ..` give every position, over the queries and over the heads that share a KV head: `out
    /// [kv_heads, start + n]`. Invisible positions get no weight.
    ///
    /// This is the importance of SnapKV (Li et al. 2024) and OjaKV (section 5.2) for the last
    /// queries of a prompt.
    ///
    /// # Errors
    /// When a shape does not fit, the window is 0 or `kv` holds fewer than `start + n` positions.
    pub fn attention_importance(
        &self,
        q: &[f32],
        n: usize,
        start: usize,
        kv: &KvView<'_>,
        attention: &Attention,
        out: &mut [f32],
    ) -> Result<(), ShapeError> {
        attention.check()?;
        let heads = kv.check_queries(q.len(), n, start, q.len())?;
        let total = start + n;
        let what = "out (numbers)";
        check_numbers(what, &[kv.kv_heads(), total], out.len())?;
        out.fill(0.0);
        if heads == 0 {
            return Ok(());
        }
        let (size, group) = (kv.head_size(), heads / kv.kv_heads());
        self.pool.chunks_mut(out, total, |kv_head, out| {
            let mut scores = vec![0.0; group * total];
            for (t, q) in q.chunks_exact(heads * size).enumerate() {
                let q = &q[kv_head * group * size..][..group * size];
                self.add_weights(q, start + t, kv, kv_head, attention, &mut scores, out);
            }
        });
        Ok(())
    }

    /// Adds the weights of the heads `q [group, head_size]` from one position.
    #[allow(clippy::too_many_arguments)] // the operands of attention
    fn add_weights(
        &self,
        q: &[f32],
        position: usize,
        kv: &KvView<'_>,
        kv_head: usize,
        attention: &Attention,
        scores: &mut [f32],
        out: &mut [f32],
    ) {
        let size = kv.head_size();
        let group = q.len() / size;
        let [compressed, front] = kv.compressed();
        let first = attention.first_visible(position);
        let count = position + 1 - first;
        let scores = &mut scores[..group * count];
        // Runs of positions, each in full or in low rank: begin and end in the sequence.
        for (low, run) in [
            (None, [0, front.min(position + 1)]),
            (kv.low_rank(), [front, front + compressed]),
            (None, [front + compressed, position + 1]),
        ] {
            let run = run.map(|p| p.clamp(first, position + 1));
            if run[0] >= run[1] {
                continue;
            }
            let columns = ScoreColumns {
                scores,
                count,
                first: run[0] - first,
            };
            match low {
                Some(low) => {
                    let rows = run[0] - front..run[1] - front;
                    let q = self.head_coordinates(low, kv_head, q);
                    let [keys, _] = low.rows(kv_head, rows);
                    self.score_run(&q, keys, low.shape.ranks[0], attention, columns);
                }
                None => {
                    let rows = kv.full_row(run[0])..kv.full_row(run[1]);
                    let [keys, _] = kv.rows(kv_head, rows);
                    self.score_run(q, keys, size, attention, columns);
                }
            }
        }
        let loops = &self.kernels.loops;
        if let Some(cap) = attention.softcap {
            (loops.softcap)(scores, cap);
        }
        for scores in scores.chunks_exact_mut(count) {
            let max = (loops.max)(scores);
            let sum = (loops.exp_sum)(scores, max);
            for (out, weight) in out[first..=position].iter_mut().zip(scores) {
                *out += *weight / sum;
            }
        }
    }

    fn head_coordinates(&self, low: &LowRankView<'_>, kv_head: usize, q: &[f32]) -> Vec<f32> {
        let a = low.projection(0, kv_head);
        let mut coordinates = vec![0.0; q.len() / a.cols * a.rows];
        multiply_batch(self.kernels, a, q, &mut coordinates);
        coordinates
    }

    /// Computes the scores of a run of keys of `size` numbers.
    fn score_run(
        &self,
        q: &[f32],
        keys: KvNumbers<'_>,
        size: usize,
        attention: &Attention,
        columns: ScoreColumns<'_>,
    ) {
        let rows = (TILE_NUMBERS / size).clamp(1, (keys.len() / size).max(1));
        let mut tile = vec![0.0; rows * size];
        let mut scores = vec![0.0; q.len() / size * rows];
        let buffers = [&mut tile[..], &mut scores[..]];
        score_decoded(self.kernels, attention, q, keys, size, buffers, columns);
    }
}

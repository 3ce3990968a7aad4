//! Policy of compression, basis updates and eviction, for every backend.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use htc_kernels::cpu::Attention;

use super::bases::{KvBases, LayerBases};
use super::counters::KvCounters;
use super::kind::KvKind;
use super::layout::KeptRows;
use super::options::{KvOptions, KvPlan};
use super::{Kv, evict, oja};
use crate::backend::{Backend, HeadShape, SequenceRows};
use crate::error::{ExecError, Result};

/// Policy and state of a sequence's KV cache.
#[derive(Clone, Debug)]
pub(crate) struct KvCachePolicy {
    options: KvOptions,
    /// Bases of every layer, initial and current; empty for kinds without bases.
    initial: Vec<Arc<LayerBases>>,
    current: Vec<Arc<LayerBases>>,
    /// True if the backend's bases differ from `initial`.
    bases_outdated: bool,
    is_sliding_window: Vec<bool>,
    /// `[kv_heads, positions]` of every layer, from the last pass that recorded it.
    importance: Vec<Vec<f32>>,
    last_pass: usize,
    prompt_ended: bool,
    /// Position count at the last eviction; 0 if none.
    evicted_at: usize,
    counters: KvCounters,
}

/// Change since the start of the sequence, of keys and of values: means over heads.
#[derive(Default)]
struct BasisDrift {
    distance: [f64; 2],
    overlap: [f64; 2],
}

/// Queries of a batch.
pub(crate) struct Queries<'a, B: Backend> {
    pub shape: HeadShape,
    pub numbers: &'a B::Buffer,
}

impl KvCachePolicy {
    pub(crate) fn new(
        options: KvOptions,
        plan: &KvPlan,
        bases: Option<&KvBases>,
        windows: Vec<bool>,
    ) -> Self {
        let layers = plan.shape().layers;
        let initial: Vec<_> = (0..layers)
            .filter_map(|layer| Some(Arc::new(bases?.layer(layer, plan.ranks(layer)?))))
            .collect();
        KvCachePolicy {
            options,
            current: initial.clone(),
            bases_outdated: !initial.is_empty(),
            initial,
            is_sliding_window: windows,
            importance: vec![Vec::new(); layers],
            last_pass: 0,
            prompt_ended: false,
            evicted_at: 0,
            counters: KvCounters::default(),
        }
    }

    pub(crate) fn options(&self) -> &KvOptions {
        &self.options
    }

    pub(crate) fn counters(&self) -> &KvCounters {
        &self.counters
    }

    /// Returns true if heads get a Hadamard transform before storage.
    pub(crate) fn is_rotated(&self) -> bool {
        self.options.kind.is_rotated()
    }

    /// Forgets the sequence.
    pub(crate) fn reset(&mut self) {
        self.bases_outdated |= self.counters.updates > 0;
        self.current.clone_from(&self.initial);
        self.importance.iter_mut().for_each(Vec::clear);
        (self.last_pass, self.prompt_ended, self.evicted_at) = (0, false, 0);
        self.counters = KvCounters::default();
    }

    /// Checks that the sequence can be cut to `positions`.
    pub(crate) fn check_truncate(&self, positions: usize) -> Result<()> {
        if positions > 0 && positions < self.evicted_at {
            Err(ExecError::Evicted {
                requested: positions,
                evicted_at: self.evicted_at,
            })
        } else {
            Ok(())
        }
    }

    /// Records [`Backend::importance`] if needed later; called after a layer has appended its keys
    /// and values.
    pub(crate) fn record_importance<B: Backend>(
        &mut self,
        backend: &mut B,
        layer: usize,
        queries: Queries<'_, B>,
        sequence: SequenceRows<'_, B::Kv>,
        attention: &Attention,
    ) -> Result<()> {
        let (rows, kv) = (sequence.rows.len(), sequence.kv);
        let updates = self.updates_after_pass(rows);
        let positions = kv.layout().positions(layer) + rows;
        let evicts = self
            .options
            .max_prompt_positions
            .is_some_and(|keep| positions > keep)
            && !self.is_sliding_window[layer]
            && !self.prompt_ended;
        if updates || evicts {
            let window = self.options.importance_window.min(rows);
            self.importance[layer] = backend.importance(
                queries.shape,
                queries.numbers,
                sequence,
                layer,
                attention,
                window,
            )?;
        }
        Ok(())
    }

    fn updates_after_pass(&self, n: usize) -> bool {
        matches!(self.options.kind, KvKind::Oja { .. }) && n > self.options.oja.period
    }

    /// Records a pass of `n` positions.
    pub(crate) fn record_pass(&mut self, n: usize) {
        self.last_pass = n;
    }

    /// Marks the positions from now on as a prompt.
    pub(crate) fn begin_prompt(&mut self) {
        self.prompt_ended = false;
    }

    /// Sets pending bases and compresses positions of earlier passes; called before a pass.
    pub(crate) fn prepare_pass<B: Backend>(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        layers: Range<usize>,
    ) -> Result<()> {
        if self.bases_outdated {
            for (layer, bases) in self.initial.iter().enumerate() {
                kv.set_bases(backend, layer, bases, None)?;
            }
            self.bases_outdated = false;
        }
        let mut moved = Vec::new();
        for layer in layers {
            let Some((front, count)) = self.rows_to_compress(kv, layer) else {
                continue;
            };
            if matches!(self.options.kind, KvKind::Oja { .. }) {
                let started = Instant::now();
                moved.push(self.update_bases(backend, kv, layer, front, count)?);
                self.counters.update_time += started.elapsed();
            }
            let energies = kv.compress(backend, layer, front, count)?;
            kv.layout_mut().compress(layer, front, count);
            self.counters.add(energies);
        }
        if !moved.is_empty() {
            let mean = |of: fn(&BasisDrift) -> [f64; 2]| {
                [0, 1]
                    .map(|side| moved.iter().map(|m| of(m)[side]).sum::<f64>() / moved.len() as f64)
            };
            self.counters.drift.push(mean(|moved| moved.distance));
            self.counters.overlap.push(mean(|moved| moved.overlap));
            self.counters.updates += 1;
        }
        Ok(())
    }

    /// Returns the number of full rows at the front, and of rows after them to compress.
    fn rows_to_compress(&self, kv: &impl Kv, layer: usize) -> Option<(usize, usize)> {
        let layout = kv.layout();
        let full = layout.full_rows(layer);
        let options = &self.options;
        let front = match layout.low_rank_rows(layer) {
            0 if options.kind.has_exemptions() => options.exempt_start.min(full),
            _ => layout.front_rows(layer),
        };
        let tail = full - front;
        let count = match options.kind {
            KvKind::Static { .. } => tail,
            KvKind::StaticHybrid { .. } => tail.saturating_sub(options.exempt_recent),
            KvKind::Oja { .. } => {
                let waiting = tail.saturating_sub(options.exempt_recent);
                let enough =
                    waiting >= options.oja.period || self.updates_after_pass(self.last_pass);
                if enough { waiting } else { 0 }
            }
            _ => 0,
        };
        (count > 0).then_some((front, count))
    }

    /// Updates the bases of a layer by the rows about to be compressed, the most important ones
    /// after a long pass. Returns the distance from the initial bases.
    fn update_bases<B: Backend>(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        layer: usize,
        front: usize,
        count: usize,
    ) -> Result<BasisDrift> {
        let rows = kv.full_rows(backend, layer, front..front + count)?;
        let (oja, old) = (self.options.oja, Arc::clone(&self.current[layer]));
        let (size, heads) = (old.head_size, old.kv_heads);
        let long = self.updates_after_pass(self.last_pass);
        let rate = f64::from(if long {
            oja.prefill_rate
        } else {
            oja.decode_rate
        });
        let held = kv.layout().positions(layer);
        let first = front + kv.layout().low_rank_rows(layer);
        let importance = &self.importance[layer];
        let chosen: Vec<Vec<usize>> = if long && importance.len() == heads * held {
            let salient = (f64::from(oja.salient_fraction) * count as f64).ceil() as usize;
            let heads = importance.chunks_exact(held.max(1));
            let most =
                |head: &[f32]| evict::indices_of_largest(&head[first..first + count], salient);
            heads.map(most).collect()
        } else {
            vec![(0..count).collect(); heads]
        };
        let (mut next, mut turns) = ((*old).clone(), [vec![], vec![]]);
        let mut moved = BasisDrift::default();
        for side in 0..2 {
            let mut components = Vec::with_capacity(old.components[side].len());
            for (head, chosen) in chosen.iter().enumerate() {
                let of_head = &rows[side][head * count * size..][..count * size];
                let vectors: Vec<&[f32]> = chosen
                    .iter()
                    .map(|&row| &of_head[row * size..][..size])
                    .collect();
                let before = old.head(side, head);
                let after = oja::oja_step(before, size, &vectors, rate);
                turns[side].extend(oja::transition(&after, before, size));
                let began = self.initial[layer].head(side, head);
                moved.distance[side] +=
                    oja::projection_distance(&after, began, size) / heads as f64;
                moved.overlap[side] += oja::subspace_overlap(&after, began, size) / heads as f64;
                components.extend(after);
            }
            next.components[side] = components;
        }
        let next = Arc::new(next);
        kv.set_bases(backend, layer, &next, Some(&turns))?;
        self.current[layer] = next;
        Ok(moved)
    }

    /// Compresses pending positions and evicts; called after a prompt.
    pub(crate) fn end_prompt<B: Backend>(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        layers: Range<usize>,
    ) -> Result<()> {
        self.prepare_pass(backend, kv, layers.clone())?;
        if let Some(keep) = self.options.max_prompt_positions {
            let mut windowed = 0;
            let mut evicted = false;
            for layer in layers {
                if kv.layout().positions(layer) <= keep {
                    continue;
                }
                if self.is_sliding_window[layer] {
                    windowed += 1
                } else {
                    evicted |= self.evict(backend, kv, layer, keep)?
                }
            }
            self.counters.sliding_window_layers = windowed;
            if evicted {
                self.evicted_at = kv.len();
            }
        }
        self.prompt_ended = true;
        self.last_pass = 1;
        if self.options.max_prompt_positions.is_some() || !self.initial.is_empty() {
            kv.reserve(backend, 1)
        } else {
            Ok(())
        }
    }

    /// Cuts a layer to `keep` positions; returns true if it did.
    fn evict<B: Backend>(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        layer: usize,
        keep: usize,
    ) -> Result<bool> {
        let layout = kv.layout();
        let (held, compressed) = (layout.positions(layer), layout.low_rank_rows(layer));
        let low_rank = compressed > 0;
        // Rows eligible for eviction, as positions in the layer.
        let first = layout.front_rows(layer);
        let end = if low_rank { first + compressed } else { held };
        let eligible = first..end.min(held.saturating_sub(self.options.importance_window));
        let others = held - eligible.len();
        let importance = &self.importance[layer];
        let heads = layout.plan().shape().kv_heads;
        let count = keep.saturating_sub(others);
        if count >= eligible.len() {
            return Ok(false);
        }
        if importance.len() != heads * held {
            return Err(ExecError::NoImportance);
        }
        let rows = importance.chunks_exact(held).map(|importance| {
            let eligible = eligible.clone();
            evict::rows_to_keep(importance, eligible, count, first, end)
        });
        let kept = KeptRows {
            low_rank,
            rows: rows.collect(),
        };
        kv.keep(backend, layer, &kept)?;
        let dropped = eligible.len() - count;
        kv.layout_mut().evict(layer, low_rank, dropped);
        self.importance[layer].clear();
        Ok(true)
    }
}

//! Attention of the rows of each sequence.

use std::ops::Range;
use std::sync::Arc;

use htc_kernels::cuda::{Device, ops};

use super::super::{Attention, HeadShape, SequenceRows};
use super::pending::Pending;
use super::{Gpu, GpuKv};
use crate::error::Result;
use crate::kv::Kv;

impl<D: Device> Gpu<D> {
    fn queries(&self, shape: HeadShape, rows: &Range<usize>) -> ops::QueryShape {
        ops::QueryShape {
            first: rows.start,
            rows: rows.len(),
            heads: shape.heads,
            batch_invariant: self.batch_invariant,
        }
    }

    /// As [`Backend::attention`](super::Backend::attention), from the first place to the second.
    pub(super) fn attend(
        &mut self,
        shape: HeadShape,
        [q, out]: [&Arc<D::Memory>; 2],
        batch: &[SequenceRows<'_, GpuKv<D>>],
        layer: usize,
        attention: &Attention,
    ) -> Result<()> {
        for SequenceRows { rows, kv } in batch {
            let queries = self.queries(shape, rows);
            let (device, scratch) = (&self.device, &mut self.attention);
            let start = kv.layout().positions(layer);
            let whole;
            let reconstructs = kv.layout().plan().reconstructs();
            let held = if reconstructs && kv.layout().low_rank_rows(layer) > 0 {
                let [keys, values] = kv.whole(device, layer, rows.len())?;
                whole = [keys, values];
                ops::DeviceLayerCache {
                    full: [&whole[0], &whole[1]],
                    low_rank: None,
                    start,
                }
            } else {
                kv.layer_cache(layer)
            };
            let attended = ops::attend_splits(device, queries, q, &held, attention, scratch, out);
            match attended? {
                // The next product reads the rows of all sequences.
                Some(joined) if batch.len() > 1 => {
                    joined.finish(device, out)?;
                }
                Some(joined) => self.pend(Pending::Joined(joined, Arc::clone(out)))?,
                None => {}
            }
        }
        Ok(())
    }

    /// As [`Backend::importance`](super::Backend::importance).
    pub(super) fn weights(
        &mut self,
        shape: HeadShape,
        q: &D::Memory,
        SequenceRows { rows, kv }: SequenceRows<'_, GpuKv<D>>,
        layer: usize,
        attention: &Attention,
        window: usize,
    ) -> Result<Vec<f32>> {
        let end = kv.layout().positions(layer) + rows.len();
        let (queries, device) = (self.queries(shape, &rows), &self.device);
        let found = match kv.layout().low_rank_rows(layer) {
            0 => {
                let [keys, _] = kv.layer_cache(layer).full;
                ops::attention_importance(device, queries, window, q, keys, end, attention)
            }
            _ => {
                let [keys, _] = kv.whole(device, layer, rows.len())?;
                ops::attention_importance(device, queries, window, q, &keys, end, attention)
            }
        };
        Ok(found?)
    }
}

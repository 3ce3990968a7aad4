//! Statistics of the activations of one layer.

use htc_formats::model::{ActivationPoint, BlockInput, HyperParameters, ModelSpec};
use htc_kernels::cpu::Cpu;
use htc_loader::exec::{Point, Tap};

use super::moments::MomentSums;
use super::store::TextExtent;
use crate::math::{Algebra, FactoriseError};

const FIRST_ROWS_BATCH: usize = 64;

/// Activation points that read the residual stream through a norm, at all positions.
pub const STREAM_POINTS: [ActivationPoint; 2] = [ActivationPoint::Attention, ActivationPoint::Ffn];

const MAX_SAMPLES: usize = 512;

pub fn sample_count(extent: TextExtent) -> usize {
    later_positions(extent).min(MAX_SAMPLES)
}

fn later_positions(extent: TextExtent) -> usize {
    extent
        .context
        .saturating_sub(1)
        .saturating_mul(extent.windows)
}

/// Returns the index of the `index`-th of `kept` samples: one per stretch of equal length. The
/// offset advances by the golden ratio; an equal step may be commensurate with the window length
/// and hit few positions.
fn sample_index(index: usize, kept: usize, of: usize) -> usize {
    /// Fractional part of the golden ratio, times 2³².
    const STEP: u32 = 2_654_435_769;
    let (begin, end) = (index * of / kept, (index + 1) * of / kept);
    let turn = u64::from((index as u32).wrapping_mul(STEP));
    begin + ((turn * (end - begin) as u64) >> 32) as usize
}

/// Returns the window of each of the [`sample_count`] stored vectors, ascending.
pub fn sample_windows(extent: TextExtent) -> Vec<usize> {
    let (kept, of) = (sample_count(extent), later_positions(extent));
    let later = extent.context.saturating_sub(1).max(1);
    let places = (0..kept).map(|index| sample_index(index, kept, of));
    places.map(|place| place / later).collect()
}

/// Statistics of a layer during the forward pass.
pub struct LayerSums<'a> {
    cpu: &'a Cpu,
    /// Block index.
    pub layer: usize,
    /// Inputs of the projections, in the order of [`block_inputs`].
    pub sites: Vec<SiteSums>,
    /// Residual stream after the layer, without the first positions of windows.
    pub stream: MomentSums,
    /// Residual stream after the layer at the first positions.
    pub sink: MomentSums,
    /// Sums of the inputs at [`STREAM_POINTS`] at the first positions.
    pub first_inputs: [Vec<f64>; 2],
    /// One row costs as much as many.
    first_rows: Vec<f32>,
    /// Sums of the residual stream's norms after the layer, by position in the window.
    pub norms: Vec<f64>,
    /// Norm of the residual stream after the layer at every position.
    pub token_norms: Vec<f32>,
    /// `[n, width]`: samples of [`stream`](Self::stream).
    pub sample: Vec<f32>,
    /// Sums of squared norms of the attention and feed-forward outputs.
    pub branches: [f64; 2],
    /// Per kv head: queries of its heads and keys after the rotary embedding, and values.
    pub heads: Vec<[MomentSums; 3]>,
    width: usize,
    head_size: usize,
    query_heads: usize,
    extent: TextExtent,
    later: usize,
    position: usize,
}

/// Moments of an input.
#[derive(Debug)]
pub struct SiteSums {
    pub point: ActivationPoint,
    pub moments: MomentSums,
}

/// Returns the inputs of the projections of a layer; none for layers that do not exist.
pub fn block_inputs(hyper: &HyperParameters, layer: usize) -> Vec<BlockInput> {
    let spec = ModelSpec::new(hyper, []);
    let block = spec.blocks.get(layer);
    block.map_or_else(Vec::new, |block| block.inputs())
}

/// Returns the bytes of the sums of a layer; all layers have the same widths.
pub fn sums_bytes(hyper: &HyperParameters) -> u64 {
    let inputs = block_inputs(hyper, 0);
    let sites = inputs.iter().map(|input| MomentSums::bytes(input.width));
    let sites = sites.fold(0, u64::saturating_add);
    let streams = 2 * MomentSums::bytes(hyper.width);
    let heads = MomentSums::bytes(hyper.head_size).saturating_mul(3 * hyper.kv_heads as u64);
    sites.saturating_add(streams).saturating_add(heads)
}

impl<'a> LayerSums<'a> {
    /// Creates empty statistics, with products on the device of `algebra`, if given.
    pub fn new(
        cpu: &'a Cpu,
        algebra: Option<&dyn Algebra>,
        hyper: &HyperParameters,
        layer: usize,
        extent: TextExtent,
    ) -> Result<Self, FactoriseError> {
        let head = || MomentSums::new(hyper.head_size);
        let site = |BlockInput { point, width }| {
            let moments = MomentSums::with_algebra(algebra, width)?;
            Ok::<SiteSums, FactoriseError>(SiteSums { point, moments })
        };
        let sites = block_inputs(hyper, layer).into_iter().map(site);
        Ok(LayerSums {
            cpu,
            layer,
            sites: sites.collect::<Result<_, _>>()?,
            stream: MomentSums::with_algebra(algebra, hyper.width)?,
            sink: MomentSums::new(hyper.width),
            first_inputs: STREAM_POINTS.map(|_| vec![0.0; hyper.width]),
            first_rows: Vec::new(),
            norms: vec![0.0; extent.context],
            token_norms: Vec::new(),
            sample: Vec::new(),
            branches: [0.0; 2],
            heads: (0..hyper.kv_heads)
                .map(|_| [head(), head(), head()])
                .collect(),
            width: hyper.width,
            head_size: hyper.head_size,
            query_heads: hyper.heads / hyper.kv_heads.max(1),
            extent,
            later: 0,
            position: 0,
        })
    }

    pub fn set_position(&mut self, position: usize) {
        self.position = position;
    }

    /// Adds the residual stream `x [n, width]` after the layer.
    pub fn add_stream(&mut self, x: &[f32]) {
        let width = self.width.max(1);
        let norms = self.norms.iter_mut().skip(self.position);
        for (norm, row) in norms.zip(x.chunks_exact(width)) {
            let of_token = squared_norm(row).sqrt();
            *norm += of_token;
            self.token_norms.push(of_token as f32);
        }
        let (first, rest) = self.without_first(x);
        self.stream.add(self.cpu, rest);
        let (kept, of) = (sample_count(self.extent), later_positions(self.extent));
        for row in rest.chunks_exact(width) {
            let next = self.sample.len() / width;
            if next < kept && self.later == sample_index(next, kept, of) {
                self.sample.extend_from_slice(row);
            }
            self.later += 1;
        }
        self.first_rows.extend_from_slice(first);
        if self.first_rows.len() >= FIRST_ROWS_BATCH * width {
            self.flush_first_rows();
        }
    }

    /// Flushes deferred rows and fetches device sums.
    pub fn finish(&mut self) -> Result<(), FactoriseError> {
        self.flush_first_rows();
        let sites = self.sites.iter_mut().map(|site| &mut site.moments);
        let mut sums = sites.chain([&mut self.stream]);
        sums.try_for_each(MomentSums::fetch)
    }

    pub fn check(&self) -> Result<(), FactoriseError> {
        let sites = self.sites.iter().map(|site| &site.moments);
        let mut sums = sites.chain([&self.stream]);
        sums.try_for_each(MomentSums::check)
    }

    fn flush_first_rows(&mut self) {
        self.sink.add(self.cpu, &self.first_rows);
        self.first_rows.clear();
    }

    /// Multiplies the weight of all sums so far by `factor`.
    pub fn reweigh(&mut self, factor: f64) {
        self.flush_first_rows();
        let heads = self.heads.iter_mut().flatten();
        let moments = self.sites.iter_mut().map(|site| &mut site.moments);
        let moments = moments
            .chain([&mut self.stream, &mut self.sink])
            .chain(heads);
        moments.for_each(|moments| moments.reweigh(factor));
        let first = self.first_inputs.iter_mut().flatten();
        let sums = self.norms.iter_mut().chain(&mut self.branches).chain(first);
        sums.for_each(|sum| *sum *= factor);
    }

    /// Returns true if everything can be stored.
    pub fn is_finite(&self) -> bool {
        let heads = self.heads.iter().flatten();
        let sites = self.sites.iter().map(|site| &site.moments);
        let moments = sites.chain([&self.stream, &self.sink]);
        moments.chain(heads).all(MomentSums::fits_float32)
            && [&self.sample, &self.token_norms]
                .into_iter()
                .flatten()
                .all(|x| x.is_finite())
            && self
                .norms
                .iter()
                .chain(&self.branches)
                .chain(self.first_inputs.iter().flatten())
                .all(|x| x.is_finite())
    }

    fn without_first<'x>(&self, x: &'x [f32]) -> (&'x [f32], &'x [f32]) {
        let first = if self.position == 0 { self.width } else { 0 };
        x.split_at(first.min(x.len()))
    }
}

impl Tap for LayerSums<'_> {
    fn see(&mut self, _: usize, point: Point, x: &[f32]) {
        let (cpu, size) = (self.cpu, self.head_size);
        match point {
            Point::Input(site) => {
                let mut sites = self.sites.iter_mut();
                if let Some(sums) = sites.find(|sums| sums.point == site) {
                    sums.moments.add(cpu, x);
                }
                if let Some(index) = STREAM_POINTS.iter().position(|of| *of == site) {
                    let (first, _) = self.without_first(x);
                    let sums = self.first_inputs[index].iter_mut();
                    sums.zip(first).for_each(|(sum, x)| *sum += f64::from(*x));
                }
            }
            Point::AttentionBranch => self.branches[0] += squared_norm(self.without_first(x).1),
            Point::FfnBranch => self.branches[1] += squared_norm(self.without_first(x).1),
            Point::Queries | Point::Keys | Point::Values => {
                let heads = self.heads.len();
                let (part, width) = match point {
                    Point::Queries => (0, self.query_heads * size),
                    Point::Keys => (1, size),
                    _ => (2, size),
                };
                cpu.pool().chunks_mut(&mut self.heads, 1, |index, head| {
                    let rows = x.chunks_exact((width * heads).max(1));
                    let parts = rows.map(|row| &row[index * width..][..width]);
                    let vectors = parts.flat_map(|part| part.chunks_exact(size.max(1)));
                    head[0][part].add_on_this_thread(cpu, vectors);
                });
            }
            _ => {}
        }
    }
}

/// Eight independent chains for instruction-level parallelism.
fn squared_norm(x: &[f32]) -> f64 {
    let (chunks, rest) = x.as_chunks::<8>();
    let mut chains = [0.0; 8];
    for chunk in chunks {
        for (chain, &x) in chains.iter_mut().zip(chunk) {
            *chain += f64::from(x) * f64::from(x);
        }
    }
    let rest: f64 = rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    chains.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests;

//! What is kept of the activations of one layer.

use htc_formats::model::{HyperParameters, Site};
use htc_kernels::cpu::Cpu;
use htc_loader::exec::{Point, Tap};

use super::moments::Moments;
use super::store::Extent;
use crate::math::{Algebra, FactoriseError};

/// First positions that are added together.
const FIRST_ROWS: usize = 64;

/// The sites that read the residual stream, through a norm: what they see at the first position is
/// the direction in which attention sinks.
pub const FIRST_SITES: [Site; 2] = [Site::Attention, Site::Ffn];

/// Vectors of the residual stream that are kept as they are, at most.
const SAMPLE: usize = 512;

/// Vectors that are kept of a text: fewer where it has fewer positions that are not the first of
/// their window.
pub fn sample_count(extent: Extent) -> usize {
    later_positions(extent).min(SAMPLE)
}

/// Positions that are not the first of their window.
fn later_positions(extent: Extent) -> usize {
    extent
        .context
        .saturating_sub(1)
        .saturating_mul(extent.windows)
}

/// Which of `of` vectors is the `index`-th of `kept`, ascending: one of each of `kept` stretches of equal
/// length. Its place in the stretch moves on by the golden section each time, so that the places in
/// the windows differ: an equal step might be a fraction of a window's length, and always find the
/// same few positions.
fn sampled_place(index: usize, kept: usize, of: usize) -> usize {
    /// The golden section of 2³².
    const STEP: u32 = 2_654_435_769;
    let (begin, end) = (index * of / kept, (index + 1) * of / kept);
    let turn = u64::from((index as u32).wrapping_mul(STEP));
    begin + ((turn * (end - begin) as u64) >> 32) as usize
}

/// The window of each of the [`sample_count`] vectors that are kept of a text, ascending.
pub fn sample_windows(extent: Extent) -> Vec<usize> {
    let (kept, of) = (sample_count(extent), later_positions(extent));
    let later = extent.context.saturating_sub(1).max(1);
    let places = (0..kept).map(|index| sampled_place(index, kept, of));
    places.map(|place| place / later).collect()
}

/// The statistics of a layer while text flows through it.
pub struct LayerSums<'a> {
    cpu: &'a Cpu,
    /// By [`Site`], in its order: what the slots read.
    pub sites: [Moments; 4],
    /// The residual stream behind the layer, at all positions but the first of a window, where
    /// attention sinks and their massive activations sit.
    pub stream: Moments,
    /// The same at the first position.
    pub sink: Moments,
    /// Sums of what the slots of [`FIRST_SITES`] read at the first position.
    pub first_inputs: [Vec<f64>; 2],
    /// First positions that are not in [`sink`](Self::sink) yet: one row alone would cost as much
    /// as many.
    first_rows: Vec<f32>,
    /// By position of the window, the sum of the residual stream's norms behind the layer.
    pub norms: Vec<f64>,
    /// The norm of the residual stream behind the layer at every position, one window after another.
    pub token_norms: Vec<f32>,
    /// `[n, width]`: the residual stream at [`sample_count`] positions that are spread evenly over those
    /// of [`stream`](Self::stream), by [`sampled_place`].
    pub sample: Vec<f32>,
    /// Sums of the squared norms of what attention and the feed-forward network add, without the
    /// first positions.
    pub branches: [f64; 2],
    /// By kv head: queries of the heads that share it and keys, after the rotary embedding, and
    /// values.
    pub heads: Vec<HeadSums>,
    width: usize,
    head_size: usize,
    query_heads: usize,
    extent: Extent,
    /// Rows of [`stream`](Self::stream) so far.
    later: usize,
    /// Position in the window of the first row that comes next.
    position: usize,
}

/// The moments of what one kv head stores and is asked for.
pub struct HeadSums {
    /// Queries, all query heads of the group.
    pub queries: Moments,
    /// Keys.
    pub keys: Moments,
    /// Values.
    pub values: Moments,
}

/// Numbers that the slots of a site read.
pub fn site_width(hyper: &HyperParameters, site: Site) -> usize {
    match site {
        Site::Attention | Site::Ffn => hyper.width,
        Site::AttentionOutput => hyper.heads * hyper.head_size,
        Site::FfnHidden => hyper.ffn,
    }
}

/// Bytes that the sums of a layer take.
pub fn sums_bytes(hyper: &HyperParameters) -> u64 {
    let sites = Site::ALL.map(|site| Moments::bytes(site_width(hyper, site)));
    let streams = 2 * Moments::bytes(hyper.width);
    let heads = Moments::bytes(hyper.head_size).saturating_mul(3 * hyper.kv_heads as u64);
    let sites = sites.into_iter().fold(0, u64::saturating_add);
    sites.saturating_add(streams).saturating_add(heads)
}

impl<'a> LayerSums<'a> {
    /// Those of no text yet, of the windows that are to come. Where `algebra` is given, products of what is read at all positions
    /// are summed there.
    ///
    /// # Errors
    /// Where there is no room for these.
    pub fn new(
        cpu: &'a Cpu,
        algebra: Option<&dyn Algebra>,
        hyper: &HyperParameters,
        extent: Extent,
    ) -> Result<Self, FactoriseError> {
        let head = || Moments::new(hyper.head_size);
        let [attention, output, ffn, hidden] =
            Site::ALL.map(|site| Moments::on(algebra, site_width(hyper, site)));
        Ok(LayerSums {
            cpu,
            sites: [attention?, output?, ffn?, hidden?],
            stream: Moments::on(algebra, hyper.width)?,
            sink: Moments::new(hyper.width),
            first_inputs: FIRST_SITES.map(|_| vec![0.0; hyper.width]),
            first_rows: Vec::new(),
            norms: vec![0.0; extent.context],
            token_norms: Vec::new(),
            sample: Vec::new(),
            branches: [0.0; 2],
            heads: (0..hyper.kv_heads)
                .map(|_| HeadSums {
                    queries: head(),
                    keys: head(),
                    values: head(),
                })
                .collect(),
            width: hyper.width,
            head_size: hyper.head_size,
            query_heads: hyper.heads / hyper.kv_heads.max(1),
            extent,
            later: 0,
            position: 0,
        })
    }

    /// The next rows begin at this position of a window.
    pub fn begin(&mut self, position: usize) {
        self.position = position;
    }

    /// The residual stream `x [n, width]` behind the layer.
    pub fn behind(&mut self, x: &[f32]) {
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
            if next < kept && self.later == sampled_place(next, kept, of) {
                self.sample.extend_from_slice(row);
            }
            self.later += 1;
        }
        self.first_rows.extend_from_slice(first);
        if self.first_rows.len() >= FIRST_ROWS * width {
            self.take_first();
        }
    }

    /// Takes in what was put off, and fetches what lies on a device; after the last window.
    ///
    /// # Errors
    /// What the device says.
    pub fn finish(&mut self) -> Result<(), FactoriseError> {
        self.take_first();
        let mut sums = self.sites.iter_mut().chain([&mut self.stream]);
        sums.try_for_each(Moments::settle)
    }

    /// What a device did not sum so far.
    ///
    /// # Errors
    /// What it said.
    pub fn check(&self) -> Result<(), FactoriseError> {
        let mut sums = self.sites.iter().chain([&self.stream]);
        sums.try_for_each(Moments::check)
    }

    fn take_first(&mut self) {
        self.sink.add(self.cpu, &self.first_rows);
        self.first_rows.clear();
    }

    /// Multiplies the weight of everything so far by `factor`: a text of another weight follows.
    pub fn reweigh(&mut self, factor: f64) {
        self.take_first();
        let heads = self.heads.iter_mut();
        let heads = heads.flat_map(|head| [&mut head.queries, &mut head.keys, &mut head.values]);
        let moments = self.sites.iter_mut();
        let moments = moments
            .chain([&mut self.stream, &mut self.sink])
            .chain(heads);
        moments.for_each(|moments| moments.reweigh(factor));
        let first = self.first_inputs.iter_mut().flatten();
        let sums = self.norms.iter_mut().chain(&mut self.branches).chain(first);
        sums.for_each(|sum| *sum *= factor);
    }

    /// Whether everything can be stored.
    pub fn is_finite(&self) -> bool {
        let heads = self.heads.iter();
        let heads = heads.flat_map(|head| [&head.queries, &head.keys, &head.values]);
        let moments = self.sites.iter().chain([&self.stream, &self.sink]);
        moments.chain(heads).all(Moments::fits_float32)
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

    /// The row of a window's first position, and the others.
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
                self.sites[site as usize].add(cpu, x);
                if let Some(index) = FIRST_SITES.iter().position(|of| *of == site) {
                    let (first, _) = self.without_first(x);
                    let sums = self.first_inputs[index].iter_mut();
                    sums.zip(first).for_each(|(sum, x)| *sum += f64::from(*x));
                }
            }
            Point::AttentionBranch => self.branches[0] += squared_norm(self.without_first(x).1),
            Point::FfnBranch => self.branches[1] += squared_norm(self.without_first(x).1),
            Point::Queries | Point::Keys | Point::Values => {
                let heads = self.heads.len();
                // The queries of a group of heads are as many vectors as there are heads in it.
                let width = match point {
                    Point::Queries => self.query_heads * size,
                    _ => size,
                };
                cpu.pool().chunks_mut(&mut self.heads, 1, |index, head| {
                    let rows = x.chunks_exact((width * heads).max(1));
                    let parts = rows.map(|row| &row[index * width..][..width]);
                    let vectors = parts.flat_map(|part| part.chunks_exact(size.max(1)));
                    match point {
                        Point::Queries => head[0].queries.add_here(cpu, vectors),
                        Point::Keys => head[0].keys.add_here(cpu, vectors),
                        _ => head[0].values.add_here(cpu, vectors),
                    }
                });
            }
            _ => {}
        }
    }
}

/// In several chains, which do not wait for each other.
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
mod tests {
    use super::*;

    /// The windows are those of the places, in their order, and each gives as many vectors as any other, to one.
    #[test]
    fn every_window_gives_its_part_of_the_sample() {
        for (context, windows) in [(512, 128), (4, 3), (2, 4096), (1000, 7), (1, 5)] {
            let extent = Extent { context, windows };
            let found = sample_windows(extent);
            assert_eq!(found.len(), sample_count(extent));
            assert!(found.is_sorted() && found.iter().all(|&window| window < windows));
            let mut counts = vec![0usize; windows];
            found.iter().for_each(|&window| counts[window] += 1);
            let (most, least) = (counts.iter().max(), counts.iter().min());
            // The vectors lie anywhere in stretches of equal length, which ends of windows may divide.
            assert!(most.unwrap() - least.unwrap() <= 2, "{counts:?}");
        }
    }

    #[test]
    fn every_stretch_gives_one_vector_at_another_place() {
        for (kept, of) in [(1, 1), (7, 7), (512, 513), (512, 65_408), (100, 1_000_003)] {
            let places = (0..kept).map(|index| sampled_place(index, kept, of));
            let places: Vec<usize> = places.collect();
            for (index, place) in places.iter().enumerate() {
                let stretch = index * of / kept..(index + 1) * of / kept;
                assert!(stretch.contains(place), "{index} of {kept}: {place}");
            }
        }
        // 128 windows of 511 vectors: an equal step would find four positions.
        let mut positions: Vec<usize> = (0..512)
            .map(|index| sampled_place(index, 512, 65_408) % 511)
            .collect();
        positions.sort_unstable();
        positions.dedup();
        assert!(positions.len() > 250, "{}", positions.len());
    }
}

//! Attention over the KV cache, full and low-rank rows.

use std::sync::Arc;

mod importance;
mod tiles;

pub use importance::attention_importance;
pub(super) use tiles::TileKernel;
use tiles::TilingPlan;

use super::kv::{DeviceLowRankRows, KvElement, KvHeads, KvRows, KvRowsArgument};
use super::{F32_BYTES, byte_span, float_span, kernel_count, shape_mismatch};
use crate::cpu::Attention;
use crate::cuda::device::{
    Device, DeviceError, DeviceMemory, DeviceSpan, Kernel, kernel_arguments,
};

pub(super) const THREADS: u32 = 128;

/// Maximum positions of a tile; each lane computes the weight of one.
const MAX_TILE_POSITIONS: usize = 32;

const MAX_HEADS_PER_BLOCK: usize = 8;

/// Minimum positions per split, as in `attention.cu`.
const MIN_SPLIT: usize = 32;
pub(super) const MAX_SPLITS: usize = 64;

/// Rows for which all splits are allocated in advance.
const PREALLOCATED_ROWS: usize = 32;

/// Returns the number of elements in the partial sums of attention for `rows` rows, if the rank of
/// coordinates does not exceed the head size.
pub fn partial_sum_len(rows: usize, heads: usize, size: usize) -> usize {
    rows.max(MAX_SPLITS * rows.min(PREALLOCATED_ROWS)) * heads * (2 + 2 * size)
}

const MIN_SHARED_BYTES: usize = 48 << 10;

/// KV cache of a layer.
#[derive(Debug)]
pub struct DeviceLayerCache<'a, D: Device> {
    /// Full-precision keys and values.
    pub full: [&'a KvRows<D>; 2],
    /// Low-rank keys and values.
    pub low_rank: Option<DeviceLowRankCache<'a, D>>,
    /// Positions before the batch.
    pub start: usize,
}

/// Low-rank part of the KV cache of a layer.
#[derive(Debug)]
pub struct DeviceLowRankCache<'a, D: Device> {
    /// Coordinates of keys and of values.
    pub keys_and_values: [&'a DeviceLowRankRows<D>; 2],
    /// Full rows before the compressed ones.
    pub full_before: usize,
    /// Number of compressed rows.
    pub compressed: usize,
}

/// Scratch buffer, reused between calls.
#[derive(Debug)]
pub struct AttentionScratch<D: Device> {
    partial: Option<Arc<D::Memory>>,
}

impl<D: Device> Default for AttentionScratch<D> {
    fn default() -> Self {
        AttentionScratch { partial: None }
    }
}

impl<D: Device> AttentionScratch<D> {
    fn partial_sums(
        &mut self,
        device: &D,
        numbers: &[usize],
    ) -> Result<Arc<D::Memory>, DeviceError> {
        let needed = numbers
            .iter()
            .try_fold(F32_BYTES, |n, &count| n.checked_mul(count));
        let needed = needed.unwrap_or(usize::MAX);
        let partial = match self.partial.take() {
            Some(memory) if byte_span(&*memory, "partial sums", 0, &[needed], 1).is_ok() => memory,
            _ => Arc::new(device.allocate(needed)?),
        };
        Ok(Arc::clone(self.partial.insert(partial)))
    }
}

kernel_arguments! {
    // Layouts as in `attention.cu`.

    struct Attend {
        q: DeviceSpan,
        partial: DeviceSpan,
        keys: KvRowsArgument,
        values: KvRowsArgument,
        low: [DeviceSpan; 2],
        bases: [DeviceSpan; 2],
        heads: u32,
        kv_heads: u32,
        size: u32,
        ranks: [u32; 2],
        low_capacity: u32,
        front: u32,
        compressed: u32,
        start: u32,
        window: u32,
        splits: u32,
        split: u32,
        together: u32,
        scale: f32,
        softcap: f32,
        tile: u32,
    }

    pub(super) struct Join {
        partial: DeviceSpan,
        basis: DeviceSpan,
        out: DeviceSpan,
        heads: u32,
        kv_heads: u32,
        size: u32,
        rank: u32,
        splits: u32,
        unused: u32,
    }
}

/// Partial results of the splits, before the reduction.
#[derive(Debug)]
pub struct PartialAttention<D: Device> {
    partial: Arc<D::Memory>,
    queries: QueryShape,
    kv_heads: usize,
    size: usize,
    splits: usize,
}

/// Shape of the queries, and batch invariance.
#[derive(Clone, Copy, Debug)]
pub struct QueryShape {
    /// First row of the queries, and of the output, in its buffer.
    pub first: usize,
    /// Rows: positions of the batch.
    pub rows: usize,
    /// Heads per row.
    pub heads: usize,
    /// Splits the context independently of the number of rows, so that each row gives the same bits
    /// as alone.
    pub batch_invariant: bool,
}

impl QueryShape {
    /// Returns the rows of `memory [.., heads, size]`.
    fn span(
        self,
        memory: &impl DeviceMemory,
        what: &'static str,
        size: usize,
    ) -> Result<DeviceSpan, DeviceError> {
        let QueryShape {
            first, rows, heads, ..
        } = self;
        let row = heads.saturating_mul(size).saturating_mul(F32_BYTES);
        byte_span(
            memory,
            what,
            first.saturating_mul(row),
            &[rows, heads, size],
            F32_BYTES,
        )
    }
}

/// Computes causal attention of `q [rows, heads, size]`, from the first row on; its keys and values
/// are the last full rows in `held`, and `out` has the shape of `q`. Query head `h` reads kv head
/// `h / (heads / kv heads)`.
///
/// The context is split among blocks, which a second launch combines (Flash-Decoding, Dao et al.
/// 2023). If all positions are held in full, many rows are processed in tiles by tensor cores.
/// Weighted sums of coordinates are expanded in the second launch (OjaKV, section 3.2).
///
/// # Errors
/// [`DeviceError::OutOfBounds`] for mismatched shapes.
pub fn attention<D: Device>(
    device: &D,
    queries: QueryShape,
    q: &D::Memory,
    held: &DeviceLayerCache<'_, D>,
    attention: &Attention,
    scratch: &mut AttentionScratch<D>,
    out: &D::Memory,
) -> Result<(), DeviceError> {
    match attend_splits(device, queries, q, held, attention, scratch, out)? {
        Some(joined) => joined.finish(device, out),
        None => Ok(()),
    }
}

/// As [`attention`] without the final reduction, if that needs full rows only; otherwise finishes
/// it and returns `None`.
pub fn attend_splits<D: Device>(
    device: &D,
    queries: QueryShape,
    q: &D::Memory,
    held: &DeviceLayerCache<'_, D>,
    attention: &Attention,
    scratch: &mut AttentionScratch<D>,
    out: &D::Memory,
) -> Result<Option<PartialAttention<D>>, DeviceError> {
    const KERNEL: Kernel<Attend> = Kernel::new("attend_split", THREADS);
    let QueryShape { rows, heads, .. } = queries;
    let KvHeads {
        heads: kv_heads,
        size,
    } = held.full[0].shape();
    let group = check_shapes(held, queries, attention)?;
    if let Some(tiles) = TilingPlan::for_batch(device, queries, held, attention) {
        let joined = tiles.attend(device, queries, q, held, attention, scratch)?;
        return Ok(Some(joined));
    }
    let low = low_arguments(held)?;
    let wide = size + low.ranks[1];
    let end = held.start + rows;
    // Many rows give enough blocks without further splits.
    let few = rows == 1 || queries.batch_invariant || rows * kv_heads < device.multiprocessors();
    let (split, splits) = if few {
        (0, max_splits(held.start, end))
    } else {
        (end, 1)
    };
    let numbers = [rows, heads, splits, 2 + wide];
    // For the maximum number, so that the address is the same for each token.
    let most = if few && rows <= PREALLOCATED_ROWS {
        MAX_SPLITS
    } else {
        splits
    };
    let partial = scratch.partial_sums(device, &[rows, heads, most, 2 + wide])?;
    let [codes, _] = held.full[0].kv_type().row_bytes(size);
    let shared = SplitLayout::largest_that_fits(group, size, low.ranks, codes);
    let arguments = Attend {
        q: queries.span(q, "queries", size)?,
        partial: float_span(&*partial, "partial sums", &numbers)?,
        keys: held.full[0].kernel_argument()?,
        values: held.full[1].kernel_argument()?,
        low: low.coordinates,
        bases: low.bases,
        heads: kernel_count("heads", heads)?,
        kv_heads: kernel_count("heads", kv_heads)?,
        size: kernel_count("a head", size)?,
        ranks: [
            kernel_count("the rank", low.ranks[0])?,
            kernel_count("the rank", low.ranks[1])?,
        ],
        low_capacity: kernel_count("rows", low.capacity)?,
        front: kernel_count("rows", low.front)?,
        compressed: kernel_count("rows", low.compressed)?,
        start: kernel_count("positions", held.start)?,
        window: kernel_count("positions", attention.window.unwrap_or(0).min(1 << 30))?,
        splits: kernel_count("splits", splits)?,
        split: kernel_count("positions", split)?,
        together: kernel_count("heads", shared.heads)?,
        scale: attention.scale,
        softcap: attention.softcap.unwrap_or(0.0),
        tile: kernel_count("positions", shared.tile)?,
    };
    let blocks = rows * kv_heads * (group / shared.heads);
    let grid = [
        kernel_count("blocks of attention", blocks)?,
        kernel_count("splits", splits)?,
        1,
    ];
    // SAFETY: a block reads queries of its heads and rows below `start + rows`, which `check` has
    // verified to be full or low-rank, and writes the record of each of its heads; the spans cover
    // them. The shared memory matches its layout.
    unsafe { device.launch(&KERNEL, grid, shared.bytes, &arguments)? };
    let joined = PartialAttention {
        partial,
        queries,
        kv_heads,
        size,
        splits,
    };
    if low.ranks[1] == 0 {
        return Ok(Some(joined));
    }
    let basis = OutputBasis {
        span: low.bases[1],
        rank: low.ranks[1],
    };
    joined.launch(device, basis, out)?;
    Ok(None)
}

/// Basis from which low-rank outputs are expanded, of rank 0 if there is none.
#[derive(Clone, Copy, Default)]
struct OutputBasis {
    span: DeviceSpan,
    rank: usize,
}

impl<D: Device> PartialAttention<D> {
    /// Combines the splits and writes the attention to `out`.
    pub fn finish(&self, device: &D, out: &D::Memory) -> Result<(), DeviceError> {
        self.launch(device, OutputBasis::default(), out)
    }

    /// Returns true if the output is the first `n` rows of `width` elements.
    pub(super) fn fills(&self, [n, width]: [usize; 2]) -> bool {
        let QueryShape {
            first, rows, heads, ..
        } = self.queries;
        (first, rows, heads * self.size) == (0, n, width)
    }

    pub(super) fn head_size(&self) -> usize {
        self.size
    }

    pub(super) fn shared_bytes(&self) -> usize {
        join_shared_bytes(self.splits)
    }

    pub(super) fn grid(&self) -> Result<[u32; 3], DeviceError> {
        Ok([
            kernel_count("heads of all rows", self.queries.rows * self.queries.heads)?,
            1,
            1,
        ])
    }

    pub(super) fn join_arguments(&self, out: &D::Memory) -> Result<Join, DeviceError> {
        self.argument_with(OutputBasis::default(), out)
    }

    fn argument_with(&self, basis: OutputBasis, out: &D::Memory) -> Result<Join, DeviceError> {
        let QueryShape { rows, heads, .. } = self.queries;
        let size = self.size;
        let numbers = [rows, heads, self.splits, 2 + size + basis.rank];
        Ok(Join {
            partial: float_span(&*self.partial, "partial sums", &numbers)?,
            basis: basis.span,
            out: self.queries.span(out, "out", size)?,
            heads: kernel_count("heads", heads)?,
            kv_heads: kernel_count("heads", self.kv_heads)?,
            size: kernel_count("a head", size)?,
            rank: kernel_count("the rank", basis.rank)?,
            splits: kernel_count("splits", self.splits)?,
            unused: 0,
        })
    }

    fn launch(&self, device: &D, basis: OutputBasis, out: &D::Memory) -> Result<(), DeviceError> {
        const JOIN: Kernel<Join> = Kernel::new("attend_join", THREADS);
        let joined = self.argument_with(basis, out)?;
        let shared = self.shared_bytes() + basis.rank * F32_BYTES;
        // SAFETY: a block reads the records of a head and writes its elements of `out`; its shared
        // memory has `rank` elements after those of the splits.
        unsafe { device.launch(&JOIN, self.grid()?, shared, &joined) }
    }
}

fn max_splits(start: usize, end: usize) -> usize {
    let of = |end: usize| {
        let mut split = MIN_SPLIT;
        while end.div_ceil(split) > MAX_SPLITS {
            split *= 2;
        }
        end.div_ceil(split)
    };
    (start + 1..=end).map(of).max().unwrap_or(1)
}

pub(super) fn join_shared_bytes(splits: usize) -> usize {
    2 * splits * F32_BYTES
}

pub(super) fn split_shared_bytes(group: usize, size: usize, numbers: KvElement) -> usize {
    SplitLayout::largest_that_fits(group, size, [0, 0], numbers.row_bytes(size)[0]).bytes
}

struct SplitLayout {
    heads: usize,
    tile: usize,
    bytes: usize,
}

impl SplitLayout {
    /// Returns the largest tile of positions that fits, and then as many of the `group` query heads
    /// of a kv head as fit.
    fn largest_that_fits(
        group: usize,
        size: usize,
        ranks: [usize; 2],
        codes: usize,
    ) -> SplitLayout {
        let of = |together: usize, tile: usize| SplitLayout {
            heads: together,
            tile,
            bytes: SplitLayout::bytes(together, tile, size, ranks, codes),
        };
        let tiles = (0..=MAX_TILE_POSITIONS.ilog2())
            .rev()
            .map(|log| 1_usize << log);
        let mut all = tiles.flat_map(|tile| {
            let heads = (1..=MAX_HEADS_PER_BLOCK.min(group)).rev();
            let heads = heads.filter(|&together| group.is_multiple_of(together));
            heads.map(move |together| of(together, tile))
        });
        let fits = all.find(|shared| shared.bytes <= MIN_SHARED_BYTES);
        fits.unwrap_or_else(|| of(1, 1))
    }

    fn bytes(together: usize, tile: usize, size: usize, ranks: [usize; 2], codes: usize) -> usize {
        const BLOCK: usize = 32;
        let side = |rank: usize| {
            let pitch = codes.max(2 * rank).next_multiple_of(16) + 16;
            tile * pitch + (tile * (size / BLOCK) * 2).next_multiple_of(16)
        };
        let weights = together.next_multiple_of(4) * tile;
        let queries = (together * size).next_multiple_of(4) + together * ranks[0];
        let sums = together * (size + ranks[1] + 3);
        side(ranks[0]) + side(ranks[1]) + (weights + queries + sums) * F32_BYTES
    }
}

#[derive(Default)]
struct LowArguments {
    coordinates: [DeviceSpan; 2],
    bases: [DeviceSpan; 2],
    ranks: [usize; 2],
    capacity: usize,
    front: usize,
    compressed: usize,
}

fn low_arguments<D: Device>(held: &DeviceLayerCache<'_, D>) -> Result<LowArguments, DeviceError> {
    let size = held.full[0].shape().size;
    let mut arguments = LowArguments {
        front: held.start,
        ..LowArguments::default()
    };
    let Some(low) = &held.low_rank else {
        return Ok(arguments);
    };
    for (side, of_side) in low.keys_and_values.into_iter().enumerate() {
        let KvHeads { heads, size: rank } = of_side.rows.shape();
        arguments.coordinates[side] = of_side.rows.kernel_argument()?.codes();
        arguments.bases[side] = float_span(&*of_side.basis, "bases", &[heads, rank, size])?;
        arguments.ranks[side] = rank;
    }
    arguments.capacity = low.keys_and_values[0].rows.capacity();
    (arguments.front, arguments.compressed) = (low.full_before, low.compressed);
    Ok(arguments)
}

fn check_shapes<D: Device>(
    held: &DeviceLayerCache<'_, D>,
    queries: QueryShape,
    attention: &Attention,
) -> Result<usize, DeviceError> {
    let shape = held.full[0].shape();
    let (front, compressed) = held
        .low_rank
        .as_ref()
        .map_or((0, 0), |low| (low.full_before, low.compressed));
    let full = (held.start + queries.rows).saturating_sub(compressed);
    let range = |what, needed, found| Err(shape_mismatch(what, needed, found));
    let [keys, values] = held.full;
    if values.shape() != shape || values.kv_type() != keys.kv_type() {
        return range(
            "numbers of a value's head, as a key's",
            shape.size,
            values.shape().size,
        );
    }
    let capacity = keys.capacity().min(values.capacity());
    if full > capacity || front > full {
        return range("positions in full", full.max(front), capacity);
    }
    if let Some(low) = &held.low_rank {
        let [keys, values] = low.keys_and_values.map(|side| side.rows.capacity());
        if compressed > keys || keys != values {
            return range("positions in low rank", compressed, keys.min(values));
        }
        for side in low.keys_and_values {
            if side.size != shape.size {
                return range("numbers of a head", shape.size, side.size);
            }
            let (heads, numbers) = (side.rows.shape().heads, side.rows.kv_type());
            if heads != shape.heads || numbers != KvElement::F16 {
                return range("heads of coordinates in half precision", shape.heads, heads);
            }
        }
    }
    if shape.heads == 0 || !queries.heads.is_multiple_of(shape.heads) || queries.heads == 0 {
        return range(
            "query heads (a multiple of kv heads)",
            shape.heads,
            queries.heads,
        );
    }
    if attention.window == Some(0) {
        return range("window (positions, at least)", 1, 0);
    }
    Ok(queries.heads / shape.heads)
}

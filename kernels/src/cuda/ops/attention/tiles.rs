//! Attention of many rows in tiles of queries, with tensor cores.

use super::super::kv::{KvElement, KvRowsArgument};
use super::super::{F32_BYTES, float_span, kernel_count, shape_mismatch};
use super::{AttentionScratch, DeviceLayerCache, MAX_SPLITS, PartialAttention, QueryShape};
use crate::cpu::Attention;
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Minimum rows for tiles, as for tiled matrix products.
const MIN_ROWS: usize = 32;

/// Queries per tile, as in `attention_tiles.cu`.
const QUERIES: usize = 64;
const POSITIONS: usize = 32;
const THREADS: u32 = 128;

/// The limit for shared memory with the queries.
const MAX_HEAD_SIZE: usize = 256;

/// The maximum equals the memory allocated for few rows with all splits.
const MIN_SPLIT: usize = 256;
const MAX_RECORDS: usize = super::PREALLOCATED_ROWS * MAX_SPLITS;

kernel_arguments! {
    // Layouts as in `attention_tiles.cu`.

    struct AttendTiles {
        q: DeviceSpan,
        partial: DeviceSpan,
        keys: KvRowsArgument,
        values: KvRowsArgument,
        rows: u32,
        heads: u32,
        kv_heads: u32,
        size: u32,
        start: u32,
        window: u32,
        splits: u32,
        split: u32,
        first: u32,
        unused: u32,
        scale: f32,
        softcap: f32,
    }
}

pub(in super::super) struct TileKernel {
    kernel: &'static str,
    /// Shared memory of a block in bytes.
    pub shared_bytes: usize,
    value_columns: usize,
}

pub(super) struct TilingPlan {
    tile: TileKernel,
    splits: usize,
    split: usize,
    first: usize,
}

impl TileKernel {
    pub fn for_heads(size: usize, numbers: KvElement) -> Option<TileKernel> {
        if size > MAX_HEAD_SIZE {
            return None;
        }
        let (names, [parts, kv_parts]) = match numbers {
            KvElement::F16 => (
                ["attend_tiles_of_halves_64", "attend_tiles_of_halves_128"],
                [2, 1],
            ),
            _ => (["attend_tiles_64", "attend_tiles_128"], [3, 3]),
        };
        let (kernel, wide) = match size {
            ..=64 => (names[0], 64),
            _ => (names[1], 128),
        };
        let row = size.next_multiple_of(32);
        let queries = parts * QUERIES * row * 2 + QUERIES * (row / 32) * F32_BYTES;
        let shared = queries + kv_parts * POSITIONS * (row + wide) * 2;
        Some(TileKernel {
            kernel,
            shared_bytes: shared,
            value_columns: wide,
        })
    }

    fn blocks(&self, queries: QueryShape, size: usize) -> usize {
        queries.rows.div_ceil(QUERIES) * queries.heads * size.div_ceil(self.value_columns)
    }
}

impl TilingPlan {
    /// Returns the tiling of a batch with enough rows, if all positions are held in full and a tile
    /// fits in shared memory.
    pub fn for_batch<D: Device>(
        device: &D,
        queries: QueryShape,
        held: &DeviceLayerCache<'_, D>,
        attention: &Attention,
    ) -> Option<TilingPlan> {
        let in_full = held.low_rank.as_ref().is_none_or(|low| low.compressed == 0);
        if queries.batch_invariant || queries.rows < MIN_ROWS || !in_full {
            return None;
        }
        let size = held.full[0].shape().size;
        let tile = TileKernel::for_heads(size, held.full[0].kv_type())?;
        if tile.shared_bytes > device.max_shared_bytes() {
            return None;
        }
        let window = attention.window.unwrap_or(usize::MAX);
        let seen = (held.start + 1).saturating_sub(window);
        let first = seen / POSITIONS * POSITIONS;
        let positions = held.start + queries.rows - first;
        let blocks = tile.blocks(queries, size);
        let wanted = (2 * device.multiprocessors()).div_ceil(blocks.max(1));
        let most = (MAX_RECORDS / queries.rows).min(positions.div_ceil(MIN_SPLIT));
        let splits = wanted.min(most).max(1);
        let split = positions.div_ceil(splits).next_multiple_of(POSITIONS);
        Some(TilingPlan {
            tile,
            splits: positions.div_ceil(split),
            split,
            first,
        })
    }

    pub fn attend<D: Device>(
        &self,
        device: &D,
        queries: QueryShape,
        q: &D::Memory,
        held: &DeviceLayerCache<'_, D>,
        attention: &Attention,
        scratch: &mut AttentionScratch<D>,
    ) -> Result<PartialAttention<D>, DeviceError> {
        let QueryShape { rows, heads, .. } = queries;
        let shape = held.full[0].shape();
        let size = shape.size;
        let joined = PartialAttention {
            partial: scratch.partial_sums(device, &[rows, heads, self.splits, 2 + size])?,
            queries,
            kv_heads: shape.heads,
            size,
            splits: self.splits,
        };
        let numbers = [rows, heads, self.splits, 2 + size];
        let arguments = AttendTiles {
            q: queries.span(q, "queries", size)?,
            partial: float_span(&*joined.partial, "partial sums", &numbers)?,
            keys: held.full[0].kernel_argument()?,
            values: held.full[1].kernel_argument()?,
            rows: kernel_count("rows", rows)?,
            heads: kernel_count("heads", heads)?,
            kv_heads: kernel_count("heads", shape.heads)?,
            size: kernel_count("a head", size)?,
            start: kernel_count("positions", held.start)?,
            window: kernel_count("positions", attention.window.unwrap_or(0).min(1 << 30))?,
            splits: kernel_count("splits", self.splits)?,
            split: kernel_count("positions", self.split)?,
            first: kernel_count("positions", self.first)?,
            unused: 0,
            scale: attention.scale,
            softcap: attention.softcap.unwrap_or(0.0),
        };
        let end = held.start + rows;
        // The kernel adds tile and window sizes to 32-bit positions.
        if end > 1 << 30 {
            return Err(shape_mismatch("positions", end, 1 << 30));
        }
        let grid = [
            kernel_count("tiles of queries", rows.div_ceil(QUERIES) * heads)?,
            kernel_count("splits", self.splits)?,
            kernel_count("parts of a head", size.div_ceil(self.tile.value_columns))?,
        ];
        let kernel = Kernel::<AttendTiles>::new(self.tile.kernel, THREADS);
        // SAFETY: a block reads existing queries of a head and rows below `start + rows`, all of
        // them full, and writes the records of these queries; the spans cover them. The shared
        // memory matches its layout.
        unsafe { device.launch(&kernel, grid, self.tile.shared_bytes, &arguments)? };
        Ok(joined)
    }
}

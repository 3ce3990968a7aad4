//! Attention of many rows in tiles of queries, with tensor cores.

use super::super::kv::{KvNumbers, RowsArgument};
use super::super::{F32, count, floats, misfit};
use super::{AttentionRoom, Held, Joined, Queries, SPLITS};
use crate::cpu::Attention;
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Span};

/// Minimum number of rows for tiles, equal to that of tiled matrix products.
const LEAST: usize = 32;

/// Queries and positions of a tile and threads of its block, as in `attention_tiles.cu`.
const QUERIES: usize = 64;
const POSITIONS: usize = 32;
const THREADS: u32 = 128;

/// Maximum head size: the largest in use, and the limit for shared memory with the queries.
const MOST_SIZE: usize = 256;

/// Minimum positions of a split, and maximum rows times splits, equal to the memory allocated for
/// few rows with all their splits.
const LEAST_SPLIT: usize = 256;
const MOST_RECORDS: usize = super::FEW * SPLITS;

#[derive(Clone, Copy)]
#[repr(C)]
struct AttendTiles {
    q: Span,
    partial: Span,
    keys: RowsArgument,
    values: RowsArgument,
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

// SAFETY: layout as in `attention_tiles.cu`, without padding.
unsafe impl Arguments for AttendTiles {}

/// Kernel for a tile of queries.
pub(in super::super) struct Tile {
    kernel: &'static str,
    /// Shared memory of a block in bytes.
    pub shared: usize,
    /// Value columns per block.
    wide: usize,
}

/// Tiling of a batch.
pub(super) struct Tiles {
    tile: Tile,
    splits: usize,
    split: usize,
    first: usize,
}

impl Tile {
    /// Returns the kernel for a head size and storage type.
    pub fn of_heads(size: usize, numbers: KvNumbers) -> Option<Tile> {
        if size > MOST_SIZE {
            return None;
        }
        let (names, [parts, kv_parts]) = match numbers {
            KvNumbers::F16 => (
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
        let queries = parts * QUERIES * row * 2 + QUERIES * (row / 32) * F32;
        let shared = queries + kv_parts * POSITIONS * (row + wide) * 2;
        Some(Tile {
            kernel,
            shared,
            wide,
        })
    }

    fn blocks(&self, queries: Queries, size: usize) -> usize {
        queries.rows.div_ceil(QUERIES) * queries.heads * size.div_ceil(self.wide)
    }
}

impl Tiles {
    /// Returns the tiling of a batch, if it has enough rows, all positions are held in full, and a
    /// tile fits in shared memory.
    pub fn of<D: Device>(
        device: &D,
        queries: Queries,
        held: &Held<'_, D>,
        attention: &Attention,
    ) -> Option<Tiles> {
        let in_full = held.low.as_ref().is_none_or(|low| low.compressed == 0);
        if queries.apart || queries.rows < LEAST || !in_full {
            return None;
        }
        let size = held.full[0].shape().size;
        let tile = Tile::of_heads(size, held.full[0].numbers())?;
        if tile.shared > device.shared_of_block() {
            return None;
        }
        let window = attention.window.unwrap_or(usize::MAX);
        let seen = (held.start + 1).saturating_sub(window);
        let first = seen / POSITIONS * POSITIONS;
        let positions = held.start + queries.rows - first;
        let blocks = tile.blocks(queries, size);
        let wanted = (2 * device.multiprocessors()).div_ceil(blocks.max(1));
        let most = (MOST_RECORDS / queries.rows).min(positions.div_ceil(LEAST_SPLIT));
        let splits = wanted.min(most).max(1);
        let split = positions.div_ceil(splits).next_multiple_of(POSITIONS);
        Some(Tiles {
            tile,
            splits: positions.div_ceil(split),
            split,
            first,
        })
    }

    /// Launches the splits.
    pub fn attend<D: Device>(
        &self,
        device: &D,
        queries: Queries,
        (q, held): (&D::Memory, &Held<'_, D>),
        attention: &Attention,
        room: &mut AttentionRoom<D>,
    ) -> Result<Joined<D>, DeviceError> {
        let Queries { rows, heads, .. } = queries;
        let shape = held.full[0].shape();
        let size = shape.size;
        let joined = Joined {
            partial: room.partial(device, &[rows, heads, self.splits, 2 + size])?,
            rows,
            heads,
            kv_heads: shape.heads,
            size,
            splits: self.splits,
        };
        let numbers = [rows, heads, self.splits, 2 + size];
        let arguments = AttendTiles {
            q: floats(q, "queries", &[rows, heads, size])?,
            partial: floats(&*joined.partial, "partial sums", &numbers)?,
            keys: held.full[0].argument()?,
            values: held.full[1].argument()?,
            rows: count("rows", rows)?,
            heads: count("heads", heads)?,
            kv_heads: count("heads", shape.heads)?,
            size: count("a head", size)?,
            start: count("positions", held.start)?,
            window: count("positions", attention.window.unwrap_or(0).min(1 << 30))?,
            splits: count("splits", self.splits)?,
            split: count("positions", self.split)?,
            first: count("positions", self.first)?,
            unused: 0,
            scale: attention.scale,
            softcap: attention.softcap.unwrap_or(0.0),
        };
        let end = held.start + rows;
        // The kernel adds tile and window sizes to 32-bit positions.
        if end > 1 << 30 {
            return Err(misfit("positions", end, 1 << 30));
        }
        let grid = [
            count("tiles of queries", rows.div_ceil(QUERIES) * heads)?,
            count("splits", self.splits)?,
            count("parts of a head", size.div_ceil(self.tile.wide))?,
        ];
        let kernel = Kernel::<AttendTiles>::new(self.tile.kernel, THREADS);
        // SAFETY: a block reads existing queries of a head and rows below `start + rows`, all of
        // them full, and writes the records of these queries; the spans cover them. The shared
        // memory matches its layout.
        unsafe { device.launch(&kernel, grid, self.tile.shared, &arguments)? };
        Ok(joined)
    }
}

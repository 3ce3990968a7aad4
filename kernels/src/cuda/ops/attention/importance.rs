//! Attention weights of positions, for eviction.

use super::super::kv::{KvHeads, KvRows, KvRowsArgument};
use super::super::{
    F32_BYTES, download_floats, float_span, kernel_count, launch_per_element, shape_mismatch,
};
use super::{DeviceLayerCache, QueryShape, THREADS, check_shapes};
use crate::cpu::Attention;
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

kernel_arguments! {
    // Layouts as in `attention.cu`.

    struct Importance {
        q: DeviceSpan,
        scale_of: DeviceSpan,
        out: DeviceSpan,
        keys: KvRowsArgument,
        heads: u32,
        kv_heads: u32,
        size: u32,
        queries: u32,
        end: u32,
        window: u32,
        scale: f32,
        softcap: f32,
    }
}

/// Returns the attention weights that the last `window` rows of the queries give to
/// each of `end` positions with the keys `keys`, summed over these rows and the query heads of a kv
/// head: `[kv heads, end]`.
///
/// # Errors
/// As [`attention`](super::attention).
pub fn attention_importance<D: Device>(
    device: &D,
    queries: QueryShape,
    window: usize,
    q: &D::Memory,
    keys: &KvRows<D>,
    end: usize,
    attention: &Attention,
) -> Result<Vec<f32>, DeviceError> {
    const OF_QUERIES: Kernel<Importance> = Kernel::new("importance_of_queries", THREADS);
    const OF_POSITIONS: Kernel<Importance> = Kernel::new("importance_of_positions", THREADS);
    let KvHeads {
        heads: kv_heads,
        size,
    } = keys.shape();
    let held = DeviceLayerCache {
        full: [keys, keys],
        low_rank: None,
        start: end.saturating_sub(queries.rows),
    };
    check_shapes(&held, queries, attention)?;
    let heads = queries.heads;
    if window > queries.rows || window > end {
        return Err(shape_mismatch("queries", window, queries.rows.min(end)));
    }
    let first = queries.first + queries.rows.saturating_sub(window);
    let asked = QueryShape {
        first,
        rows: window,
        ..queries
    };
    let scales = device.allocate(2 * F32_BYTES * window * heads)?;
    let out = device.allocate(F32_BYTES * kv_heads * end)?;
    let arguments = Importance {
        q: asked.span(q, "queries", size)?,
        scale_of: float_span(&scales, "scales of weights", &[window, heads, 2])?,
        out: float_span(&out, "importance", &[kv_heads, end])?,
        keys: keys.kernel_argument()?,
        heads: kernel_count("heads", heads)?,
        kv_heads: kernel_count("heads", kv_heads)?,
        size: kernel_count("a head", size)?,
        queries: kernel_count("queries", window)?,
        end: kernel_count("positions", end)?,
        window: kernel_count("positions", attention.window.unwrap_or(0).min(1 << 30))?,
        scale: attention.scale,
        softcap: attention.softcap.unwrap_or(0.0),
    };
    let grid = [kernel_count("heads of queries", window * heads)?, 1, 1];
    // SAFETY: a block reads a query and the keys of its visible positions and writes two elements;
    // the spans cover them.
    unsafe { device.launch(&OF_QUERIES, grid, 0, &arguments)? };
    // SAFETY: a thread reads all queries and the key of a position and writes one element; the
    // spans cover them.
    unsafe { launch_per_element(device, &OF_POSITIONS, kv_heads * end, &arguments)? };
    download_floats(device, &out, kv_heads * end)
}

//! Dynamic shared memory per kernel, predicted for one model shape.

use htc_formats::bands::STATES;

use super::kv::KvElement;
use super::{F32_BYTES, attention, products};

/// The assumed shape.
const HEAD: usize = 128;
const GROUP: usize = 4;
const TABLES: usize = 2 * STATES;

/// Returns the dynamic shared memory per block of a kernel in bytes, with f16 keys and values
/// unless the kernel is for another type.
pub fn dynamic_shared_bytes(kernel: &str) -> usize {
    let tiles = |size: usize, numbers: KvElement| {
        let tile = attention::TileKernel::for_heads(size, numbers);
        tile.map_or(0, |tile| tile.shared_bytes)
    };
    match kernel {
        "attend_split" => attention::split_shared_bytes(GROUP, HEAD, KvElement::F16),
        "attend_join" | "join_quantise" => attention::join_shared_bytes(attention::MAX_SPLITS),
        "attend_tiles_64" => tiles(HEAD / 2, KvElement::F32),
        "attend_tiles_128" => tiles(HEAD, KvElement::F32),
        "attend_tiles_of_halves_64" => tiles(HEAD / 2, KvElement::F16),
        "attend_tiles_of_halves_128" => tiles(HEAD, KvElement::F16),
        "hadamard" | "heads_ready" | "kv_map" => HEAD * F32_BYTES,
        "bands_tiles" => TABLES,
        "bands_1" | "bands_1_alone" => products::column_group_shared_bytes(TABLES, 1),
        "bands_2" => products::column_group_shared_bytes(TABLES, 2),
        "bands_4" => products::column_group_shared_bytes(TABLES, 4),
        "bands_8" => products::column_group_shared_bytes(TABLES, 8),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;

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
mod tests {
    use super::*;
    use crate::cuda::source::UNITS;

    #[test]
    fn every_kernel_with_dynamic_shared_memory_has_an_estimate() {
        let mut found = 0;
        for unit in UNITS {
            let mut kernel = None;
            for line in unit.text.lines() {
                if let Some((_, named)) =
                    line.split_once("KERNEL").filter(|_| !line.starts_with(' '))
                {
                    let named = named
                        .split_once('(')
                        .and_then(|(_, named)| named.split_once(','));
                    kernel = named.map(|(name, _)| name);
                } else if line.starts_with("template") || line.starts_with("DEVICE") {
                    kernel = None;
                }
                if line.contains("DYNAMIC_SHARED(")
                    && let Some(name) = kernel
                {
                    assert!(dynamic_shared_bytes(name) > 0, "{name} of {}", unit.name);
                    found += 1;
                }
            }
        }
        assert_eq!(found, 11);
        for name in products::COLUMN_GROUP_KERNELS {
            assert!(dynamic_shared_bytes(name) > TABLES, "{name}");
        }
        assert_eq!(dynamic_shared_bytes("embed"), 0);
    }
}

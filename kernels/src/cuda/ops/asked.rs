//! Shared memory that launches ask for beside what sources name, foreseen for one shape.

use htc_formats::bands::STATES;

use super::kv::KvNumbers;
use super::{F32, attention, products};

/// What is foreseen is of attention with heads of so many numbers, of which so many read the same keys, over a long context, and of
/// matrices in bands of trellises with two tables.
pub const HEAD: usize = 128;
const GROUP: usize = 4;
const TABLES: usize = 2 * STATES;

/// Bytes of dynamic shared memory that a block of a kernel asks for, of keys and values in half precision where the kernel is not for
/// others; none of a kernel that asks for nothing.
pub fn asked(kernel: &str) -> usize {
    let tiles = |size: usize, numbers: KvNumbers| {
        let tiles = attention::Tiles::of_heads(size, numbers);
        tiles.map_or(0, |tiles| tiles.shared)
    };
    match kernel {
        "attend_split" => attention::shared_of_a_split(GROUP, HEAD, KvNumbers::F16),
        "attend_join" | "join_quantise" => attention::shared_of_splits(attention::SPLITS),
        "attend_tiles_64" => tiles(HEAD / 2, KvNumbers::F32),
        "attend_tiles_128" => tiles(HEAD, KvNumbers::F32),
        "attend_tiles_of_halves_64" => tiles(HEAD / 2, KvNumbers::F16),
        "attend_tiles_of_halves_128" => tiles(HEAD, KvNumbers::F16),
        "hadamard" => HEAD * F32,
        "bands_tiles" => TABLES,
        "bands_1" | "bands_1_alone" => products::shared_of_bands(TABLES, 1),
        "bands_2" => products::shared_of_bands(TABLES, 2),
        "bands_4" => products::shared_of_bands(TABLES, 4),
        "bands_8" => products::shared_of_bands(TABLES, 8),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::source::UNITS;

    #[test]
    fn kernels_with_dynamic_shared_memory_ask_for_some() {
        let mut found = 0;
        for unit in UNITS {
            let lines: Vec<&str> = unit.text.lines().collect();
            for pair in lines.windows(2) {
                let [kernel, first] = [pair[0], pair[1]].map(str::trim);
                if !first.starts_with("DYNAMIC_SHARED(") || !kernel.starts_with("KERNEL") {
                    continue;
                }
                let (_, named) = kernel.split_once('(').unwrap();
                let (name, _) = named.split_once(',').unwrap();
                assert!(asked(name) > 0, "{name} of {}", unit.name);
                found += 1;
            }
        }
        assert!(found >= 8, "{found}");
        // Those of a template.
        for name in products::BANDS {
            assert!(asked(name) > TABLES, "{name}");
        }
        assert_eq!(asked("embed"), 0);
    }
}

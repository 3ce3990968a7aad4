use super::*;
use crate::cuda::source::UNITS;

#[test]
fn every_kernel_with_dynamic_shared_memory_has_an_estimate() {
    let mut found = 0;
    for unit in UNITS {
        let mut kernel = None;
        for line in unit.text.lines() {
            if let Some((_, named)) = line.split_once("KERNEL").filter(|_| !line.starts_with(' ')) {
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

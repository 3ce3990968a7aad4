use super::*;

fn limits(major: u8, minor: u8) -> MultiprocessorLimits {
    MultiprocessorLimits::for_architecture(GpuArchitecture { major, minor }).unwrap()
}

#[test]
fn resident_blocks_match_the_occupancy_calculator() {
    for (multiprocessor, threads, registers, shared, resident) in [
        (limits(8, 0), 256, 32, 0, 8),
        (limits(8, 9), 256, 32, 0, 6),
        (limits(8, 9), 1024, 32, 0, 1),
        (limits(8, 0), 256, 64, 0, 4),
        (limits(9, 0), 128, 168, 0, 3),
        (limits(8, 0), 256, 255, 0, 1),
        (limits(8, 0), 1024, 65, 0, 0),
        (limits(8, 0), 32, 16, 0, 32),
        (limits(8, 6), 32, 16, 0, 16),
        // Limited by shared memory, one kilobyte of each block being reserved.
        (limits(8, 0), 128, 32, 48 << 10, 3),
        (limits(9, 0), 128, 32, 227 << 10, 1),
        (limits(8, 9), 128, 32, 100 << 10, 0),
    ] {
        let found = multiprocessor.resident_blocks(threads, registers, shared);
        assert_eq!(found, resident, "{threads} {registers} {shared}");
    }
    assert_eq!(limits(8, 9).occupancy_percent(256, 64, 0), 66);
    assert!(
        MultiprocessorLimits::for_architecture(GpuArchitecture { major: 7, minor: 5 }).is_none()
    );
}

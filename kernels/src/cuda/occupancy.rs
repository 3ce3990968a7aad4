//! How many blocks of a kernel a multiprocessor runs side by side, foreseen from what they take.

use super::code::Architecture;

/// What a multiprocessor has, by the tables of NVIDIA's programming guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Warps that reside at once.
    pub warps: u32,
    /// Blocks that reside at once.
    pub blocks: u32,
    /// Bytes of shared memory.
    pub shared: u32,
    /// Bytes of it that one block may have.
    pub shared_of_block: u32,
}

/// Registers of a multiprocessor, of any that is known here.
const REGISTERS: u32 = 64 << 10;

/// Registers are given to a warp in steps of so many.
const REGISTER_STEP: u32 = 256;

/// Shared memory is given to a block in steps of so many bytes, and so much more is the system's.
const SHARED_STEP: u32 = 128;
const SHARED_OF_SYSTEM: u32 = 1 << 10;

/// Threads of a warp.
const WARP: u32 = 32;

impl Multiprocessor {
    /// That of an architecture, where it is known.
    pub fn of(architecture: Architecture) -> Option<Multiprocessor> {
        let (warps, blocks, shared) = match (architecture.major, architecture.minor) {
            (8, 0) => (64, 32, 164),
            (8, 7) => (48, 16, 164),
            (8, 6) => (48, 16, 100),
            (8, 9) => (48, 24, 100),
            (9, 0) | (10, _) => (64, 32, 228),
            (12, _) => (48, 24, 100),
            _ => return None,
        };
        Some(Multiprocessor {
            warps,
            blocks,
            shared: shared << 10,
            shared_of_block: (shared - 1) << 10,
        })
    }

    /// Blocks of so many threads that run side by side, each thread with so many registers and each block with so much
    /// shared memory, of the source and of the launch together.
    pub fn resident(&self, threads: u32, registers: u32, shared: u32) -> u32 {
        let warps = threads.div_ceil(WARP).max(1);
        if shared > self.shared_of_block || registers > 255 {
            return 0;
        }
        let of_warp = (registers.max(1) * WARP).next_multiple_of(REGISTER_STEP);
        // Each quarter of a multiprocessor has registers and warps of its own.
        let by_registers = REGISTERS / 4 / of_warp * 4 / warps;
        let taken = (shared + SHARED_OF_SYSTEM).next_multiple_of(SHARED_STEP);
        let by_warps = self.warps / warps;
        by_warps
            .min(by_registers)
            .min(self.shared / taken)
            .min(self.blocks)
    }

    /// Warps that run side by side, of a hundred that could.
    pub fn percent(&self, threads: u32, registers: u32, shared: u32) -> u32 {
        let warps = threads.div_ceil(WARP).max(1) * self.resident(threads, registers, shared);
        100 * warps / self.warps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(major: u8, minor: u8) -> Multiprocessor {
        Multiprocessor::of(Architecture { major, minor }).unwrap()
    }

    /// Numbers that NVIDIA's occupancy calculator gives.
    #[test]
    fn blocks_are_limited_by_what_is_short() {
        for (multiprocessor, threads, registers, shared, resident) in [
            // Warps.
            (of(8, 0), 256, 32, 0, 8),
            (of(8, 9), 256, 32, 0, 6),
            (of(8, 9), 1024, 32, 0, 1),
            // Registers.
            (of(8, 0), 256, 64, 0, 4),
            (of(9, 0), 128, 168, 0, 3),
            (of(8, 0), 256, 255, 0, 1),
            (of(8, 0), 1024, 65, 0, 0),
            // Blocks.
            (of(8, 0), 32, 16, 0, 32),
            (of(8, 6), 32, 16, 0, 16),
            // Shared memory: a kilobyte of each block is the system's.
            (of(8, 0), 128, 32, 48 << 10, 3),
            (of(9, 0), 128, 32, 227 << 10, 1),
            (of(8, 9), 128, 32, 100 << 10, 0),
        ] {
            let found = multiprocessor.resident(threads, registers, shared);
            assert_eq!(found, resident, "{threads} {registers} {shared}");
        }
        assert_eq!(of(8, 9).percent(256, 64, 0), 66);
        assert!(Multiprocessor::of(Architecture { major: 7, minor: 5 }).is_none());
    }
}

//! Predicted occupancy: resident blocks per multiprocessor, from the resource usage of a kernel.

use super::code::GpuArchitecture;

/// Limits of a multiprocessor, from the tables of the CUDA programming guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiprocessorLimits {
    /// Maximum resident warps.
    pub warps: u32,
    /// Maximum resident blocks.
    pub blocks: u32,
    /// Bytes of shared memory.
    pub shared: u32,
    /// Maximum shared memory of a block in bytes.
    pub shared_of_block: u32,
}

const REGISTERS: u32 = 64 << 10;

const REGISTER_STEP: u32 = 256;

/// Granularity of a block, and the system reserve per block.
const SHARED_STEP: u32 = 128;
const RESERVED_SHARED_BYTES: u32 = 1 << 10;

const WARP: u32 = 32;

impl MultiprocessorLimits {
    /// Returns the limits of an architecture, if known.
    pub fn for_architecture(architecture: GpuArchitecture) -> Option<MultiprocessorLimits> {
        let (warps, blocks, shared) = match (architecture.major, architecture.minor) {
            (8, 0) => (64, 32, 164),
            (8, 7) => (48, 16, 164),
            (8, 6) => (48, 16, 100),
            (8, 9) => (48, 24, 100),
            (9, 0) | (10, _) => (64, 32, 228),
            (12, _) => (48, 24, 100),
            _ => return None,
        };
        Some(MultiprocessorLimits {
            warps,
            blocks,
            shared: shared << 10,
            shared_of_block: (shared - 1) << 10,
        })
    }

    /// Returns the number of resident blocks for threads and registers of a block, and its static
    /// plus dynamic shared memory.
    pub fn resident_blocks(&self, threads: u32, registers: u32, shared: u32) -> u32 {
        let warps = threads.div_ceil(WARP).max(1);
        if shared > self.shared_of_block || registers > 255 {
            return 0;
        }
        let of_warp = (registers.max(1) * WARP).next_multiple_of(REGISTER_STEP);
        // Each of the four partitions has its own registers and warps.
        let by_registers = REGISTERS / 4 / of_warp * 4 / warps;
        let taken = (shared + RESERVED_SHARED_BYTES).next_multiple_of(SHARED_STEP);
        let by_warps = self.warps / warps;
        by_warps
            .min(by_registers)
            .min(self.shared / taken)
            .min(self.blocks)
    }

    /// Returns the occupancy in percent of the resident warps.
    pub fn occupancy_percent(&self, threads: u32, registers: u32, shared: u32) -> u32 {
        let warps =
            threads.div_ceil(WARP).max(1) * self.resident_blocks(threads, registers, shared);
        100 * warps / self.warps
    }
}

#[cfg(test)]
mod tests;

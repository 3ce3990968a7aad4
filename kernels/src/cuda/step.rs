//! Recording of a step: launches and copies in order.

use std::ops::Range;

use super::device::{Kernel, KernelArguments};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepOperation {
    /// A kernel launch.
    Launch(Launch),
    /// A copy between device addresses.
    Copy { from: u64, to: u64, bytes: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) kernel: &'static str,
    pub(super) threads: u32,
    pub(super) grid: [u32; 3],
    /// Dynamic shared memory.
    pub(super) shared: usize,
    /// Range of the arguments in the words of the step.
    argument_words: Range<usize>,
    pub(super) argument_bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    nodes: Vec<StepOperation>,
    /// Words, so that each argument structure is aligned.
    words: Vec<u64>,
}

impl Step {
    pub(super) fn nodes(&self) -> &[StepOperation] {
        &self.nodes
    }

    #[cfg(feature = "cuda")]
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.words.clear();
    }

    pub(super) fn launch<A: KernelArguments>(
        &mut self,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        shared: usize,
        arguments: &A,
    ) {
        let argument_bytes = size_of::<A>();
        let start = self.words.len();
        let end = start + argument_bytes.div_ceil(size_of::<u64>());
        self.words.resize(end, 0);
        // SAFETY: arguments have no padding, so all their bytes are initialised; `words` was
        // extended by their length.
        unsafe {
            let to = self.words[start..].as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(arguments).cast(), to, argument_bytes);
        }
        self.nodes.push(StepOperation::Launch(Launch {
            kernel: kernel.name,
            threads: kernel.threads,
            grid,
            shared,
            argument_words: start..end,
            argument_bytes,
        }));
    }

    pub(super) fn copy(&mut self, from: u64, to: u64, bytes: usize) {
        self.nodes.push(StepOperation::Copy { from, to, bytes });
    }

    pub(super) fn arguments(&self, launch: &Launch) -> &[u64] {
        self.words.get(launch.argument_words.clone()).unwrap_or(&[])
    }

    /// Compares kernels and copies, but not arguments.
    pub(super) fn has_same_operations(&self, other: &Step) -> bool {
        let alike = |(a, b): (&StepOperation, &StepOperation)| match (a, b) {
            (StepOperation::Launch(a), StepOperation::Launch(b)) => {
                (a.kernel, a.threads) == (b.kernel, b.threads)
            }
            (StepOperation::Copy { .. }, StepOperation::Copy { .. }) => true,
            _ => false,
        };
        self.nodes.len() == other.nodes.len() && self.nodes.iter().zip(&other.nodes).all(alike)
    }

    pub(super) fn changed_operations(&self, before: &Step) -> impl Iterator<Item = usize> {
        let changed = |&at: &usize| match (self.nodes.get(at), before.nodes.get(at)) {
            (Some(StepOperation::Launch(a)), Some(StepOperation::Launch(b))) => {
                (a.grid, a.shared) != (b.grid, b.shared) || self.arguments(a) != before.arguments(b)
            }
            (a, b) => a != b,
        };
        (0..self.nodes.len()).filter(changed)
    }
}

/// Counters of steps by submission mode, and of launches and copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Replayed unchanged as a graph.
    pub replayed: u64,
    /// Submitted as a graph with updated arguments or grids.
    pub updated: u64,
    /// Number of updated launches and copies in these.
    pub changed_operations: u64,
    /// Submitted as a new graph.
    pub created: u64,
    /// Submitted launch by launch.
    pub launched: u64,
    /// Ended early by an upload, download or wait.
    pub interrupted: u64,
    /// Launches of kernels, in steps or not.
    pub kernels: u64,
    /// Copies on the device, in steps or not.
    pub copies: u64,
}

//! What is kept of a step until its end: launches and copies, in order.

use std::ops::Range;

use super::device::{Arguments, Kernel};

/// What a step does at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A launch.
    Launch(Launch),
    /// A copy from one address of the device to another.
    Copy {
        /// The first byte that is read.
        from: u64,
        /// The first byte that is written.
        to: u64,
        /// Bytes.
        bytes: usize,
    },
}

/// A launch of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// The kernel's name.
    pub(super) kernel: &'static str,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Blocks.
    pub(super) grid: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(super) shared: usize,
    /// Where its arguments are among those of the step, in words.
    words: Range<usize>,
    /// Bytes of them.
    pub(super) argument_bytes: usize,
}

/// Launches and copies in order, with the arguments they had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    nodes: Vec<Node>,
    /// Whole words, so that a structure of arguments begins where a processor may read it.
    words: Vec<u64>,
}

impl Step {
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    #[cfg(feature = "cuda")]
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.words.clear();
    }

    pub(super) fn launch<A: Arguments>(
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
        // SAFETY: arguments are plain numbers without padding, so all their bytes are initialised; there is room for them.
        unsafe {
            let to = self.words[start..].as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(arguments).cast(), to, argument_bytes);
        }
        self.nodes.push(Node::Launch(Launch {
            kernel: kernel.name,
            threads: kernel.threads,
            grid,
            shared,
            words: start..end,
            argument_bytes,
        }));
    }

    pub(super) fn copy(&mut self, from: u64, to: u64, bytes: usize) {
        self.nodes.push(Node::Copy { from, to, bytes });
    }

    /// The arguments of one of its launches, at an address that is a multiple of 8.
    pub(super) fn arguments(&self, launch: &Launch) -> &[u64] {
        self.words.get(launch.words.clone()).unwrap_or(&[])
    }

    /// Whether the same kernels and copies follow each other, with whatever arguments.
    pub(super) fn is_like(&self, other: &Step) -> bool {
        let alike = |(a, b): (&Node, &Node)| match (a, b) {
            (Node::Launch(a), Node::Launch(b)) => (a.kernel, a.threads) == (b.kernel, b.threads),
            (Node::Copy { .. }, Node::Copy { .. }) => true,
            _ => false,
        };
        self.nodes.len() == other.nodes.len() && self.nodes.iter().zip(&other.nodes).all(alike)
    }

    /// Places of launches and copies that are not as those of a step that it is like.
    pub(super) fn changed_from(&self, before: &Step) -> impl Iterator<Item = usize> {
        let changed = |&at: &usize| match (self.nodes.get(at), before.nodes.get(at)) {
            (Some(Node::Launch(a)), Some(Node::Launch(b))) => {
                (a.grid, a.shared) != (b.grid, b.shared) || self.arguments(a) != before.arguments(b)
            }
            (a, b) => a != b,
        };
        (0..self.nodes.len()).filter(changed)
    }
}

/// How steps were begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// As one, exactly like a step before.
    pub replayed: u64,
    /// As one, like a step before but for arguments or grids.
    pub updated: u64,
    /// Launches and copies of those that had other arguments or grids.
    pub changed: u64,
    /// As one that had to be made first.
    pub made: u64,
    /// Launch by launch: because that was asked for, or the driver could not make one of it.
    pub plain: u64,
    /// Ended early, by an upload, a download or a wait, and begun launch by launch.
    pub interrupted: u64,
}

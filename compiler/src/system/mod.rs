//! The machine: disk, memory, bounded texts, random numbers, ordered work on several threads.

pub mod clock;
pub mod disk;
pub mod memory;
pub mod ordered;
pub(crate) mod random;
pub mod show;
pub mod text;

//! The machine: disk, memory, bounded texts, random numbers, ordered work on several threads.

pub mod clock;
pub mod disk;
pub mod memory;
pub mod ordered;
pub mod show;
pub mod text;

pub(crate) use htc_math::random;

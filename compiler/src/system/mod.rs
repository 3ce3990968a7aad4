//! The machine: disk, memory, bounded texts, random numbers, ordered work on several threads.

pub mod clock;
pub mod disk;
pub mod lock;
pub mod memory;
pub mod ordered;
pub mod secret;
pub mod show;
pub mod text;

pub(crate) use htc_math::random;

//! System utilities: disk, memory, text files, random numbers, ordered parallel work.

pub mod clock;
pub mod disk;
pub mod error;
pub mod lock;
pub mod memory;
pub mod ordered;
pub mod secret;
pub mod show;
pub mod text;

pub(crate) use htc_math::random;

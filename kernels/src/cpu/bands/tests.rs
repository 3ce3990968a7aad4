//! An instruction set for tests on any processor.

pub(in crate::cpu) mod emulated;

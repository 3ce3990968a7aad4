//! Geometry of stored layers: the probe of their spectra.

pub mod probe;

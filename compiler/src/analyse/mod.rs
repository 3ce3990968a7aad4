//! What a model looks like to a compressor: spectra, phases, sinks, dimensions, the manifold.

pub mod record;

pub use record::Analysis;

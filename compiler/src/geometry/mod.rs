//! Where the layers of a model differ: the layer that is probed first, and its spectra.

pub mod probe;

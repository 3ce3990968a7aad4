//! A model with coarse matrices is tuned: what is gained, that nothing but the steps decides it, and that it goes on.

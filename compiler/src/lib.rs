//! Offline compression compiler for transformer language models.
//!
//! [`pipeline`] tells the story: read, plan, factorise, seal. [`evaluate`] measures what came
//! out of it; [`commands`] is what the binary `htc` offers.

pub mod cli;
pub mod commands;
pub mod evaluate;
pub mod factorise;
pub mod interrupt;
pub mod ordered;
pub mod pipeline;
pub mod plan;
pub mod report;
pub mod seal;
pub mod text;

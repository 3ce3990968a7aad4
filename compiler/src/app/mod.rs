//! Command line program `htc`.

pub mod chat;
pub mod cli;
pub mod commands;
pub mod flags;
pub mod interrupt;
pub mod terminal;
pub mod version;

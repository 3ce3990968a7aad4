//! What the binary `htc` offers on the command line.

pub mod chat;
pub mod cli;
pub mod commands;
pub mod flags;
pub mod interrupt;
pub mod terminal;

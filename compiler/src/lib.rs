//! Offline compression compiler for transformer language models.
//!
//! [`pipeline`] tells the story: read, plan, factorise, seal. [`evaluate`] measures what came
//! out of it; [`commands`] is what the binary `htc` offers.

/// Prints a line for people on standard error. That nobody can read it any more (a closed pipe, a
/// full disk) is no reason to fail.
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($argument)*);
    }};
}

pub mod analyse;
pub mod build;
pub mod calibrate;
pub mod chat;
pub mod cli;
pub mod commands;
pub mod disk;
pub mod duration;
pub mod evaluate;
pub mod evidence;
pub mod factorise;
pub mod forecast;
pub mod interrupt;
pub mod memory;
pub mod ordered;
pub mod page;
pub mod pipeline;
pub mod plan;
pub mod probe;
mod random;
pub mod report;
pub mod seal;
pub mod text;
pub mod trial;
pub mod windows;
pub mod work;

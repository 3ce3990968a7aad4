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
pub mod app;
pub mod calibrate;
pub mod choose;
pub mod estimate;
pub mod geometry;
pub mod layout;
pub mod make;
pub mod math;
pub mod measure;
pub mod page;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod report;
pub mod request;
pub mod system;
pub mod unit;

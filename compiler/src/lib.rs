//! Offline compression compiler for transformer language models.
//!
//! [`pipeline`] tells the story: read, plan, factorise, seal. [`evaluate`] measures what came
//! out of it; [`commands`] is what the binary `htc` offers.

/// Prints lines for people on standard error: [`app::terminal::say`].
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::app::terminal::say(format_args!($($argument)*))
    };
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

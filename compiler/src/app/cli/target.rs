//! Target machine of `htc plan` and `htc compile`.

use std::path::PathBuf;

use clap::Args;

use crate::options::flags::{heading, parse_bytes, parse_positive};
use crate::options::{MeasuredEnergy, TargetMachine};
use crate::plan::gpu;

/// Machine that the allocators cachefit and diffplan plan for: names and files are converted to a
/// [`TargetMachine`].
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = heading::RESEARCH)]
pub struct TargetArgs {
    /// For cachefit: the GPU, or the size of its L2 cache
    #[arg(long, hide_short_help = true, value_name = "NAME|BYTES", value_parser = parse_cache, allow_negative_numbers = true)]
    pub gpu: Option<u64>,
    /// For diffplan: tokens that the uncompressed model generates per joule on the target
    #[arg(long, hide_short_help = true, value_name = "X", value_parser = parse_positive, allow_negative_numbers = true)]
    pub tokens_per_joule: Option<f64>,
    /// For diffplan, as an alternative: measurements on the target by htc bench MODEL --fraction F --against MODEL --sensor
    /// SENSOR --json, from which the joules per byte read are fitted; may be given several times, for more sizes
    #[arg(
        long,
        hide_short_help = true,
        value_name = "FILE",
        conflicts_with = "tokens_per_joule"
    )]
    pub energy: Vec<PathBuf>,
}

impl TargetArgs {
    /// Returns the target machine with measured energy.
    pub fn machine(&self, energy: Option<MeasuredEnergy>) -> TargetMachine {
        TargetMachine {
            l2_bytes: self.gpu,
            tokens_per_joule: self.tokens_per_joule,
            energy: energy.map(Box::new),
        }
    }
}

/// Parses the name of a GPU, or bytes.
fn parse_cache(text: &str) -> Result<u64, String> {
    match (gpu::find_by_name(text), parse_bytes(text)) {
        (Ok(gpu), _) => Ok(gpu.l2_bytes),
        (Err(_), Ok(bytes)) => Ok(bytes),
        (Err(error), Err(_)) => Err(error),
    }
}

#[cfg(test)]
mod tests;

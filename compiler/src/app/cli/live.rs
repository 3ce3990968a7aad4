//! Options for monitoring the device and for the KV cache.

use std::path::PathBuf;

use clap::Args;
use htc_loader::kv::{KvKind, KvOptions};
use htc_loader::live::SensorSpec;

use super::{heading, output_path};
use crate::options::flags::{is_positive, parse_if};

/// Positions per pass when stored keys and values are measured.
const POSITIONS_PER_PASS: usize = 32;

/// Heat, power and energy.
#[derive(Clone, Debug, Args)]
pub struct LiveArgs {
    /// Touch less of the weights the warmer the device is: from the temperature LOW on, °C, down to a quarter or
    /// what the model can do with at HIGH
    #[arg(long, value_name = "LOW,HIGH", help_heading = heading::RUN_LIVE, hide_short_help = true, allow_negative_numbers = true, value_parser = parse_thresholds)]
    pub thermal: Option<[f64; 2]>,
    /// Touch less of the weights while the device draws more, watts
    #[arg(long, value_name = "W", help_heading = heading::RUN_LIVE, hide_short_help = true, allow_negative_numbers = true, value_parser = parse_watts)]
    pub power_cap: Option<f64>,
    /// What says how warm the device is and what it draws, which measures joules, too: nvml[:INDEX|UUID], hwmon
    /// (the processor), trace:FILE (CSV), sim[:KEY=VALUE,...] [default with --thermal, --power-cap or --events: that of the device, nvml of the GPU or hwmon]
    #[arg(long, value_name = "SENSOR", help_heading = heading::RUN_LIVE, hide_short_help = true)]
    pub sensor: Option<SensorSpec>,
    /// New file of what happened, a line of JSON each: time, temperature, power, fraction
    #[arg(long, value_name = "FILE", help_heading = heading::RUN_LIVE, hide_short_help = true, value_parser = output_path())]
    pub events: Option<PathBuf>,
}

impl LiveArgs {
    /// Returns true if the device is monitored.
    pub fn is_requested(&self) -> bool {
        self.thermal.is_some()
            || self.power_cap.is_some()
            || self.sensor.is_some()
            || self.events.is_some()
    }
}

/// How keys and values are stored, in any kind.
#[derive(Clone, Copy, Debug, Args)]
pub struct KvKindArgs {
    /// KV cache: f16, f32, q8_0, q4_0, q8_0-rotated, q4_0-rotated, or bases of the artifact
    ///
    /// static:R, static-hybrid:R (the first and last 32 positions in full) and oja:R (bases that follow the text) need an
    /// artifact with bases (compile --kv-bases) and take no draft; R is the rank over the size of a head, rounded to one
    /// coordinate at least, or e.95 for the rank with 95 % of the energy.
    #[arg(long, alias = "kv-type", value_name = "KIND", default_value = "f16")]
    pub kv: KvKind,
}

impl KvKindArgs {
    /// Returns the options for a measurement: with compressed kinds, positions attend to no more
    /// full-precision entries than in generation.
    pub fn measured(self) -> KvOptions {
        let mut options = KvOptions::new(self.kv);
        options.max_pass_positions = self.kv.rank().map(|_| POSITIONS_PER_PASS);
        options
    }
}

fn parse_thresholds(text: &str) -> Result<[f64; 2], String> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let pair = text.split_once(',');
    let pair = pair.and_then(|(low, high)| Some([number(low)?, number(high)?]));
    match pair {
        Some([low, high]) if low < high && low.is_finite() && high.is_finite() => Ok([low, high]),
        _ => Err("two temperatures, the lower one first: 65,85".into()),
    }
}

fn parse_watts(text: &str) -> Result<f64, String> {
    parse_if(text, is_positive, "a number of watts above 0")
}

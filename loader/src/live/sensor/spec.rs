//! Sensor specifications: `nvml:0`, `hwmon`, `trace:FILE`, `sim:full=105`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::sim::SimOptions;
use crate::live::LiveError;
use htc_formats::escape::escape;

/// A sensor specification.
#[derive(Clone, Debug, PartialEq)]
pub enum SensorSpec {
    /// A GPU through NVML: `nvml`, `nvml:INDEX`, `nvml:UUID`.
    Nvml(GpuSelector),
    /// The processor through Linux drivers, with energy counters if readable: `hwmon`.
    Hwmon,
    /// A recorded trace: `trace:FILE`, `trace:FILE,speed=K`.
    Trace {
        /// Path of the CSV file.
        path: PathBuf,
        /// Seconds of the trace per second.
        speed: f64,
    },
    /// A simulated plant: `sim`, `sim:KEY=VALUE,...`, with the keys of [`SimOptions`].
    Sim(SimOptions),
}

/// Selects a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelector {
    /// NVML index, from 0, not affected by CUDA_VISIBLE_DEVICES.
    Index(u32),
    /// UUID, `GPU-` and hexadecimal digits.
    Uuid(String),
}

impl SensorSpec {
    /// Returns the seconds of the sensor's clock per second.
    pub fn speed(&self) -> f64 {
        match self {
            SensorSpec::Trace { speed, .. } => *speed,
            SensorSpec::Sim(options) => options.speed,
            SensorSpec::Nvml(_) | SensorSpec::Hwmon => 1.0,
        }
    }
}

const MAX_UUID: usize = 96;

pub(super) const MAX_SPEED: f64 = 1e4;

const KINDS: &str =
    "expected nvml[:INDEX or :GPU-UUID], hwmon, trace:FILE[,speed=K] or sim[:KEY=VALUE,...]";

impl FromStr for SensorSpec {
    type Err = LiveError;

    fn from_str(text: &str) -> Result<Self, LiveError> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        let found = match (kind, rest) {
            ("nvml", None) => Ok(SensorSpec::Nvml(GpuSelector::Index(0))),
            ("nvml", Some(gpu)) => gpu.parse().map(SensorSpec::Nvml),
            ("hwmon", None) => Ok(SensorSpec::Hwmon),
            ("hwmon", Some(_)) => Err("hwmon takes no parameters".to_owned()),
            ("trace", Some(rest)) => parse_trace(rest),
            ("trace", None) => Err("expected trace:FILE".to_owned()),
            ("sim", rest) => rest.unwrap_or_default().parse().map(SensorSpec::Sim),
            _ => Err(KINDS.to_owned()),
        };
        found.map_err(|reason| LiveError::Spec {
            spec: text.to_owned(),
            reason,
        })
    }
}

fn parse_trace(rest: &str) -> Result<SensorSpec, String> {
    let (path, speed) = match rest.rsplit_once(",speed=") {
        Some((path, speed)) => (path, parse_speed(speed)?),
        None => (rest, 1.0),
    };
    match path {
        "" => Err("expected trace:FILE, found no file".to_owned()),
        path => Ok(SensorSpec::Trace {
            path: path.into(),
            speed,
        }),
    }
}

pub(super) fn parse_speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if speed > 0.0 && speed <= MAX_SPEED => Ok(speed),
        _ => Err(format!(
            "speed is `{}`, expected a number above 0 and at most {MAX_SPEED}",
            escape(text)
        )),
    }
}

impl FromStr for GpuSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_uuid = |text: &str| {
            let digits = text.strip_prefix("GPU-").unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
            !digits.is_empty() && digits.chars().all(plain) && text.len() < MAX_UUID
        };
        match text.parse() {
            // The standard library also parses `+1`.
            Ok(index) if !text.starts_with('+') => Ok(GpuSelector::Index(index)),
            _ if is_uuid(text) => Ok(GpuSelector::Uuid(text.to_owned())),
            _ => Err(
                "expected nvml:INDEX with an index from 0, or nvml:GPU-UUID; `nvidia-smi -L` lists both"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuSelector::Index(index) => write!(f, "{index}"),
            GpuSelector::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

impl fmt::Display for SensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SensorSpec::Nvml(gpu) => write!(f, "nvml:{gpu}"),
            SensorSpec::Hwmon => f.write_str("hwmon"),
            SensorSpec::Trace { path, speed } if *speed == 1.0 => {
                write!(f, "trace:{}", path.display())
            }
            SensorSpec::Trace { path, speed } => {
                write!(f, "trace:{},speed={speed}", path.display())
            }
            SensorSpec::Sim(options) => match options.to_string().as_str() {
                "" => f.write_str("sim"),
                said => write!(f, "sim:{said}"),
            },
        }
    }
}

#[cfg(test)]
mod tests;

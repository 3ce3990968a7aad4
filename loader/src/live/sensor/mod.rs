//! Temperature and power sensors.

pub mod hwmon;
pub mod nvml;
pub mod rapl;
pub mod sim;
mod spec;
pub mod trace;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use htc_formats::open;

use super::{Clock, LiveError, SharedFraction};
pub use spec::{GpuSelector, SensorSpec};

/// Plausible temperatures of a processor in °C.
pub const PLAUSIBLE_TEMPERATURE: std::ops::RangeInclusive<f64> = -40.0..=150.0;

/// Maximum plausible power in watts, that of a rack.
pub const MAX_WATTS: f64 = 1e5;

/// Default polling interval; drivers average the power over about a second.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A sensor reading; missing values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Time on the sensor's [`Clock`].
    pub time: Duration,
    /// Temperature in °C.
    pub temperature: Option<f64>,
    /// Power in watts.
    pub power: Option<f64>,
    /// Energy counter in joules with an arbitrary origin.
    pub energy: Option<f64>,
}

impl Reading {
    /// Returns a reading without values.
    pub fn without_values(time: Duration) -> Reading {
        Reading {
            time,
            ..Reading::default()
        }
    }

    /// Returns the temperature if plausible: not an error value such as -1 or 255, and within
    /// [`PLAUSIBLE_TEMPERATURE`].
    pub fn plausible_temperature(&self) -> Option<f64> {
        self.temperature
            .filter(|celsius| PLAUSIBLE_TEMPERATURE.contains(celsius) && *celsius != -1.0)
    }

    /// Returns the power if plausible: not NaN, not negative, at most [`MAX_WATTS`].
    pub fn plausible_power(&self) -> Option<f64> {
        self.power.filter(|watts| (0.0..=MAX_WATTS).contains(watts))
    }

    /// Returns the energy counter if finite and not negative.
    pub fn plausible_energy(&self) -> Option<f64> {
        self.energy
            .filter(|joules| joules.is_finite() && *joules >= 0.0)
    }
}

/// Description of a sensor.
#[derive(Clone, Debug)]
pub struct SensorInfo {
    /// Name for messages.
    pub name: String,
    /// Clock of the readings.
    pub clock: Clock,
    /// Shortest interval between readings, in system time.
    pub min_interval: Duration,
    /// Notes for users: limitations and remedies.
    pub notes: Vec<String>,
}

/// A sensor of a device.
pub trait Sensor: Send {
    /// Returns the description.
    fn info(&self) -> &SensorInfo;

    /// Takes a reading.
    fn read(&mut self) -> Result<Reading, LiveError>;
}

/// Opens a sensor. A simulated plant is driven by the fraction in `follow`.
pub fn open_sensor(
    spec: &SensorSpec,
    follow: &Arc<SharedFraction>,
) -> Result<Box<dyn Sensor>, LiveError> {
    let clock = Clock::system();
    Ok(match spec {
        SensorSpec::Nvml(gpu) => Box::new(nvml::NvmlSensor::open(gpu, clock)?),
        SensorSpec::Hwmon => Box::new(hwmon::Hwmon::open(
            Path::new(hwmon::ROOT),
            Path::new(rapl::ROOT),
            clock,
        )?),
        SensorSpec::Trace { path, speed } => {
            let trace = trace::Trace::read(path)?;
            Box::new(trace::TraceSensor::new(trace, clock.scaled(*speed)))
        }
        SensorSpec::Sim(options) => {
            let clock = clock.scaled(options.speed);
            Box::new(sim::SimulatedSensor::new(
                options.plant(),
                Arc::clone(follow),
                clock,
            ))
        }
    })
}

fn read_short_file(path: &Path) -> Result<String, LiveError> {
    const LONGEST: u64 = 128;
    let mut bytes = Vec::new();
    let file = open::open_regular(path)?;
    let read = file.take(LONGEST).read_to_end(&mut bytes);
    read.map_err(|source| LiveError::Read {
        path: path.into(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

fn read_integer<T: std::str::FromStr>(path: &Path) -> Result<T, LiveError> {
    let found = read_short_file(path)?;
    found.parse().map_err(|_| LiveError::Number {
        path: path.into(),
        found,
    })
}

/// Returns the subfolders of a system folder, sorted by name for a reproducible order.
fn sorted_subfolders(root: &Path) -> Result<Vec<PathBuf>, LiveError> {
    const MOST: usize = 4096;
    let failed = |source| LiveError::Read {
        path: root.into(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).map_err(failed)?.take(MOST) {
        found.push(entry.map_err(failed)?.path());
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;

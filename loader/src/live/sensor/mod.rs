//! Temperature and power sensors.

pub mod hwmon;
pub mod nvml;
pub mod rapl;
pub mod sim;
mod spec;
pub mod trace;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use htc_formats::escape::escape;
use htc_formats::map::MapError;
use htc_formats::open;
use thiserror::Error;

use super::{Clock, SharedFraction};
pub use spec::{GpuSelector, SensorSpec, SensorSpecError};

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

/// A sensor of a device.
pub trait Sensor: Send {
    /// Returns a name for messages.
    fn name(&self) -> String;

    /// Takes a reading.
    fn read(&mut self) -> Result<Reading, SensorError>;

    /// Returns the clock of the readings.
    fn clock(&self) -> Clock;

    /// Returns the shortest interval between readings, in system time.
    fn min_interval(&self) -> Duration;

    /// Returns notes for users: limitations and remedies.
    fn notes(&self) -> &[String] {
        &[]
    }
}

/// Errors of sensors, and of the threads that read them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SensorError {
    /// A file cannot be opened.
    #[error(transparent)]
    Open(#[from] MapError),
    /// A file or folder cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A system file does not contain an integer.
    #[error("{}: expected a whole number, found `{}`", path.display(), escape(found))]
    Number {
        /// Path of the file.
        path: PathBuf,
        /// Beginning of its content.
        found: String,
    },
    /// No driver of a processor temperature.
    #[error(
        "{}: no temperature of a processor: expected a driver of {}, found {}; load the processor's driver (modprobe \
         coretemp or k10temp), or choose another sensor",
        root.display(), hwmon::DRIVERS.join(", "), join_names(found)
    )]
    NoProcessor {
        /// Root folder of the drivers.
        root: PathBuf,
        /// Names of the existing drivers.
        found: Vec<String>,
    },
    /// A trace is invalid.
    #[error("{}: line {line}: {problem}", path.display())]
    Trace {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Problem and expected content.
        problem: String,
    },
    /// The trace has ended.
    #[error("{}: the trace ended after {seconds:.1} s", path.display())]
    TraceEnded {
        /// Path of the file.
        path: PathBuf,
        /// Its length.
        seconds: f64,
    },
    /// NVML is missing or does not work.
    #[error(
        "NVML cannot be used: {reason}; it comes with NVIDIA's driver (libnvidia-ml.so.1, nvml.dll): check that nvidia-smi \
         works, or choose another sensor"
    )]
    NoNvml {
        /// Message of the library or loader.
        reason: String,
    },
    /// The GPU does not exist.
    #[error("there is no GPU {requested}: {reason}; `nvidia-smi -L` lists them with their UUIDs")]
    NoGpu {
        /// Requested GPU.
        requested: GpuSelector,
        /// Message of the library.
        reason: String,
    },
    /// A GPU value cannot be read.
    #[error("GPU {uuid}: its {quantity} cannot be read: {reason}")]
    GpuQuery {
        /// UUID of the GPU.
        uuid: String,
        /// Name of the value.
        quantity: &'static str,
        /// Message of the library.
        reason: String,
    },
    /// The interval is too short.
    #[error("{sensor} is read every {requested:?}, expected at least {minimum:?} between readings")]
    Interval {
        /// Sensor name.
        sensor: String,
        /// Requested interval.
        requested: Duration,
        /// Shortest interval of the sensor.
        minimum: Duration,
    },
    /// The idle power is invalid.
    #[error("the idle power is {0} W, expected a finite number of at least 0")]
    IdleWatts(f64),
    /// The thread cannot be created.
    #[error("no thread for the sensor: {0}; end other programs, or allow more threads")]
    Thread(std::io::Error),
    /// The sensor does not respond.
    #[error(
        "{sensor} has not answered for {timeout:?}; its thread is left behind, check the device and its driver"
    )]
    Stuck {
        /// Sensor name.
        sensor: String,
        /// Timeout.
        timeout: Duration,
    },
    /// The thread panicked, in the sensor or the event callback. The fraction is 1.
    #[error("the thread that reads {sensor} ended by a panic; this is an error in the program")]
    Panicked {
        /// Sensor name.
        sensor: String,
    },
}

fn join_names(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| escape(name)).collect();
    match names.len() {
        0 => "none".to_owned(),
        found if found > SHOWN => format!("{} and {} more", shown.join(", "), found - SHOWN),
        _ => shown.join(", "),
    }
}

/// Opens a sensor. A simulated plant is driven by the fraction in `follow`.
pub fn open_sensor(
    spec: &SensorSpec,
    follow: &Arc<SharedFraction>,
) -> Result<Box<dyn Sensor>, SensorError> {
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

fn read_short_file(path: &Path) -> Result<String, SensorError> {
    const LONGEST: u64 = 128;
    let mut bytes = Vec::new();
    let file = open::open_regular(path)?;
    let read = file.take(LONGEST).read_to_end(&mut bytes);
    read.map_err(|source| SensorError::Read {
        path: path.into(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

fn read_integer<T: std::str::FromStr>(path: &Path) -> Result<T, SensorError> {
    let found = read_short_file(path)?;
    found.parse().map_err(|_| SensorError::Number {
        path: path.into(),
        found,
    })
}

/// Returns the subfolders of a system folder, sorted by name for a reproducible order.
fn sorted_subfolders(root: &Path) -> Result<Vec<PathBuf>, SensorError> {
    const MOST: usize = 4096;
    let failed = |source| SensorError::Read {
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
mod tests {
    use super::*;

    #[test]
    fn error_values_of_sensors_are_implausible() {
        let of = |value| Reading {
            temperature: Some(value),
            power: Some(value),
            energy: Some(value),
            ..Reading::default()
        };
        for wrong in [-1.0, 255.0, f64::NAN, f64::INFINITY, -40.1, 150.1] {
            assert_eq!(of(wrong).plausible_temperature(), None, "{wrong}");
        }
        for right in [-40.0, -0.9, 0.0, 65.0, 150.0] {
            assert_eq!(of(right).plausible_temperature(), Some(right));
        }
        for wrong in [-1.0, f64::NAN, 1.1e5, f64::INFINITY] {
            assert_eq!(of(wrong).plausible_power(), None, "{wrong}");
        }
        assert_eq!(of(255.0).plausible_power(), Some(255.0));
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(of(wrong).plausible_energy(), None, "{wrong}");
        }
    }

    #[test]
    fn system_numbers_must_be_short_integers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        for (text, expected) in [
            ("42\n", Some(42)),
            ("-1", Some(-1)),
            ("", None),
            ("4 2", None),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = read_integer::<i64>(&path);
            assert_eq!(
                found.as_ref().ok().copied(),
                expected,
                "{text:?}: {found:?}"
            );
        }
        std::fs::write(&path, "1".repeat(1 << 20)).unwrap();
        let fault = read_integer::<i64>(&path).unwrap_err().to_string();
        assert!(fault.len() < 400 && fault.contains("value"), "{fault}");
        std::fs::write(&path, b"\xff\x1b[2J").unwrap();
        let fault = read_integer::<i64>(&path).unwrap_err().to_string();
        assert!(!fault.contains('\u{1b}'), "{fault}");
        let absent = read_integer::<i64>(&folder.path().join("absent")).unwrap_err();
        assert!(matches!(absent, SensorError::Open(_)));
    }
}

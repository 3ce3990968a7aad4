//! Where temperature and power come from.

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

use htc_formats::escape::escaped;
use htc_formats::map::MapError;
use htc_formats::open;
use thiserror::Error;

use super::{Clock, Follow};
pub use spec::{Gpu, SensorSpec, SpecError};

/// Degrees Celsius that a working sensor of a processor can show.
pub const PLAUSIBLE_TEMPERATURE: std::ops::RangeInclusive<f64> = -40.0..=150.0;

/// Watts that a device can draw: a rack draws as much.
pub const MAX_WATTS: f64 = 1e5;

/// How often a device is asked at most, if nobody says otherwise: asking more often costs calls of the driver and tells nothing, since
/// temperatures follow in seconds and drivers average the power.
pub const POLL: Duration = Duration::from_millis(500);

/// What a sensor says at a moment; `None` is what it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// When, on the sensor's own [`Clock`].
    pub at: Duration,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
    /// Joules since some moment: only differences count.
    pub energy: Option<f64>,
}

impl Reading {
    /// The temperature, where it is one: neither NaN nor -1 or 255, which sensors say in their errors' place, nor outside
    /// [`PLAUSIBLE_TEMPERATURE`].
    pub fn plausible_temperature(&self) -> Option<f64> {
        self.temperature
            .filter(|celsius| PLAUSIBLE_TEMPERATURE.contains(celsius) && *celsius != -1.0)
    }

    /// The power, where it is one: neither NaN nor negative nor above [`MAX_WATTS`].
    pub fn plausible_power(&self) -> Option<f64> {
        self.power.filter(|watts| (0.0..=MAX_WATTS).contains(watts))
    }

    /// The counter, where it is a finite number of at least 0.
    pub fn plausible_energy(&self) -> Option<f64> {
        self.energy
            .filter(|joules| joules.is_finite() && *joules >= 0.0)
    }
}

/// Measures a device.
pub trait Sensor: Send {
    /// What it is, for people.
    fn name(&self) -> String;

    /// Measures.
    ///
    /// # Errors
    /// [`SensorError`] where there is nothing to say at the moment; asking again may succeed.
    fn read(&mut self) -> Result<Reading, SensorError>;

    /// The clock that readings are of.
    fn clock(&self) -> Clock;

    /// The least time from one reading to the next, in seconds of the system.
    fn lowest_interval(&self) -> Duration;

    /// What people should know about it: what it cannot measure, and what would help.
    fn notes(&self) -> &[String] {
        &[]
    }
}

/// Why there is no sensor, or no reading.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SensorError {
    /// A file cannot be opened.
    #[error(transparent)]
    Open(#[from] MapError),
    /// A file or a folder cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file of the system holds something else than a number.
    #[error("{}: expected a whole number, found `{}`", path.display(), escaped(found))]
    Number {
        /// The file.
        path: PathBuf,
        /// What it holds, its beginning.
        found: String,
    },
    /// No driver that measures a processor's temperature.
    #[error(
        "{}: no temperature of a processor: expected a driver of {}, found {}; load the processor's driver (modprobe \
         coretemp or k10temp), or choose another sensor",
        root.display(), hwmon::DRIVERS.join(", "), listed(found)
    )]
    NoProcessor {
        /// The folder with the drivers' folders.
        root: PathBuf,
        /// Names of the drivers that are there.
        found: Vec<String>,
    },
    /// A trace that cannot be used.
    #[error("{}: line {line}: {what}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, with what was expected.
        what: String,
    },
    /// A trace is at its end.
    #[error("{}: the trace ended after {seconds:.1} s", path.display())]
    Ended {
        /// The file.
        path: PathBuf,
        /// Its length.
        seconds: f64,
    },
    /// NVIDIA's management library is not there or does not work.
    #[error(
        "NVML cannot be used: {reason}; it comes with NVIDIA's driver (libnvidia-ml.so.1, nvml.dll): check that nvidia-smi \
         works, or choose another sensor"
    )]
    NoNvml {
        /// What the library or the loader says.
        reason: String,
    },
    /// A GPU that is not there.
    #[error("there is no GPU {asked}: {reason}; `nvidia-smi -L` lists them with their UUIDs")]
    NoGpu {
        /// What was asked for.
        asked: Gpu,
        /// What the library says.
        reason: String,
    },
    /// A GPU does not answer.
    #[error("GPU {uuid}: its {what} cannot be read: {reason}")]
    Gpu {
        /// The GPU.
        uuid: String,
        /// What was asked for.
        what: &'static str,
        /// What the library says.
        reason: String,
    },
}

/// Names for a message, some of them where there are many.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| escaped(name)).collect();
    match names.len() {
        0 => "none".to_owned(),
        found if found > SHOWN => format!("{} and {} more", shown.join(", "), found - SHOWN),
        _ => shown.join(", "),
    }
}

/// Opens the sensor that a specification names. A simulated plant is driven with the fraction in `follow`.
///
/// # Errors
/// [`SensorError`] where it is not there.
pub fn open(spec: &SensorSpec, follow: &Arc<Follow>) -> Result<Box<dyn Sensor>, SensorError> {
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
            Box::new(trace::TraceSensor::new(trace, clock.times(*speed)))
        }
        SensorSpec::Sim(options) => {
            let clock = clock.times(options.speed);
            Box::new(sim::Simulated::new(
                options.plant(),
                Arc::clone(follow),
                clock,
            ))
        }
    })
}

/// A short text of a file of the system, such as sysfs has one for each value, without its line's end.
fn short_text(path: &Path) -> Result<String, SensorError> {
    const LONGEST: u64 = 128;
    let mut bytes = Vec::new();
    let file = open::regular(path)?;
    let read = file.take(LONGEST).read_to_end(&mut bytes);
    read.map_err(|source| SensorError::Read {
        path: path.into(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// The whole number that a file of the system holds.
fn number<T: std::str::FromStr>(path: &Path) -> Result<T, SensorError> {
    let found = short_text(path)?;
    found.parse().map_err(|_| SensorError::Number {
        path: path.into(),
        found,
    })
}

/// Folders in a folder of the system, sorted by name, so that the same machine is always read in the same order.
fn folders(root: &Path) -> Result<Vec<PathBuf>, SensorError> {
    // Machines have some dozens.
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
    fn what_sensors_say_in_their_errors_place_is_no_reading() {
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
    fn numbers_of_the_system_are_short_and_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        for (text, expected) in [
            ("42\n", Some(42)),
            ("-1", Some(-1)),
            ("", None),
            ("4 2", None),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = number::<i64>(&path);
            assert_eq!(
                found.as_ref().ok().copied(),
                expected,
                "{text:?}: {found:?}"
            );
        }
        std::fs::write(&path, "1".repeat(1 << 20)).unwrap();
        let fault = number::<i64>(&path).unwrap_err().to_string();
        assert!(fault.len() < 400 && fault.contains("value"), "{fault}");
        std::fs::write(&path, b"\xff\x1b[2J").unwrap();
        let fault = number::<i64>(&path).unwrap_err().to_string();
        assert!(!fault.contains('\u{1b}'), "{fault}");
        let absent = number::<i64>(&folder.path().join("absent")).unwrap_err();
        assert!(matches!(absent, SensorError::Open(_)));
    }
}

//! Errors of power control.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use htc_formats::escape::escape;
use htc_formats::open::OpenError;
use thiserror::Error;

use super::sensor::{GpuSelector, MAX_WATTS, PLAUSIBLE_TEMPERATURE, hwmon};

/// Error of a sensor, its thread, a control law or a file of events.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum LiveError {
    /// A file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file or folder cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A system file does not contain an integer.
    #[error("{}: expected a whole number, found `{}`", path.display(), escape(found))]
    Number { path: PathBuf, found: String },
    /// No driver of a processor temperature.
    #[error(
        "{}: no temperature of a processor: expected a driver of {}, found {}; load the processor's driver (modprobe \
         coretemp or k10temp), or choose another sensor",
        root.display(), hwmon::DRIVERS.join(", "), join_names(found)
    )]
    NoProcessor { root: PathBuf, found: Vec<String> },
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
    TraceEnded { path: PathBuf, seconds: f64 },
    /// NVML is missing or does not work.
    #[error(
        "NVML cannot be used: {reason}; it comes with NVIDIA's driver (libnvidia-ml.so.1, nvml.dll): check that nvidia-smi \
         works, or choose another sensor"
    )]
    NoNvml { reason: String },
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
    Stuck { sensor: String, timeout: Duration },
    /// The thread panicked, in the sensor or the event callback. The fraction is 1.
    #[error("the thread that reads {sensor} ended by a panic; this is an error in the program")]
    Panicked { sensor: String },
    /// A sensor specification is invalid.
    #[error("`{}` names no sensor: {reason}", escape(spec))]
    Spec { spec: String, reason: String },
    /// Implausible thresholds, or in the wrong order.
    #[error(
        "thermal thresholds are {low} and {high} °C, expected a lower and a higher temperature from {} to {}",
        PLAUSIBLE_TEMPERATURE.start(), PLAUSIBLE_TEMPERATURE.end()
    )]
    Thresholds { low: f64, high: f64 },
    /// The least fraction is outside (0, 1].
    #[error("the least fraction is {0}, expected more than 0 and at most 1")]
    MinFraction(f64),
    /// The hysteresis is negative or not less than the distance of the thresholds.
    #[error(
        "the hysteresis is {found} K, expected at least 0 and less than the {width} K between the thresholds"
    )]
    Hysteresis { found: f64, width: f64 },
    /// The recovery rate is outside (0, 1].
    #[error("the recovery is {0} a second, expected more than 0 and at most 1")]
    Recovery(f64),
    /// The power cap is not positive or too large.
    #[error("the power cap is {0} W, expected more than 0 and at most {MAX_WATTS}")]
    PowerCap(f64),
    /// The file exists already.
    #[error("{}: there is such a file already; remove it, or name another", path.display())]
    Exists { path: PathBuf },
    /// The path is not a regular file.
    #[error("{}: not a regular file; events are written to a new file, name another place", path.display())]
    NotAFile { path: PathBuf },
    /// The file cannot be created.
    #[error("{}: cannot be made: {source}", path.display())]
    Create { path: PathBuf, source: io::Error },
    /// The file cannot be written, e.g. because the disk is full.
    #[error(
        "{}: cannot be written: {source}; it ends with the event before, and no more are written", path.display()
    )]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
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

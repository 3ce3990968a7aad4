//! NVIDIA GPUs through the management library (NVML), loaded when a sensor is opened: temperature
//! in whole degrees, averaged power, and energy since Volta.

use std::ffi::OsStr;

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{DEFAULT_POLL_INTERVAL, GpuSelector, Reading, Sensor, SensorInfo};
use crate::live::{Clock, LiveError};

/// A GPU sensor.
#[derive(Debug)]
pub struct NvmlSensor {
    library: Nvml,
    /// Used for look-ups, because the index may change.
    uuid: String,
    info: SensorInfo,
}

impl NvmlSensor {
    /// Loads the library and finds a GPU.
    pub fn open(gpu: &GpuSelector, clock: Clock) -> Result<NvmlSensor, LiveError> {
        NvmlSensor::with_library(None, gpu, clock)
    }

    fn with_library(
        path: Option<&OsStr>,
        gpu: &GpuSelector,
        clock: Clock,
    ) -> Result<NvmlSensor, LiveError> {
        let library = match path {
            Some(path) => Nvml::builder().lib_path(path).init(),
            None => Nvml::init(),
        };
        let library = library.map_err(|error| LiveError::NoNvml {
            reason: error.to_string(),
        })?;
        let found = match gpu {
            GpuSelector::Index(index) => library.device_by_index(*index),
            GpuSelector::Uuid(uuid) => library.device_by_uuid(uuid.as_str()),
        };
        let found = found.and_then(|device| Ok((device.uuid()?, device.name()?)));
        let (uuid, product) = found.map_err(|error| LiveError::NoGpu {
            requested: gpu.clone(),
            reason: error.to_string(),
        })?;
        let mut sensor = NvmlSensor {
            info: SensorInfo {
                name: format!("{product} ({uuid})"),
                clock,
                min_interval: DEFAULT_POLL_INTERVAL,
                notes: Vec::new(),
            },
            library,
            uuid,
        };
        let first = sensor.read()?;
        for (absent, what) in [
            (first.temperature.is_none(), "no temperature"),
            (first.power.is_none(), "no power"),
            (
                first.energy.is_none(),
                "no energy counter: energy is the integral of its power",
            ),
        ] {
            if absent {
                let note = format!("{}: {what}", sensor.info.name);
                sensor.info.notes.push(note);
            }
        }
        Ok(sensor)
    }

    /// Returns a value of the GPU; `None` if not supported.
    fn value<T>(
        &self,
        what: &'static str,
        of: impl Fn(&Device<'_>) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, LiveError> {
        let device = self.library.device_by_uuid(self.uuid.as_str());
        match device.and_then(|device| of(&device)) {
            Ok(value) => Ok(Some(value)),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
            Err(error) => Err(LiveError::GpuQuery {
                uuid: self.uuid.clone(),
                quantity: what,
                reason: error.to_string(),
            }),
        }
    }
}

impl Sensor for NvmlSensor {
    fn info(&self) -> &SensorInfo {
        &self.info
    }

    fn read(&mut self) -> Result<Reading, LiveError> {
        let die = |device: &Device<'_>| device.temperature(TemperatureSensor::Gpu);
        let temperature = self.value("temperature", die)?;
        let milliwatts = self.value("power", |device| device.power_usage())?;
        let counter = |device: &Device<'_>| device.total_energy_consumption();
        let millijoules = self.value("energy", counter)?;
        Ok(Reading {
            time: self.info.clock.now(),
            temperature: temperature.map(f64::from),
            power: milliwatts.map(|milliwatts| f64::from(milliwatts) / 1000.0),
            energy: millijoules.map(|millijoules| millijoules as f64 / 1000.0),
        })
    }
}

#[cfg(test)]
mod tests;

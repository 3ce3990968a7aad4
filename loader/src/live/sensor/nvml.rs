//! GPUs by NVIDIA's management library (NVML), which is looked for when a sensor of it is opened: a program that never opens one runs
//! where there is none.
//!
//! NVML says the temperature of the die in whole degrees, the power of the whole board (averaged over a second on cards since Ampere),
//! and on cards since Volta the energy that it has drawn since the driver was loaded.

use std::ffi::OsStr;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{Gpu, POLL, Reading, Sensor, SensorError};
use crate::live::Clock;

/// A GPU.
#[derive(Debug)]
pub struct NvmlSensor {
    library: Nvml,
    /// It is asked for by its own name each time, as its place in the list may change.
    uuid: String,
    name: String,
    notes: Vec<String>,
    clock: Clock,
}

impl NvmlSensor {
    /// Loads the library and finds a GPU.
    ///
    /// # Errors
    /// [`SensorError::NoNvml`] where the library is not there or refuses, [`SensorError::NoGpu`] where the GPU is not.
    pub fn open(gpu: &Gpu, clock: Clock) -> Result<NvmlSensor, SensorError> {
        NvmlSensor::with_library(None, gpu, clock)
    }

    /// As [`open`](NvmlSensor::open), with a library in another place.
    fn with_library(
        path: Option<&OsStr>,
        gpu: &Gpu,
        clock: Clock,
    ) -> Result<NvmlSensor, SensorError> {
        let library = match path {
            Some(path) => Nvml::builder().lib_path(path).init(),
            None => Nvml::init(),
        };
        let library = library.map_err(|error| SensorError::NoNvml {
            reason: error.to_string(),
        })?;
        let found = match gpu {
            Gpu::Index(index) => library.device_by_index(*index),
            Gpu::Uuid(uuid) => library.device_by_uuid(uuid.as_str()),
        };
        let found = found.and_then(|device| Ok((device.uuid()?, device.name()?)));
        let (uuid, product) = found.map_err(|error| SensorError::NoGpu {
            asked: gpu.clone(),
            reason: error.to_string(),
        })?;
        let mut sensor = NvmlSensor {
            name: format!("{product} ({uuid})"),
            library,
            uuid,
            notes: Vec::new(),
            clock,
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
                sensor.notes.push(format!("{}: {what}", sensor.name));
            }
        }
        Ok(sensor)
    }

    /// A value of the GPU; `None` where this GPU does not have it.
    fn value<T>(
        &self,
        what: &'static str,
        of: impl Fn(&Device<'_>) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, SensorError> {
        let device = self.library.device_by_uuid(self.uuid.as_str());
        match device.and_then(|device| of(&device)) {
            Ok(value) => Ok(Some(value)),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
            Err(error) => Err(SensorError::Gpu {
                uuid: self.uuid.clone(),
                what,
                reason: error.to_string(),
            }),
        }
    }
}

impl Sensor for NvmlSensor {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(&mut self) -> Result<Reading, SensorError> {
        let die = |device: &Device<'_>| device.temperature(TemperatureSensor::Gpu);
        let temperature = self.value("temperature", die)?;
        let milliwatts = self.value("power", |device| device.power_usage())?;
        let counter = |device: &Device<'_>| device.total_energy_consumption();
        let millijoules = self.value("energy", counter)?;
        Ok(Reading {
            at: self.clock.now(),
            temperature: temperature.map(f64::from),
            power: milliwatts.map(|milliwatts| f64::from(milliwatts) / 1000.0),
            energy: millijoules.map(|millijoules| millijoules as f64 / 1000.0),
        })
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn lowest_interval(&self) -> Duration {
        POLL
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("libnvidia-ml.so.1");
        let none = folder.path().join("text.so");
        std::fs::write(&none, "no library").unwrap();
        for path in [absent, none] {
            let opened =
                NvmlSensor::with_library(Some(path.as_os_str()), &Gpu::Index(0), Clock::manual());
            let fault = opened.unwrap_err();
            assert!(matches!(fault, SensorError::NoNvml { .. }), "{fault}");
            assert!(fault.to_string().contains("nvidia-smi works"), "{fault}");
        }
    }

    #[test]
    fn where_there_is_a_library_a_gpu_that_is_not_there_is_named() {
        let gpu = Gpu::Index(u32::MAX);
        match NvmlSensor::open(&gpu, Clock::manual()) {
            Err(SensorError::NoNvml { .. }) => eprintln!("skipped: there is no NVML here"),
            Err(SensorError::NoGpu { asked, .. }) => assert_eq!(asked, gpu),
            other => panic!("{other:?}"),
        }
    }
}

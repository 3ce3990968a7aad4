//! The processor of a Linux machine: temperature from kernel drivers, power from energy counters
//! ([`rapl`](super::rapl)).

use std::path::{Path, PathBuf};

use super::rapl::Rapl;
use super::{
    DEFAULT_POLL_INTERVAL, Reading, Sensor, SensorInfo, read_integer, read_short_file,
    sorted_subfolders,
};
use crate::live::{Clock, LiveError};

/// Root of the Linux sensor drivers.
pub const ROOT: &str = "/sys/class/hwmon";

/// Processor temperature drivers.
pub const DRIVERS: [&str; 4] = ["coretemp", "k10temp", "zenpower", "cpu_thermal"];

/// Labels of the processor temperature, best first: Intel's package, AMD's die, and AMD's control
/// temperature, which has an offset on older processors.
const LABELS: [&str; 4] = ["Package id", "Physical id", "Tdie", "Tctl"];

/// Bound of the sensor numbers that are tried, from 1.
const MAX_VALUES: usize = 1024;

/// All processors of the machine: the highest temperature, and the total power.
#[derive(Debug)]
pub struct Hwmon {
    temperatures: Vec<PathBuf>,
    counters: Option<Rapl>,
    info: SensorInfo,
}

impl Hwmon {
    /// Opens the processors of drivers below `root` ([`ROOT`]) and the counters below `powercap`
    /// ([`rapl::ROOT`](super::rapl::ROOT)). Without counters there is only a temperature, and a
    /// [note](super::SensorInfo::notes) with the reason.
    pub fn open(root: &Path, powercap: &Path, clock: Clock) -> Result<Hwmon, LiveError> {
        let (mut temperatures, mut known, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let drivers = if root.is_dir() {
            sorted_subfolders(root)?
        } else {
            Vec::new()
        };
        for folder in drivers {
            let Ok(driver) = read_short_file(&folder.join("name")) else {
                continue;
            };
            if DRIVERS.contains(&driver.as_str()) {
                let (path, label) = processor_value(&folder)?;
                known.push(match label {
                    Some(label) => format!("{driver} {label}"),
                    None => driver,
                });
                temperatures.push(path);
            } else {
                others.push(driver)
            }
        }
        if temperatures.is_empty() {
            return Err(LiveError::NoProcessor {
                root: root.into(),
                found: others,
            });
        }
        let mut hwmon = Hwmon {
            temperatures,
            counters: None,
            info: SensorInfo {
                name: known.join(", "),
                clock,
                min_interval: DEFAULT_POLL_INTERVAL,
                notes: Vec::new(),
            },
        };
        match Rapl::open(powercap, hwmon.info.clock.now()) {
            Ok(Some(counters)) => {
                hwmon.info.name += &format!("; power of {}", counters.names());
                hwmon.counters = Some(counters);
                hwmon.info.clock.wait(Rapl::min_power_interval());
            }
            Ok(None) => hwmon.info.notes.push(format!(
                "{}: no energy counters of the processor; there is no power, only a temperature",
                powercap.display()
            )),
            Err(error) => hwmon.info.notes.push(format!(
                "the processor's energy counters cannot be used ({error}); there is no power, only a temperature; Linux shows \
                 counters to root, who can show them to others (chmod a+r .../energy_uj)"
            )),
        }
        hwmon.read()?;
        Ok(hwmon)
    }
}

fn processor_value(folder: &Path) -> Result<(PathBuf, Option<String>), LiveError> {
    let mut labels = Vec::new();
    for place in 1..MAX_VALUES {
        let (input, label) = (
            folder.join(format!("temp{place}_input")),
            folder.join(format!("temp{place}_label")),
        );
        // Disabled cores leave gaps.
        if input.exists() && label.exists() {
            labels.push((input, read_short_file(&label)?));
        }
    }
    let best = LABELS.iter().find_map(|wanted| {
        let mut labels = labels.iter();
        labels.find(|(_, label)| label.starts_with(wanted))
    });
    Ok(match best {
        Some((input, label)) => (input.clone(), Some(label.clone())),
        None => (folder.join("temp1_input"), None),
    })
}

impl Sensor for Hwmon {
    fn info(&self) -> &SensorInfo {
        &self.info
    }

    fn read(&mut self) -> Result<Reading, LiveError> {
        let mut warmest = f64::NEG_INFINITY;
        for path in &self.temperatures {
            let thousandths: i64 = read_integer(path)?;
            warmest = warmest.max(thousandths as f64 / 1000.0);
        }
        let at = self.info.clock.now();
        let counted = self.counters.as_mut().map(|of| of.read(at)).transpose()?;
        Ok(Reading {
            time: at,
            temperature: Some(warmest),
            power: counted.and_then(|(_, watts)| watts),
            energy: counted.map(|(joules, _)| joules),
        })
    }
}

#[cfg(test)]
mod tests;

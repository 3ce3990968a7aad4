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
    /// [note](Sensor::notes) with the reason.
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
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::rapl::tests::counter;
    use super::*;

    fn driver(root: &Path, place: &str, name: &str, values: &[(usize, &str, i64)]) {
        let folder = root.join(place);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        for (number, label, thousandths) in values {
            let value = |kind: &str| folder.join(format!("temp{number}_{kind}"));
            fs::write(value("input"), format!("{thousandths}\n")).unwrap();
            if !label.is_empty() {
                fs::write(value("label"), format!("{label}\n")).unwrap();
            }
        }
    }

    fn open(root: &Path) -> Result<Hwmon, LiveError> {
        Hwmon::open(&root.join("hwmon"), &root.join("powercap"), Clock::manual())
    }

    #[test]
    fn highest_processor_temperature_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("hwmon");
        driver(&root, "hwmon0", "nvme", &[(1, "Composite", 90_000)]);
        let package = |id, celsius| (1, id, celsius);
        driver(
            &root,
            "hwmon1",
            "coretemp",
            &[package("Package id 0", 51_500), (2, "Core 0", 80_000)],
        );
        driver(
            &root,
            "hwmon2",
            "coretemp",
            &[package("Package id 1", 62_000)],
        );
        let mut sensor = open(folder.path()).unwrap();
        assert_eq!(
            sensor.info().name,
            "coretemp Package id 0, coretemp Package id 1"
        );
        assert_eq!(sensor.read().unwrap().temperature, Some(62.0));
        assert_eq!(sensor.read().unwrap().power, None);
        assert!(
            sensor.info().notes[0].contains("no energy counters"),
            "{:?}",
            sensor.info().notes
        );
        driver(
            &root,
            "hwmon2",
            "coretemp",
            &[package("Package id 1", 40_000)],
        );
        assert_eq!(sensor.read().unwrap().temperature, Some(51.5));
    }

    #[test]
    fn labels_select_the_processor_value() {
        for (name, values, label, celsius) in [
            (
                "k10temp",
                vec![(1, "Tctl", 70_000), (3, "Tdie", 60_000)],
                "k10temp Tdie",
                60.0,
            ),
            (
                "k10temp",
                vec![(1, "Tctl", 70_000), (3, "Tccd1", 60_000)],
                "k10temp Tctl",
                70.0,
            ),
            ("zenpower", vec![(2, "Tdie", 55_000)], "zenpower Tdie", 55.0),
            ("cpu_thermal", vec![(1, "", 48_312)], "cpu_thermal", 48.312),
        ] {
            let folder = tempfile::tempdir().unwrap();
            driver(&folder.path().join("hwmon"), "hwmon0", name, &values);
            let mut sensor = open(folder.path()).unwrap();
            assert_eq!(sensor.info().name, label);
            assert_eq!(sensor.read().unwrap().temperature, Some(celsius));
        }
    }

    #[test]
    fn power_comes_from_the_counters() {
        let folder = tempfile::tempdir().unwrap();
        driver(
            &folder.path().join("hwmon"),
            "hwmon0",
            "coretemp",
            &[(1, "Package id 0", 50_000)],
        );
        let set = |value| {
            counter(
                &folder.path().join("powercap"),
                "intel-rapl:0",
                "package-0",
                value,
            )
        };
        set(1_000_000);
        let mut sensor = open(folder.path()).unwrap();
        assert_eq!(
            sensor.info().name,
            "coretemp Package id 0; power of package-0"
        );
        assert_eq!(sensor.read().unwrap().power, Some(0.0));
        set(31_000_000);
        sensor.info().clock.advance(Duration::from_secs(2));
        let reading = sensor.read().unwrap();
        assert_eq!((reading.power, reading.energy), (Some(15.0), Some(30.0)));
        assert!(sensor.info().notes.is_empty());
    }

    #[test]
    fn unreadable_counters_leave_the_temperature() {
        let folder = tempfile::tempdir().unwrap();
        driver(
            &folder.path().join("hwmon"),
            "hwmon0",
            "coretemp",
            &[(1, "Package id 0", 50_000)],
        );
        let powercap = folder.path().join("powercap");
        counter(&powercap, "intel-rapl:0", "package-0", 1);
        let path = powercap.join("intel-rapl:0/energy_uj");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let mut sensor = open(folder.path()).unwrap();
        assert_eq!(sensor.read().unwrap().temperature, Some(50.0));
        assert_eq!(sensor.read().unwrap().power, None);
        let [note] = &sensor.info().notes[..] else {
            panic!()
        };
        assert!(
            note.contains("energy_uj") && note.contains("chmod"),
            "{note}"
        );
    }

    #[test]
    fn missing_sensor_error_lists_drivers() {
        let folder = tempfile::tempdir().unwrap();
        let none = open(folder.path()).unwrap_err().to_string();
        assert!(
            none.contains("found none") && none.contains("k10temp"),
            "{none}"
        );
        driver(
            &folder.path().join("hwmon"),
            "hwmon0",
            "acpitz",
            &[(1, "", 20_000)],
        );
        let other = open(folder.path()).unwrap_err().to_string();
        assert!(other.contains("acpitz"), "{other}");
        let root = folder.path().join("hwmon");
        driver(&root, "hwmon1", "coretemp", &[(1, "Package id 0", 50_000)]);
        let mut sensor = open(folder.path()).unwrap();
        fs::write(root.join("hwmon1/temp1_input"), "hot\n").unwrap();
        assert!(matches!(sensor.read(), Err(LiveError::Number { .. })));
        fs::remove_file(root.join("hwmon1/temp1_input")).unwrap();
        assert!(matches!(sensor.read(), Err(LiveError::Open(_))));
        #[cfg(unix)]
        {
            let pipe = std::process::Command::new("mkfifo");
            let made = { pipe }.arg(root.join("hwmon1/temp1_input")).status();
            assert!(made.unwrap().success());
            assert!(matches!(sensor.read(), Err(LiveError::Open(_))));
        }
        assert!(open(folder.path()).is_err());
    }
}

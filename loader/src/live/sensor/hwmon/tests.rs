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

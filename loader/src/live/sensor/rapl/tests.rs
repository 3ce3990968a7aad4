use std::fs;

use super::*;

pub(in crate::live::sensor) fn counter(root: &Path, place: &str, name: &str, microjoules: u64) {
    let folder = root.join(place);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("name"), format!("{name}\n")).unwrap();
    fs::write(folder.join("max_energy_range_uj"), "1000000000\n").unwrap();
    fs::write(folder.join("energy_uj"), format!("{microjoules}\n")).unwrap();
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn packages_and_memory_are_counted_once() {
    let root = tempfile::tempdir().unwrap();
    let set = |place: &str, name: &str, value| counter(root.path(), place, name, value);
    let all = |value| {
        set("intel-rapl:0", "package-0", value);
        set("intel-rapl:0:0", "core", value);
        set("intel-rapl:0:1", "dram", value);
        set("intel-rapl:1", "package-1", value);
        set("intel-rapl:2", "psys", value);
        set("intel-rapl-mmio:0", "package-0", value);
    };
    all(5_000_000);
    let mut rapl = Rapl::open(root.path(), seconds(1)).unwrap().unwrap();
    assert_eq!(rapl.names(), "package-0, dram, package-1");
    assert_eq!(rapl.read(seconds(1)).unwrap(), (0.0, None));
    all(25_000_000);
    assert_eq!(rapl.read(seconds(3)).unwrap(), (60.0, Some(30.0)));
    assert_eq!(rapl.read(seconds(3)).unwrap(), (60.0, Some(30.0)));
    assert_eq!(rapl.read(seconds(2)).unwrap(), (60.0, Some(30.0)));
}

#[test]
fn counter_wraps_after_its_range() {
    let root = tempfile::tempdir().unwrap();
    let set = |value| counter(root.path(), "intel-rapl:0", "package-0", value);
    set(999_000_000);
    let mut rapl = Rapl::open(root.path(), seconds(0)).unwrap().unwrap();
    set(4_000_000);
    assert_eq!(rapl.read(seconds(1)).unwrap(), (5.0, Some(5.0)));
    set(2_000_000_000);
    rapl.read(seconds(2)).unwrap();
    set(0);
    let (joules, _) = rapl.read(seconds(3)).unwrap();
    assert!(joules.is_finite());
    set(u64::MAX);
    assert!(rapl.read(seconds(4)).is_ok());
}

#[test]
fn unreadable_counter_is_named() {
    let root = tempfile::tempdir().unwrap();
    assert!(Rapl::open(root.path(), seconds(0)).unwrap().is_none());
    let absent = Rapl::open(&root.path().join("absent"), seconds(0));
    assert!(absent.unwrap().is_none());
    counter(root.path(), "intel-rapl:0", "package-0", 1);
    let mut rapl = Rapl::open(root.path(), seconds(0)).unwrap().unwrap();
    let path = root.path().join("intel-rapl:0/energy_uj");
    for garbage in ["", "-1\n", "many"] {
        fs::write(&path, garbage).unwrap();
        let fault = rapl.read(seconds(1)).unwrap_err().to_string();
        assert!(fault.contains("energy_uj"), "{fault}");
    }
    fs::remove_file(&path).unwrap();
    assert!(rapl.read(seconds(2)).is_err());
    assert!(Rapl::open(root.path(), seconds(0)).is_err());
}

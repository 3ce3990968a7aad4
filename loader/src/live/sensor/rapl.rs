//! Energy counters of processors: Intel's RAPL (running average power limit), which AMD's processors have as well, as Linux shows
//! them in `/sys/class/powercap`.
//!
//! Counted are the packages and, where a package has it, its memory (`dram`, which a package does not contain). Parts that a
//! package contains (`core`, `uncore`) and the whole system (`psys`, which contains packages) are not, since that would count twice.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{SensorError, folders, number, short_text};

/// Where Linux shows them.
pub const ROOT: &str = "/sys/class/powercap";

/// What folders of Intel's and AMD's counters begin with. `intel-rapl-mmio:` is the same by another way.
const PREFIX: &str = "intel-rapl:";

/// Readings nearer than this to each other say nothing of the power: counters move about once in a millisecond.
const SHORTEST: Duration = Duration::from_millis(20);

/// Counters of all of a machine's processors.
#[derive(Debug)]
pub struct Rapl {
    domains: Vec<Domain>,
    microjoules: u128,
    /// When the power was computed last, the sum then, and the power.
    before: (Duration, u128),
    power: Option<f64>,
}

#[derive(Debug)]
struct Domain {
    name: String,
    counter: PathBuf,
    /// What the counter starts again after, µJ.
    range: u64,
    before: u64,
}

impl Rapl {
    /// The counters below a folder, from `now` on; `None` where there are none.
    ///
    /// # Errors
    /// [`SensorError`] where a counter cannot be read, which Linux leaves to root.
    pub fn open(root: &Path, now: Duration) -> Result<Option<Rapl>, SensorError> {
        let mut domains = Vec::new();
        if !root.is_dir() {
            return Ok(None);
        }
        for folder in folders(root)? {
            let place = folder.file_name().and_then(|name| name.to_str());
            let Some(place) = place.and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            let name = short_text(&folder.join("name"))?;
            let counted = match place.contains(':') {
                true => name == "dram",
                false => name.starts_with("package"),
            };
            if counted {
                domains.push(Domain::open(&folder, name)?);
            }
        }
        Ok((!domains.is_empty()).then_some(Rapl {
            domains,
            microjoules: 0,
            before: (now, 0),
            power: None,
        }))
    }

    /// The names of what is counted.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.domains.iter().map(|of| of.name.as_str()).collect();
        names.join(", ")
    }

    /// Joules since the opening, and the power since the reading before, in watts; `None` in the first moments, in which counters
    /// do not move.
    ///
    /// # Errors
    /// [`SensorError`] where a counter cannot be read any more.
    pub fn read(&mut self, now: Duration) -> Result<(f64, Option<f64>), SensorError> {
        for domain in &mut self.domains {
            self.microjoules += u128::from(domain.passed()?);
        }
        let joules = |microjoules: u128| microjoules as f64 * 1e-6;
        let (at, sum) = self.before;
        let passed = now.saturating_sub(at);
        if passed >= SHORTEST {
            self.power = Some(joules(self.microjoules - sum) / passed.as_secs_f64());
            self.before = (now, self.microjoules);
        }
        Ok((joules(self.microjoules), self.power))
    }

    /// The least time after the opening for a power.
    pub(super) const fn shortest() -> Duration {
        SHORTEST
    }
}

impl Domain {
    fn open(folder: &Path, name: String) -> Result<Domain, SensorError> {
        let counter = folder.join("energy_uj");
        Ok(Domain {
            before: number(&counter)?,
            range: number(&folder.join("max_energy_range_uj"))?,
            name,
            counter,
        })
    }

    /// µJ since the reading before. A counter goes up to its range and starts again at 0; at 300 W that is some quarter of an hour for the usual
    /// range. A value above the range is no place in it, so that nothing is known but that it is the new beginning.
    fn passed(&mut self) -> Result<u64, SensorError> {
        let now: u64 = number(&self.counter)?;
        let before = std::mem::replace(&mut self.before, now);
        Ok(match now.checked_sub(before) {
            Some(passed) => passed,
            None => self.range.saturating_sub(before).saturating_add(now),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    /// A folder with a counter, as Linux has it.
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
    fn packages_and_their_memory_are_counted_once() {
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
        // Nothing new in no time: the power stays.
        assert_eq!(rapl.read(seconds(3)).unwrap(), (60.0, Some(30.0)));
        // A clock that goes back divides by nothing.
        assert_eq!(rapl.read(seconds(2)).unwrap(), (60.0, Some(30.0)));
    }

    #[test]
    fn a_counter_starts_again_after_its_range() {
        let root = tempfile::tempdir().unwrap();
        let set = |value| counter(root.path(), "intel-rapl:0", "package-0", value);
        set(999_000_000);
        let mut rapl = Rapl::open(root.path(), seconds(0)).unwrap().unwrap();
        set(4_000_000);
        assert_eq!(rapl.read(seconds(1)).unwrap(), (5.0, Some(5.0)));
        // A value that is no place in the range.
        set(2_000_000_000);
        rapl.read(seconds(2)).unwrap();
        set(0);
        let (joules, _) = rapl.read(seconds(3)).unwrap();
        assert!(joules.is_finite());
        set(u64::MAX);
        assert!(rapl.read(seconds(4)).is_ok());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
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
}

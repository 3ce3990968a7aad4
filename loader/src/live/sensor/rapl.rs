//! Energy counters of processors: RAPL (running average power limit) of Intel and AMD, in
//! `/sys/class/powercap` on Linux.
//!
//! Packages and their memory (`dram`) are counted; parts of a package and the whole system (`psys`)
//! are not, to avoid double counting.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{read_integer, read_short_file, sorted_subfolders};
use crate::live::LiveError;

/// Root of the counters on Linux.
pub const ROOT: &str = "/sys/class/powercap";

/// Folder prefix of Intel and AMD counters. `intel-rapl-mmio:` duplicates them.
const PREFIX: &str = "intel-rapl:";

/// Shortest time between readings for a power value: counters advance about every millisecond.
const MIN_POWER_INTERVAL: Duration = Duration::from_millis(20);

/// Energy counters of all processors.
#[derive(Debug)]
pub struct Rapl {
    domains: Vec<Domain>,
    microjoules: u128,
    /// Time and sum of the last computation of the power.
    last_power: (Duration, u128),
    power: Option<f64>,
}

#[derive(Debug)]
struct Domain {
    name: String,
    counter: PathBuf,
    /// Range of the counter in µJ.
    range: u64,
    last_value: u64,
}

impl Rapl {
    /// Opens the counters below a folder at time `now`; `None` if there are none.
    pub fn open(root: &Path, now: Duration) -> Result<Option<Rapl>, LiveError> {
        let mut domains = Vec::new();
        if !root.is_dir() {
            return Ok(None);
        }
        for folder in sorted_subfolders(root)? {
            let place = folder.file_name().and_then(|name| name.to_str());
            let Some(place) = place.and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            let name = read_short_file(&folder.join("name"))?;
            let counted = if place.contains(':') {
                name == "dram"
            } else {
                name.starts_with("package")
            };
            if counted {
                domains.push(Domain::open(&folder, name)?);
            }
        }
        Ok((!domains.is_empty()).then_some(Rapl {
            domains,
            microjoules: 0,
            last_power: (now, 0),
            power: None,
        }))
    }

    /// Returns the names of the counted domains.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.domains.iter().map(|of| of.name.as_str()).collect();
        names.join(", ")
    }

    /// Returns joules since opening, and the power since the previous reading in watts; `None`
    /// shortly after opening.
    pub fn read(&mut self, now: Duration) -> Result<(f64, Option<f64>), LiveError> {
        for domain in &mut self.domains {
            self.microjoules += u128::from(domain.microjoules_since_last()?);
        }
        let joules = |microjoules: u128| microjoules as f64 * 1e-6;
        let (at, sum) = self.last_power;
        let passed = now.saturating_sub(at);
        if passed >= MIN_POWER_INTERVAL {
            self.power = Some(joules(self.microjoules - sum) / passed.as_secs_f64());
            self.last_power = (now, self.microjoules);
        }
        Ok((joules(self.microjoules), self.power))
    }

    pub(super) const fn min_power_interval() -> Duration {
        MIN_POWER_INTERVAL
    }
}

impl Domain {
    fn open(folder: &Path, name: String) -> Result<Domain, LiveError> {
        let counter = folder.join("energy_uj");
        Ok(Domain {
            last_value: read_integer(&counter)?,
            range: read_integer(&folder.join("max_energy_range_uj"))?,
            name,
            counter,
        })
    }

    /// Returns the µJ since the previous reading. A counter wraps to 0 after its range. A value
    /// above the range is invalid and only sets a new starting point.
    fn microjoules_since_last(&mut self) -> Result<u64, LiveError> {
        let now: u64 = read_integer(&self.counter)?;
        let before = std::mem::replace(&mut self.last_value, now);
        Ok(match now.checked_sub(before) {
            Some(passed) => passed,
            None => self.range.saturating_sub(before).saturating_add(now),
        })
    }
}

#[cfg(test)]
pub(super) mod tests;

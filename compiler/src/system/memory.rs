//! How much memory the process has.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of memory that the process occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The most at any time so far.
    pub peak: u64,
    /// Of what is there now, pages of mapped files: the system takes them back when it needs
    /// them, since it can read them again.
    pub mapped: u64,
    /// Of what is there now, what the process wrote itself.
    pub own: u64,
}

/// The most memory of its own that the process was seen with; mapped files, which the system takes back
/// when it needs to, are left out.
#[derive(Debug, Default)]
pub struct Peak(AtomicU64);

impl Peak {
    /// Looks how much it is now.
    pub fn sample(&self) {
        if let Some(found) = resident() {
            self.0.fetch_max(found.own, Ordering::Relaxed);
        }
    }

    /// The most so far; `None` where the system never said it.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&bytes| bytes > 0)
    }
}

/// What the system says of this process; `None` where it does not say it as Linux does.
pub fn resident() -> Option<Resident> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Bytes of memory that programs may still take without swapping, as the system estimates it; `None`
/// where it does not say it as Linux does. A limit of the process's control group counts, too.
pub fn available() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let free = kibibytes(&read("/proc/meminfo")?, "MemAvailable")?;
    // Where there is no limit it says `max`, which is no number.
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current");
    let within = limit.map(|limit| limit.saturating_sub(used.unwrap_or(0)));
    Some(within.map_or(free, |within| within.min(free)))
}

/// The number of a line `key: number kB`, in bytes.
fn kibibytes(lines: &str, key: &str) -> Option<u64> {
    let line = lines.lines().find_map(|line| line.strip_prefix(key))?;
    let number = line.strip_prefix(':')?.trim().strip_suffix("kB")?;
    number.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Reads the lines of `/proc/PID/status` (proc_pid_status(5)), which count in KiB.
fn parse(status: &str) -> Option<Resident> {
    let bytes = |key| kibibytes(status, key);
    Some(Resident {
        peak: bytes("VmHWM")?,
        mapped: bytes("RssFile")?,
        own: bytes("RssAnon")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_linux_are_read() {
        let status = "Name:\thtc\nVmHWM:\t  2048 kB\nVmRSS:\t 1900 kB\nRssAnon:\t     100 kB\n\
                      RssFile:\t    1800 kB\nRssShmem:\t       0 kB\n";
        let expected = Resident {
            peak: 2048 << 10,
            mapped: 1800 << 10,
            own: 100 << 10,
        };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("VmHWM:\t 1 kB\n"), None);
        assert_eq!(parse(&status.replace("2048 kB", "many kB")), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn some_memory_is_available() {
        let found = available().unwrap();
        assert!(found > 1 << 20, "{found}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_written_is_counted() {
        let before = resident().unwrap();
        let written = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = resident().unwrap();
        assert!(after.own >= before.own + (60 << 20), "{before:?} {after:?}");
        assert!(after.peak >= after.own);
        drop(written);
    }
}

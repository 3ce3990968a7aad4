//! Memory usage of the process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use htc_formats::model::HyperParameters;
use htc_loader::kv::{KvKind, KvShape};

/// Resident memory of the process in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentMemory {
    /// Peak of the resident memory.
    pub peak: u64,
    /// Pages of mapped files, which the system can reclaim.
    pub mapped: u64,
    /// Anonymous memory.
    pub anonymous: u64,
}

/// Peak of the anonymous memory of the process.
#[derive(Clone, Debug, Default)]
pub struct PeakMemory(Arc<AtomicU64>);

const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

/// Sampling thread, stopped on drop.
#[derive(Debug)]
pub struct PeakWatch {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for PeakWatch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            _ = thread.join();
        }
    }
}

impl PeakMemory {
    /// Takes a sample.
    pub fn sample(&self) {
        if let Some(found) = resident() {
            self.0.fetch_max(found.anonymous, Ordering::Relaxed);
        }
    }

    /// Starts a sampling thread.
    pub fn watch(&self) -> PeakWatch {
        let ended = Arc::new(AtomicBool::new(false));
        let (peak, is_over) = (self.clone(), Arc::clone(&ended));
        let looks = move || {
            while !is_over.load(Ordering::Relaxed) {
                peak.sample();
                thread::park_timeout(SAMPLE_INTERVAL);
            }
        };
        let thread = thread::Builder::new().name("memory".into()).spawn(looks);
        PeakWatch {
            ended,
            thread: thread.ok(),
        }
    }

    /// Returns the peak so far; `None` if never measured.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&bytes| bytes > 0)
    }
}

/// Returns the memory of this process; `None` on other systems than Linux.
pub fn resident() -> Option<ResidentMemory> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Returns the available memory, limited by the control group; `None` if unknown.
pub fn available() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let free = kibibytes(&read("/proc/meminfo")?, "MemAvailable")?;
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let within = available_in_groups(Path::new("/sys/fs/cgroup"), &groups);
    Some(within.map_or(free, |within| within.min(free)))
}

/// Files of a control group, by version (cgroups(7)).
struct GroupFiles {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Page cache, which the system reclaims.
    reclaimable: [&'static str; 2],
}

const GROUPS: [GroupFiles; 2] = [
    GroupFiles {
        folder: "memory",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        reclaimable: ["total_inactive_file", "total_active_file"],
    },
    GroupFiles {
        folder: "",
        limit: "memory.max",
        used: "memory.current",
        reclaimable: ["inactive_file", "active_file"],
    },
];

/// Returns the memory that the control groups of this process leave: the least of those of the
/// group and its ancestors. `groups` is `/proc/self/cgroup`, `mounts` the folder of the hierarchies.
fn available_in_groups(mounts: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let files = match controllers {
            "" => &GROUPS[1],
            names if names.split(',').any(|name| name == "memory") => &GROUPS[0],
            _ => return None,
        };
        let root = mounts.join(files.folder);
        let group = root.join(path.trim_start_matches('/'));
        // In a container the path may be that outside, of which only the root is mounted.
        let ancestors = group
            .ancestors()
            .take_while(|folder| folder.starts_with(&root));
        ancestors.filter_map(|group| files.available(group)).min()
    };
    groups.lines().filter_map(of_line).min()
}

impl GroupFiles {
    fn available(&self, group: &Path) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let limit = number(self.limit)?;
        let statistics = read("memory.stat").unwrap_or_default();
        let statistic = |key: &str| {
            let mut lines = statistics.lines().filter_map(|line| line.split_once(' '));
            let (_, value) = lines.find(|(name, _)| *name == key)?;
            value.trim().parse::<u64>().ok()
        };
        let reclaimable = self.reclaimable.iter().filter_map(|key| statistic(key));
        let used = number(self.used).unwrap_or(0);
        let used = used.saturating_sub(reclaimable.fold(0, u64::saturating_add));
        Some(limit.saturating_sub(used))
    }
}

/// Returns the minimum memory of a session.
pub fn session_bytes(
    hyper: &HyperParameters,
    positions: usize,
    threads: usize,
    kv: impl Into<KvKind>,
) -> u64 {
    let product = |factors: &[usize]| {
        let factors = factors.iter().map(|&factor| factor as u64);
        factors.fold(1_u64, u64::saturating_mul)
    };
    let kv_width = product(&[hyper.kv_heads, hyper.head_size]) as usize;
    let stored = kv.into().stored_type();
    let kv = product(&[KvShape::from(hyper).position_bytes(stored), positions]);
    // A tile of keys has 64 rows.
    let attention = product(&[4, 3 * 64, hyper.head_size, threads]);
    let heads = product(&[hyper.heads, hyper.head_size]) as usize;
    let row =
        4 * hyper.width + 2 * heads + 2 * kv_width + 2 * hyper.widest_ffn() + hyper.vocabulary;
    // Rows that an expert reads and writes, and scores.
    let experts = match hyper.experts() {
        0 => 0,
        experts => 2 * hyper.width + experts,
    };
    let row = row + experts;
    kv.saturating_add(attention).saturating_add(4 * row as u64)
}

fn kibibytes(lines: &str, key: &str) -> Option<u64> {
    let line = lines.lines().find_map(|line| line.strip_prefix(key))?;
    let number = line.strip_prefix(':')?.trim().strip_suffix("kB")?;
    number.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses `/proc/PID/status` (proc_pid_status(5)).
fn parse(status: &str) -> Option<ResidentMemory> {
    let bytes = |key| kibibytes(status, key);
    Some(ResidentMemory {
        peak: bytes("VmHWM")?,
        mapped: bytes("RssFile")?,
        anonymous: bytes("RssAnon")?,
    })
}

#[cfg(test)]
mod tests;

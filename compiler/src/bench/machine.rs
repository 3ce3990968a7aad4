//! Description of the machine and its load during a benchmark.

use schemars::JsonSchema;
use serde::Serialize;

/// Machine on which a benchmark ran.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Machine {
    /// Name of the processor, from `/proc/cpuinfo`; absent on other systems than Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Instruction set of the CPU kernels.
    pub instruction_set: &'static str,
    /// Number of available cores.
    pub cores: usize,
    /// Operating system and architecture.
    pub system: String,
}

impl Machine {
    /// Returns the description of this machine.
    pub fn detect() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").ok();
        Machine {
            processor: cpuinfo.as_deref().and_then(processor),
            instruction_set: htc_kernels::cpu::instruction_set(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

fn processor(cpuinfo: &str) -> Option<String> {
    let named = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    let (_, name) = named.split_once(':')?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Fractions of the processors' time, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Load {
    /// Used by other programs.
    pub others: f64,
    /// Given to other machines by a hypervisor.
    pub stolen: f64,
}

/// Load by others from which a benchmark adds a note.
pub const MAX_QUIET_LOAD: f64 = 0.05;

/// Processor time since boot, in ticks (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    all: u64,
    busy: u64,
    stolen: u64,
    this_process: u64,
}

impl Ticks {
    /// Returns the current counters of `/proc`; `None` on other systems than Linux.
    pub fn now() -> Option<Ticks> {
        let read = |path| std::fs::read_to_string(path).ok();
        parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    /// Returns the load by others since `self`; `None` if no time has passed.
    pub fn since(self) -> Option<Load> {
        Ticks::now().and_then(|now| self.until(now))
    }

    fn until(self, now: Ticks) -> Option<Load> {
        let passed = now.all.checked_sub(self.all).filter(|&all| all > 0)? as f64;
        let own = now.this_process.saturating_sub(self.this_process);
        let busy = now.busy.saturating_sub(self.busy);
        Some(Load {
            others: busy.saturating_sub(own) as f64 / passed,
            stolen: now.stolen.saturating_sub(self.stolen) as f64 / passed,
        })
    }
}

fn parse(stat: &str, own: &str) -> Option<Ticks> {
    let total = stat.lines().next()?.strip_prefix("cpu ")?;
    let total: Vec<u64> = total
        .split_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    let &[user, nice, system, idle, wait, interrupt, soft, stolen, ..] = &total[..] else {
        return None;
    };
    let busy = user + nice + system + interrupt + soft;
    // User and system time of the process and its children.
    let (_, fields) = own.rsplit_once(')')?;
    let fields = fields.split_whitespace().skip(11).take(4);
    let own: Vec<u64> = fields.map_while(|n| n.parse().ok()).collect();
    (own.len() == 4).then(|| Ticks {
        all: busy + idle + wait + stolen,
        busy,
        stolen,
        this_process: own.iter().sum(),
    })
}

#[cfg(test)]
mod tests;

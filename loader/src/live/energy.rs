//! Energy accounting.
//!
//! Tokens per joule are tokens over `∫ P dt` during work only. The integral is the difference of
//! the device's energy counter, if any; otherwise the trapezoidal rule on the power.

use std::time::Duration;

use serde::Serialize;

use super::sensor::{MAX_WATTS, Reading};

/// Activity of a device for energy accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnergyPhase {
    /// Neither idle nor work, e.g. loading a model.
    #[default]
    Other,
    /// Idle: the baseline power.
    Idle,
    /// Measured work.
    Work,
}

/// Origin of the energy figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Energy counter of the device.
    Counter,
    /// Trapezoidal integral of the power.
    Integral,
    /// Counter for part of the time, integral for the rest.
    Both,
}

/// Energy of the work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energy {
    /// Total energy drawn by the device during work, joules.
    pub joules: f64,
    /// Seconds of work covered by `joules`.
    pub seconds: f64,
    /// Seconds of work without readings.
    pub missed: f64,
    /// Idle power in watts, given or measured; `None` if unknown.
    pub idle_watts: Option<f64>,
    /// Energy of an idle device over the same seconds.
    pub idle_joules: Option<f64>,
    /// Origin of the figures.
    pub source: Source,
    /// Readings during work.
    pub samples: u64,
    /// Times the counter went back, or advanced more than a device can draw.
    pub resets: u64,
}

impl Energy {
    /// Returns the energy beyond the idle power; `None` if that is unknown. Negative if the idle
    /// power was higher.
    pub fn net_joules(&self) -> Option<f64> {
        self.idle_joules.map(|idle| self.joules - idle)
    }

    /// Returns tokens per joule of total energy. Missed seconds count with the mean power; `None`
    /// if less than half of the time is covered.
    pub fn tokens_per_joule(&self, tokens: u64) -> Option<f64> {
        self.per_joule(tokens, self.joules)
    }

    /// Returns tokens per joule beyond the idle energy.
    pub fn net_tokens_per_joule(&self, tokens: u64) -> Option<f64> {
        self.per_joule(tokens, self.net_joules()?)
    }

    fn per_joule(&self, tokens: u64, joules: f64) -> Option<f64> {
        let whole = joules * (self.seconds + self.missed) / self.seconds;
        (whole > 0.0 && whole.is_finite() && self.missed <= self.seconds)
            .then(|| tokens as f64 / whole)
    }
}

/// Accumulates the energy of each [`EnergyPhase`] from readings, in constant memory, by the times
/// of the readings.
///
/// Phases that change between two readings get their parts of the interpolated power, and of a
/// counter's difference in the same proportion.
#[derive(Clone, Debug)]
pub struct EnergyAccumulator {
    longest_gap: f64,
    given_idle: Option<f64>,
    phase: EnergyPhase,
    /// Time up to which phases are assigned, in seconds.
    now: Option<f64>,
    last: Option<Sample>,
    pending: [PhaseTime; 3],
    accounts: [PhaseEnergy; 3],
    resets: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: f64,
    power: Option<f64>,
    energy: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PhaseTime {
    /// `∫ dt`
    seconds: f64,
    /// `∫ (t - t₀) dt`, s²
    moment: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct PhaseEnergy {
    joules: f64,
    seconds: f64,
    missed: f64,
    counted: bool,
    integrated: bool,
    samples: u64,
}

impl EnergyAccumulator {
    /// Creates a meter in [`EnergyPhase::Other`]. Powers further apart than `longest_gap` are not
    /// interpolated: that time is [missed](Energy::missed). The idle power in watts is the given
    /// one, or measured in [`EnergyPhase::Idle`].
    pub fn new(longest_gap: Duration, idle_watts: Option<f64>) -> EnergyAccumulator {
        EnergyAccumulator {
            longest_gap: longest_gap.as_secs_f64(),
            given_idle: idle_watts,
            phase: EnergyPhase::default(),
            now: None,
            last: None,
            pending: Default::default(),
            accounts: Default::default(),
            resets: 0,
        }
    }

    /// Changes the phase. An earlier time than the last one is clamped to it.
    pub fn enter(&mut self, phase: EnergyPhase, at: Duration) {
        self.assign_time(at.as_secs_f64());
        self.phase = phase;
    }

    /// Returns the current phase.
    pub fn phase(&self) -> EnergyPhase {
        self.phase
    }

    /// Adds a reading; ignores those without power and counter, or older than the latest.
    pub fn push(&mut self, reading: &Reading) {
        let sample = Sample {
            at: reading.time.as_secs_f64(),
            power: reading.plausible_power(),
            energy: reading.plausible_energy(),
        };
        let late = self.last.is_some_and(|last| sample.at < last.at);
        if late || (sample.power.is_none() && sample.energy.is_none()) {
            return;
        }
        self.assign_time(sample.at);
        self.accounts[self.phase as usize].samples += 1;
        let pending = std::mem::take(&mut self.pending);
        match self.last.replace(sample) {
            Some(last) if sample.at > last.at => self.distribute_energy(last, sample, &pending),
            Some(_) => {}
            None => self.add_missed_time(&pending),
        }
    }

    /// Returns the energy of the work so far; `None` without power.
    pub fn energy(&self) -> Option<Energy> {
        let work = self.accounts[EnergyPhase::Work as usize];
        let idle = self.accounts[EnergyPhase::Idle as usize];
        let measured = (idle.seconds > 0.0).then(|| idle.joules / idle.seconds);
        let idle_watts = self.given_idle.or(measured);
        (work.seconds > 0.0).then(|| Energy {
            joules: work.joules,
            seconds: work.seconds,
            missed: work.missed + self.pending[EnergyPhase::Work as usize].seconds,
            idle_watts,
            idle_joules: idle_watts.map(|watts| watts * work.seconds),
            source: match (work.counted, work.integrated) {
                (true, true) => Source::Both,
                (true, false) => Source::Counter,
                (false, _) => Source::Integral,
            },
            samples: work.samples,
            resets: self.resets,
        })
    }

    fn assign_time(&mut self, to: f64) {
        let from = self.now.unwrap_or(to);
        if to <= from && self.now.is_some() {
            return;
        }
        self.now = Some(to);
        let since = self.last.map_or(from, |last| last.at);
        let share = &mut self.pending[self.phase as usize];
        share.seconds += to - from;
        share.moment += (to - from) * (0.5 * (to + from) - since);
    }

    fn distribute_energy(&mut self, from: Sample, to: Sample, pending: &[PhaseTime; 3]) {
        let width = to.at - from.at;
        let counted = from.energy.zip(to.energy).map(|(from, to)| to - from);
        let plausible = |joules: &f64| (0.0..=MAX_WATTS * width).contains(joules);
        self.resets += u64::from(counted.is_some_and(|joules| !plausible(&joules)));
        let counted = counted.filter(plausible);
        let line = from.power.zip(to.power);
        let line = line.filter(|_| counted.is_some() || width <= self.longest_gap);
        let integral = |(first, last): (f64, f64), share: &PhaseTime| {
            first * share.seconds + (last - first) / width * share.moment
        };
        let whole = line.map(|line| {
            pending
                .iter()
                .map(|share| integral(line, share))
                .sum::<f64>()
        });
        for (account, share) in self.accounts.iter_mut().zip(pending) {
            if share.seconds == 0.0 {
                continue;
            }
            let joules = match (counted, line, whole) {
                (Some(counted), Some(line), Some(whole)) if whole > 0.0 => {
                    Some(counted * integral(line, share) / whole)
                }
                (Some(counted), ..) => Some(counted * share.seconds / width),
                (None, Some(line), _) => Some(integral(line, share)),
                (None, None, _) => None,
            };
            match joules {
                None => account.missed += share.seconds,
                Some(joules) => {
                    account.joules += joules;
                    account.seconds += share.seconds;
                    account.counted |= counted.is_some();
                    account.integrated |= counted.is_none();
                }
            }
        }
    }

    fn add_missed_time(&mut self, pending: &[PhaseTime; 3]) {
        for (account, share) in self.accounts.iter_mut().zip(pending) {
            account.missed += share.seconds;
        }
    }
}

#[cfg(test)]
mod tests;

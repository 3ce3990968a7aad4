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
            phase: EnergyPhase::Other,
            now: None,
            last: None,
            pending: [PhaseTime::default(); 3],
            accounts: [PhaseEnergy::default(); 3],
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meter() -> EnergyAccumulator {
        EnergyAccumulator::new(Duration::from_secs(5), None)
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn reading(at: f64, power: Option<f64>, energy: Option<f64>) -> Reading {
        Reading {
            time: seconds(at),
            temperature: None,
            power,
            energy,
        }
    }

    fn watts(at: f64, power: f64) -> Reading {
        reading(at, Some(power), None)
    }

    #[test]
    fn only_work_is_counted() {
        let mut meter = meter();
        meter.enter(EnergyPhase::Idle, seconds(0.0));
        for at in 0..=10 {
            meter.push(&watts(f64::from(at), 20.0));
        }
        meter.enter(EnergyPhase::Other, seconds(10.0));
        meter.push(&watts(12.0, 500.0));
        meter.push(&watts(12.0, 100.0));
        meter.enter(EnergyPhase::Work, seconds(12.0));
        for at in 13..=22 {
            meter.push(&watts(f64::from(at), 100.0));
        }
        meter.enter(EnergyPhase::Idle, seconds(22.0));
        meter.push(&watts(22.0, 20.0));
        for at in 23..=32 {
            meter.push(&watts(f64::from(at), 20.0));
        }
        let energy = meter.energy().unwrap();
        let expected = Energy {
            joules: 1000.0,
            seconds: 10.0,
            missed: 0.0,
            idle_watts: Some(20.0),
            idle_joules: Some(200.0),
            source: Source::Integral,
            samples: 10,
            resets: 0,
        };
        assert_eq!(energy, expected);
        assert_eq!(energy.net_joules(), Some(800.0));
        assert_eq!(energy.tokens_per_joule(400), Some(0.4));
        assert_eq!(energy.net_tokens_per_joule(400), Some(0.5));
    }

    #[test]
    fn phase_change_between_readings_splits_the_integral() {
        let mut integral = meter();
        integral.push(&watts(0.0, 10.0));
        integral.enter(EnergyPhase::Work, seconds(1.0));
        integral.enter(EnergyPhase::Other, seconds(3.0));
        integral.push(&watts(4.0, 90.0));
        let energy = integral.energy().unwrap();
        assert_eq!((energy.joules, energy.seconds), (100.0, 2.0));
        let counter = |power: [Option<f64>; 2]| {
            let mut meter = meter();
            meter.push(&reading(0.0, power[0], Some(7.0)));
            meter.enter(EnergyPhase::Work, seconds(1.0));
            meter.enter(EnergyPhase::Other, seconds(3.0));
            meter.push(&reading(4.0, power[1], Some(407.0)));
            meter.energy().unwrap()
        };
        let counted = counter([Some(10.0), Some(90.0)]);
        assert_eq!((counted.joules, counted.source), (200.0, Source::Counter));
        assert_eq!(counter([None, Some(3.0)]).joules, 200.0);
        assert_eq!(counter([Some(0.0), Some(0.0)]).joules, 200.0);
    }

    #[test]
    fn counter_reset_falls_back_to_power() {
        let mut meter = meter();
        meter.enter(EnergyPhase::Work, seconds(0.0));
        for (at, power, energy) in [
            (0.0, 50.0, 1000.0),
            (1.0, 50.0, 1060.0),
            (2.0, 50.0, 3.0),
            (3.0, 50.0, 1e12),
            (4.0, 50.0, 1e12 + 60.0),
        ] {
            meter.push(&reading(at, Some(power), Some(energy)));
        }
        let energy = meter.energy().unwrap();
        assert_eq!((energy.joules, energy.resets), (220.0, 2));
        assert_eq!((energy.source, energy.missed), (Source::Both, 0.0));
    }

    #[test]
    fn uncovered_time_is_reported_as_missed() {
        let mut meter = meter();
        assert_eq!(meter.energy(), None);
        meter.enter(EnergyPhase::Work, seconds(0.0));
        meter.push(&reading(1.0, None, None));
        assert_eq!(meter.energy(), None);
        meter.push(&watts(2.0, 100.0));
        meter.push(&watts(3.0, f64::NAN));
        meter.push(&watts(4.0, 100.0));
        meter.push(&watts(12.0, 100.0));
        meter.push(&watts(13.0, -1.0));
        meter.push(&watts(13.0, 100.0));
        let energy = meter.energy().unwrap();
        assert_eq!(
            (energy.joules, energy.seconds, energy.missed),
            (300.0, 3.0, 10.0)
        );
        assert_eq!(energy.tokens_per_joule(10), None);
        for at in 14..=20 {
            meter.push(&watts(f64::from(at), 100.0));
        }
        meter.enter(EnergyPhase::Other, seconds(21.0));
        let energy = meter.energy().unwrap();
        assert_eq!((energy.seconds, energy.missed), (10.0, 11.0));
        meter.push(&watts(22.0, 100.0));
        let energy = meter.energy().unwrap();
        assert_eq!((energy.seconds, energy.missed), (11.0, 10.0));
        assert_eq!(energy.tokens_per_joule(2100), Some(1.0));
        assert_eq!(energy.idle_watts, None);
        assert_eq!(energy.net_tokens_per_joule(2100), None);
    }

    #[test]
    fn backward_time_adds_no_energy() {
        let mut meter = meter();
        meter.enter(EnergyPhase::Work, seconds(10.0));
        meter.push(&watts(10.0, 100.0));
        meter.push(&watts(12.0, 100.0));
        meter.push(&watts(3.0, 100.0));
        meter.enter(EnergyPhase::Other, seconds(1.0));
        meter.enter(EnergyPhase::Work, seconds(12.0));
        meter.push(&watts(12.0, 300.0));
        meter.push(&watts(13.0, 300.0));
        let energy = meter.energy().unwrap();
        assert_eq!((energy.joules, energy.seconds), (500.0, 3.0));
    }

    #[test]
    fn given_idle_power_is_used() {
        let mut meter = EnergyAccumulator::new(Duration::from_secs(5), Some(30.0));
        meter.enter(EnergyPhase::Idle, seconds(0.0));
        meter.push(&watts(0.0, 10.0));
        meter.push(&watts(1.0, 10.0));
        meter.enter(EnergyPhase::Work, seconds(1.0));
        meter.push(&watts(3.0, 10.0));
        let energy = meter.energy().unwrap();
        assert_eq!(
            (energy.idle_watts, energy.net_joules()),
            (Some(30.0), Some(-40.0))
        );
        assert_eq!(energy.net_tokens_per_joule(1), None);
    }

    proptest! {
        #[test]
        fn phase_energies_sum_to_the_integral(
            powers in proptest::collection::vec(0.0..400.0, 2..12),
            borders in proptest::collection::vec((0.0..1.0, 0_usize..3), 0..20),
        ) {
            let mut meter = meter();
            let end = (powers.len() - 1) as f64;
            let mut borders: Vec<(f64, usize)> = borders.into_iter().map(|(part, phase)| (part * end, phase)).collect();
            borders.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut borders = borders.into_iter().peekable();
            for (at, power) in powers.iter().enumerate() {
                while let Some((at, phase)) = borders.next_if(|(border, _)| *border <= at as f64) {
                    meter.enter([EnergyPhase::Other, EnergyPhase::Idle, EnergyPhase::Work][phase], seconds(at));
                }
                meter.push(&watts(at as f64, *power));
            }
            let expected: f64 = powers.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).sum();
            let joules: f64 = meter.accounts.iter().map(|account| account.joules).sum();
            let covered: f64 = meter.accounts.iter().map(|account| account.seconds).sum();
            prop_assert!((joules - expected).abs() < 1e-6 * (1.0 + expected), "{joules} {expected}");
            prop_assert!((covered - end).abs() < 1e-6, "{covered} {end}");
        }
    }
}

//! Energy and temperature of benchmark runs.
//!
//! A [`Governor`] reads the sensor at the start, first token and end of every run, and in between
//! as often as possible. Pauses, warm-up and loading do not count; net joules are above the idle
//! power, which is measured first with the models loaded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use htc_loader::live::sensor::DEFAULT_POLL_INTERVAL;
use htc_loader::live::{
    ControlLaw, ControlLawOptions, Energy, EnergyPhase, Governor, GovernorOptions, LiveError,
    Reading as Sensed, Sensor, SensorInfo, SensorSpec, SharedFraction, Source, open_sensor,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::record::{EnergyReading, Run};
use super::{BenchError, BenchResults, Sensors, Side, pause};
use crate::event::CancellationToken;

/// Duration of the idle measurement.
pub const IDLE: Duration = Duration::from_secs(2);

const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Description of the energy sensor.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct SensorRecord {
    /// Name of the sensor.
    pub name: String,
    /// Idle power in watts; `None` if power is unknown.
    pub idle_watts: Option<f64>,
    /// Source of the joules, if any.
    pub source: Option<Source>,
    /// Seconds between readings, apart from those at the ends of a run.
    pub seconds_between_readings: f64,
}

#[derive(Clone, Debug, Default)]
struct Observations {
    temperature: Option<f64>,
    highest: Option<f64>,
    fault: Option<String>,
}

struct RecordingSensor {
    sensor: Box<dyn Sensor>,
    seen: Arc<Mutex<Observations>>,
}

fn locked(seen: &Mutex<Observations>) -> MutexGuard<'_, Observations> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sensor for RecordingSensor {
    fn info(&self) -> &SensorInfo {
        self.sensor.info()
    }
    fn read(&mut self) -> Result<Sensed, LiveError> {
        let read = self.sensor.read();
        let mut seen = locked(&self.seen);
        match &read {
            Ok(reading) => {
                seen.temperature = reading.plausible_temperature();
                seen.highest = match (seen.highest, seen.temperature) {
                    (Some(highest), Some(now)) => Some(highest.max(now)),
                    (highest, now) => highest.or(now),
                };
            }
            Err(error) => {
                seen.temperature = None;
                seen.fault = Some(error.to_string());
            }
        }
        read
    }
}

/// Running energy measurement.
pub struct EnergyMeter {
    governor: Governor,
    plant: Arc<SharedFraction>,
    seen: Arc<Mutex<Observations>>,
    name: String,
    notes: Vec<String>,
    interval: Duration,
    idle: Duration,
    fractions: [f64; 2],
    before: (Option<Energy>, Option<f64>),
    marked: Option<Energy>,
}

impl EnergyMeter {
    /// Opens the sensor of `spec`.
    pub fn open(spec: &SensorSpec) -> Result<EnergyMeter, LiveError> {
        let plant = SharedFraction::new();
        plant.set_busy(false);
        EnergyMeter::with(open_sensor(spec, &plant)?, plant, spec.speed(), IDLE)
    }

    fn with(
        sensor: Box<dyn Sensor>,
        plant: Arc<SharedFraction>,
        speed: f64,
        idle: Duration,
    ) -> Result<EnergyMeter, LiveError> {
        let seen = Arc::new(Mutex::new(Observations::default()));
        let interval = sensor.info().min_interval.max(MIN_POLL_INTERVAL);
        let (name, notes) = (sensor.info().name.clone(), sensor.info().notes.clone());
        let options = GovernorOptions {
            interval,
            ..GovernorOptions::default().with_speed(speed)
        };
        let law = ControlLaw::new(ControlLawOptions {
            thermal: false,
            ..ControlLawOptions::default()
        })?;
        let watched = RecordingSensor {
            sensor,
            seen: Arc::clone(&seen),
        };
        let governor = Governor::start(
            Box::new(watched),
            law,
            options,
            &SharedFraction::new(),
            |_| {},
        )?;
        Ok(EnergyMeter {
            governor,
            plant,
            seen,
            name,
            notes,
            interval,
            idle,
            fractions: [1.0; 2],
            before: (None, None),
            marked: None,
        })
    }

    /// Sets the active fractions of subject and baseline, which drive a simulated device.
    pub fn set_fractions(&mut self, subject: f64, baseline: f64) {
        self.fractions = [subject, baseline];
    }

    /// Returns the name of the sensor for display.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description of the sensor, after all runs.
    pub fn record(&self) -> SensorRecord {
        let energy = self.governor.energy();
        SensorRecord {
            name: self.name.clone(),
            idle_watts: energy.and_then(|energy| energy.idle_watts),
            source: energy.map(|energy| energy.source),
            seconds_between_readings: self.interval.as_secs_f64(),
        }
    }

    /// Returns notes on the energy of these runs.
    pub fn notes(&self, measured: &BenchResults) -> Vec<String> {
        let mut notes = self.notes.clone();
        let swept = measured.contexts.iter().flat_map(|point| &point.pairs);
        let pairs = measured.pairs.iter().chain(swept);
        let runs: Vec<&Run> = pairs
            .flat_map(|pair| std::iter::once(&pair.subject).chain(&pair.baseline))
            .collect();
        let all = runs.len();
        let lacking = |run: &&&Run| run.energy.is_some_and(|e| e.reading.joules.is_none());
        let lacking = runs.iter().filter(lacking).count();
        if lacking > 0 {
            let fault = locked(&self.seen).fault.clone();
            let why = fault.map_or_else(String::new, |fault| format!(" ({fault})"));
            notes.push(format!(
                "{lacking} of {all} runs have no joules: too little of their time had readings, or nothing was drawn for them alone{why}"
            ));
        }
        let short = |run: &&&Run| run.seconds() < 2.0 * DEFAULT_POLL_INTERVAL.as_secs_f64();
        let short = runs.iter().filter(short).count();
        if short > 0 && lacking < all {
            notes.push(format!(
                "{short} of {all} runs took less than {} s: their joules are from the readings at their ends, and devices tell new values \
                 some ten times in a second; ask for more tokens",
                2.0 * DEFAULT_POLL_INTERVAL.as_secs_f64()
            ));
        }
        notes
    }
}

/// `None` if power is unknown for more than half of the time.
fn energy_between(before: Option<Energy>, after: Option<Energy>) -> Option<Energy> {
    let after = after?;
    let of = |value: fn(&Energy) -> f64| value(&after) - before.as_ref().map_or(0.0, value);
    let (seconds, missed) = (of(|e| e.seconds), of(|e| e.missed));
    let found = Energy {
        joules: of(|e| e.joules),
        seconds,
        missed,
        idle_joules: after.idle_watts.map(|watts| watts * seconds),
        samples: after.samples - before.map_or(0, |e| e.samples),
        resets: after.resets - before.map_or(0, |e| e.resets),
        ..after
    };
    (seconds > 0.0 && missed <= seconds).then_some(found)
}

/// Missed seconds count with the mean power.
fn extrapolate_joules(energy: Energy, joules: f64) -> Option<f64> {
    let whole = joules * (energy.seconds + energy.missed) / energy.seconds;
    whole.is_finite().then_some(whole)
}

impl Sensors for EnergyMeter {
    fn idle(&mut self, cancel: &CancellationToken) -> Result<(), BenchError> {
        self.plant.set_busy(false);
        self.governor.enter_phase(EnergyPhase::Idle)?;
        pause(self.idle, cancel)?;
        Ok(self.governor.enter_phase(EnergyPhase::Other)?)
    }

    fn start(&mut self, side: Side) -> Result<(), BenchError> {
        // Still belongs to the time before.
        self.governor.enter_phase(EnergyPhase::Work)?;
        self.plant.set_fraction(match side {
            Side::Subject => self.fractions[0],
            Side::Baseline => self.fractions[1],
        });
        self.plant.set_busy(true);
        let mut seen = locked(&self.seen);
        seen.highest = seen.temperature;
        self.before = (self.governor.energy(), seen.temperature);
        self.marked = None;
        Ok(())
    }

    fn mark(&mut self) -> Result<(), BenchError> {
        self.governor.enter_phase(EnergyPhase::Work)?;
        self.marked = self.governor.energy();
        Ok(())
    }

    fn stop(&mut self) -> Result<Option<EnergyReading>, BenchError> {
        self.governor.enter_phase(EnergyPhase::Other)?;
        self.plant.set_busy(false);
        let after = self.governor.energy();
        let energy = energy_between(self.before.0, after);
        let decode = self
            .marked
            .and_then(|marked| energy_between(Some(marked), after));
        let drawn = |e: Energy| extrapolate_joules(e, e.joules).filter(|&joules| joules > 0.0);
        let (joules, decode) = (energy.and_then(drawn), decode.and_then(drawn));
        let measured = energy.filter(|_| joules.is_some());
        let seen = locked(&self.seen);
        Ok(Some(EnergyReading {
            joules,
            net_joules: measured.and_then(|e| extrapolate_joules(e, e.net_joules()?)),
            decode_joules: decode,
            power_watts: measured.map(|e| e.joules / e.seconds),
            missed_seconds: measured.map(|e| e.missed),
            readings: measured.map(|e| e.samples),
            temperature_before_celsius: self.before.1,
            temperature_after_celsius: seen.temperature,
            temperature_celsius: seen.highest,
        }))
    }
}

#[cfg(test)]
mod tests;

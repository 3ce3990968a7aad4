//! A simulated thermal plant: a device and its cooler as one body of heat capacity `C` with the
//! thermal resistance `R` to the room,
//!
//! `C dT/dt = P - (T - T_ambient) / R`, `P = idle + (full - idle) · (1 - share + share ·
//! fraction)`,
//!
//! with the exact solution `T(t) = T∞ + (T₀ - T∞) e^(-t/RC)`, `T∞ = T_ambient + R P`, for constant
//! P.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use htc_formats::escape::escape;

use super::spec::parse_speed;
use super::{MAX_WATTS, Reading, Sensor, SensorInfo};
use crate::live::{Clock, LiveError, SharedFraction};

/// Parameters of `sim:KEY=VALUE,...`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimOptions {
    /// `ambient`: room temperature, °C (25).
    pub ambient: f64,
    /// `idle`: idle power, watts (15).
    pub idle: f64,
    /// `full`: power at fraction 1, watts (105).
    pub full: f64,
    /// `share`: part of `full - idle` that follows the fraction, in [0, 1] (1).
    pub share: f64,
    /// `resistance`: thermal resistance to the room, K/W (0.7).
    pub resistance: f64,
    /// `time`: time constant R C, seconds (42).
    pub time: f64,
    /// `start`: initial temperature, °C; by default that of an idle device.
    pub start: Option<f64>,
    /// `speed`: seconds of the plant per second (1).
    pub speed: f64,
}

impl Default for SimOptions {
    fn default() -> Self {
        SimOptions {
            ambient: 25.0,
            idle: 15.0,
            full: 105.0,
            share: 1.0,
            resistance: 0.7,
            time: 42.0,
            start: None,
            speed: 1.0,
        }
    }
}

const KEYS: [&str; 8] = [
    "ambient",
    "idle",
    "full",
    "share",
    "resistance",
    "time",
    "start",
    "speed",
];

impl SimOptions {
    /// Returns the plant in its initial state.
    pub fn plant(&self) -> ThermalPlant {
        let mut plant = ThermalPlant {
            options: *self,
            temperature: 0.0,
        };
        plant.temperature = self.start.unwrap_or(plant.equilibrium(None));
        plant
    }

    /// Sets a parameter. The bounds keep all derived values finite.
    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let within = |least: f64, most: f64| match text.parse::<f64>() {
            Ok(value) if (least..=most).contains(&value) => Ok(value),
            _ => Err(format!(
                "{key} is `{}`, expected a number from {least} to {most}",
                escape(text)
            )),
        };
        match key {
            "ambient" => self.ambient = within(-40.0, 100.0)?,
            "idle" => self.idle = within(0.0, MAX_WATTS)?,
            "full" => self.full = within(0.0, MAX_WATTS)?,
            "share" => self.share = within(0.0, 1.0)?,
            "resistance" => self.resistance = within(1e-6, 1e3)?,
            "time" => self.time = within(1e-3, 1e6)?,
            "start" => self.start = Some(within(-40.0, 150.0)?),
            "speed" => self.speed = parse_speed(text)?,
            _ => {
                return Err(format!(
                    "there is no key `{}`, expected one of {}",
                    escape(key),
                    KEYS.join(", ")
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for SimOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = SimOptions::default();
        let mut given = Vec::new();
        for pair in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("expected KEY=VALUE, found `{}`", escape(pair)))?;
            options.set(key, value)?;
            if given.contains(&key) {
                return Err(format!("{key} is given twice"));
            } else {
                given.push(key)
            }
        }
        if options.full >= options.idle {
            Ok(options)
        } else {
            Err(format!(
                "full is {} W, expected at least the idle power of {} W",
                options.full, options.idle
            ))
        }
    }
}

impl fmt::Display for SimOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = |of: &SimOptions| {
            [
                Some(of.ambient),
                Some(of.idle),
                Some(of.full),
                Some(of.share),
                Some(of.resistance),
                Some(of.time),
                of.start,
                Some(of.speed),
            ]
        };
        let (usual, values) = (values(&SimOptions::default()), values(self));
        let mut comma = "";
        for ((key, value), usual) in KEYS.iter().zip(values).zip(usual) {
            if let (Some(value), true) = (value, value != usual) {
                write!(f, "{comma}{key}={value}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}

/// A device with its cooler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThermalPlant {
    options: SimOptions,
    temperature: f64,
}

impl ThermalPlant {
    /// Returns the temperature in °C.
    pub fn temperature(&self) -> f64 {
        self.temperature
    }

    /// Returns the power at a fraction in watts; `None` for an idle device.
    pub fn power(&self, fraction: Option<f64>) -> f64 {
        let SimOptions {
            idle, full, share, ..
        } = self.options;
        match fraction {
            Some(fraction) => idle + (full - idle) * (1.0 - share + share * fraction),
            None => idle,
        }
    }

    /// Returns the steady-state temperature at a fraction, °C.
    pub fn equilibrium(&self, fraction: Option<f64>) -> f64 {
        self.options.ambient + self.options.resistance * self.power(fraction)
    }

    /// Advances time at a fraction and returns the joules drawn.
    pub fn step(&mut self, fraction: Option<f64>, time: Duration) -> f64 {
        let (seconds, end) = (time.as_secs_f64(), self.equilibrium(fraction));
        let rest = (-seconds / self.options.time).exp();
        self.temperature = end + (self.temperature - end) * rest;
        self.power(fraction) * seconds
    }
}

/// A plant as a sensor, driven by the active fraction.
#[derive(Debug)]
pub struct SimulatedSensor {
    plant: ThermalPlant,
    follow: Arc<SharedFraction>,
    info: SensorInfo,
    before: Duration,
    joules: f64,
}

impl SimulatedSensor {
    /// Creates a plant driven by `follow` from now on.
    pub fn new(plant: ThermalPlant, follow: Arc<SharedFraction>, clock: Clock) -> SimulatedSensor {
        let name = match plant.options.to_string().as_str() {
            "" => "simulated plant".to_owned(),
            said => format!("simulated plant ({said})"),
        };
        SimulatedSensor {
            before: clock.now(),
            info: SensorInfo {
                name,
                clock,
                min_interval: Duration::ZERO,
                notes: Vec::new(),
            },
            plant,
            follow,
            joules: 0.0,
        }
    }
}

impl Sensor for SimulatedSensor {
    fn info(&self) -> &SensorInfo {
        &self.info
    }

    /// The power is the average since the previous reading, as of drivers.
    fn read(&mut self) -> Result<Reading, LiveError> {
        let (at, load) = (self.info.clock.now(), self.follow.plant_load());
        let passed = at.saturating_sub(self.before);
        self.joules += self.plant.step(load, passed);
        self.before = at;
        Ok(Reading {
            time: at,
            temperature: Some(self.plant.temperature()),
            power: Some(self.plant.power(load)),
            energy: Some(self.joules),
        })
    }
}

#[cfg(test)]
mod tests;

//! Control of the active fraction of a model by temperature and power.
//!
//! # The law
//! With `r` the fraction, `r_min` the [least](ControlLawOptions::min_fraction) one, and 1 the
//! allocated rank (Adaptive Compression, section 4.1), `r(T) = clip(1 - (1 - r_min)(T - T_low) /
//! (T_high - T_low), r_min, 1)`.
//!
//! A rise in temperature takes effect immediately; a fall only beyond the
//! [hysteresis](ControlLawOptions::hysteresis) (the law is applied to `T'`, which readings push up
//! and which is held while T stays within `T' - h`) and at the rate
//! [`ControlLawOptions::recovery`]. Both make the fraction smaller than the law alone, never
//! larger.
//!
//! # Stability
//! For a first-order plant `C dT/dt = P - (T - T_a)/R` with `P = P₀ + ΔP r`, polled every `τ`
//! seconds, with `a = e^(-τ/RC)` and the loop gain `L = R ΔP (1 - r_min)/(T_high - T_low)`, the law
//! alone has the pole `z = a - (1 - a) L`. It is stable for `L < coth(τ/2RC)` (first condition) and
//! converges monotonically for `L ≤ 1/(e^(τ/RC) - 1)` (second condition); for a slow plant the
//! second one means `ΔP (1 - r_min) τ / C ≤ T_high - T_low`. Under the second condition T never
//! exceeds T_high if the least fraction can hold the device there and it starts no warmer.
//!
//! The loop does not oscillate at any gain, because the recovery limits each rise to `recovery · τ`
//! per poll, which stays within the play; with whole degrees the ripple is at most the slope of the
//! law for one degree under the second condition, and for two otherwise. If the first condition is
//! violated, the device may exceed T_high for a while.
//!
//! # The power cap
//! Scaling by `P_budget / P` each time, as the method is usually described, fails in a closed loop,
//! because P results from the previous fraction. The fraction in use is scaled instead:
//!
//! `c[n+1] = r[n] · (0.95 P_budget / P[n])^½` where `P > 0.98 P_budget`, `c[n] + recovery · τ`
//! where `P < 0.92 P_budget`, else `c[n]`; `r = min(r(T), c)`.
//!
//! With the exponent β, `log c` has the pole `1 - β r ΔP/P` with `0 < r ΔP/P ≤ 1`: it converges
//! monotonically for β ≤ 1. The exponent ½ is for drivers that average the power over about a
//! second, and the dead band absorbs noise. A budget below `P(r_min)` cannot be met: the fraction
//! is then the least, and [`Decision::limit_exceeded`] is set.

mod law;

use std::time::Duration;

pub use law::{ControlLaw, ControlLawOptions};
use serde::Serialize;

use super::LiveError;
use super::sensor::Reading;

/// Quantum of the fraction, which is rounded down to multiples, so that noise causes no change.
pub const FRACTION_STEP: f64 = 1.0 / 256.0;

const CAP_UPPER: f64 = 0.98;
const CAP_TARGET: f64 = 0.95;
const CAP_LOWER: f64 = 0.92;

/// Maximum recovery time per step, which prevents jumps of rarely polled devices.
const MAX_RECOVERY_TIME: Duration = Duration::from_secs(2);

/// Reason for the current fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimitReason {
    /// No limit: full fraction.
    Base,
    /// Temperature limit.
    Temperature,
    /// Power cap.
    PowerCap,
    /// No usable reading: full fraction.
    NoReading,
}

/// Availability of a quantity, compared with the previous reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadingStatus {
    /// Not used by the law.
    Unused,
    /// Available.
    Available,
    /// Missing for the first time.
    Lost,
    /// Still missing.
    StillMissing,
    /// Available again.
    Restored,
}

/// Decision on the fraction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Fraction in [least, 1], a multiple of [`FRACTION_STEP`] or the least itself.
    pub fraction: f64,
    /// Limiting quantity.
    pub reason: LimitReason,
    /// The least fraction is in use, and the device is still above the upper threshold or its power
    /// cap.
    pub limit_exceeded: bool,
    /// Status of the temperature; [`ReadingStatus::Unused`] if disabled.
    pub temperature: ReadingStatus,
    /// Status of the power; [`ReadingStatus::Unused`] without a cap.
    pub power: ReadingStatus,
}

/// Applies a [`ControlLaw`] to readings. Uses the time of the readings, no clock.
#[derive(Clone, Debug)]
pub struct Controller {
    law: ControlLaw,
    last_time: Option<Duration>,
    /// `T'` in °C.
    held_temperature: Option<f64>,
    thermal: f64,
    cap: f64,
    fraction: f64,
    has_temperature: bool,
    has_power: bool,
}

impl Controller {
    /// Creates a controller at fraction 1.
    pub fn new(law: ControlLaw) -> Controller {
        Controller {
            law,
            last_time: None,
            held_temperature: None,
            thermal: 1.0,
            cap: 1.0,
            fraction: 1.0,
            has_temperature: true,
            has_power: true,
        }
    }

    /// Returns the law.
    pub fn law(&self) -> &ControlLaw {
        &self.law
    }

    /// Changes the least fraction, e.g. to that supported by a model, from the next reading on.
    pub fn set_min_fraction(&mut self, least: f64) -> Result<(), LiveError> {
        self.law = self.law.with_min_fraction(least)?;
        Ok(())
    }

    /// Returns the decision for a reading. Quantities that are missing or not
    /// [plausible](Reading::plausible_temperature) impose no limit.
    ///
    /// A reading with a time not after the previous one is applied without recovery.
    pub fn apply_reading(&mut self, reading: &Reading) -> Decision {
        let before = self.last_time.unwrap_or(reading.time);
        let passed = reading.time.saturating_sub(before).min(MAX_RECOVERY_TIME);
        self.last_time = Some(reading.time.max(before));
        let law = self.law.options();
        let rise = law.recovery * passed.as_secs_f64();
        let celsius = reading.plausible_temperature();
        let celsius = celsius.filter(|_| law.thermal);
        let watts = reading.plausible_power();
        let temperature = if law.thermal {
            update_status(&mut self.has_temperature, celsius.is_some())
        } else {
            ReadingStatus::Unused
        };
        let power = match law.power_cap {
            Some(_) => update_status(&mut self.has_power, watts.is_some()),
            None => ReadingStatus::Unused,
        };
        self.follow_temperature(celsius, rise);
        self.follow_power(watts, rise);

        let least = law.min_fraction;
        let limit = self.thermal.min(self.cap);
        self.fraction = if limit >= 1.0 {
            1.0
        } else {
            ((limit / FRACTION_STEP).floor() * FRACTION_STEP).max(least)
        };
        let gone =
            |of: ReadingStatus| matches!(of, ReadingStatus::Lost | ReadingStatus::StillMissing);
        let nothing = match temperature {
            ReadingStatus::Unused => gone(power),
            sense => gone(sense),
        };
        let why = if self.fraction >= 1.0 {
            if nothing {
                LimitReason::NoReading
            } else {
                LimitReason::Base
            }
        } else if self.cap < self.thermal {
            LimitReason::PowerCap
        } else {
            LimitReason::Temperature
        };
        let too_warm = celsius.is_some_and(|celsius| celsius > law.high_celsius);
        let over = |budget: f64| watts.is_some_and(|watts| watts > budget);
        let too_much = law.power_cap.is_some_and(over);
        Decision {
            fraction: self.fraction,
            reason: why,
            limit_exceeded: self.fraction <= least && (too_warm || too_much),
            temperature,
            power,
        }
    }

    fn follow_temperature(&mut self, celsius: Option<f64>, rise: f64) {
        let Some(celsius) = celsius else {
            self.held_temperature = None;
            self.thermal = 1.0;
            return;
        };
        let law = self.law.options();
        let held = match self.held_temperature {
            Some(held) => held.min(celsius + law.hysteresis).max(celsius),
            None => celsius,
        };
        self.held_temperature = Some(held);
        let aim = self.law.fraction(held);
        self.thermal = aim.min(self.thermal + rise).max(law.min_fraction);
    }

    fn follow_power(&mut self, watts: Option<f64>, rise: f64) {
        let law = self.law.options();
        let (Some(watts), Some(budget)) = (watts, law.power_cap) else {
            self.cap = 1.0;
            return;
        };
        let least = law.min_fraction;
        // Scales the fraction that drew this power, because an unused allowance says nothing about
        // power.
        self.cap = match watts / budget {
            part if part > CAP_UPPER => {
                let scaled = self.fraction * (CAP_TARGET / part).sqrt();
                scaled.min(self.cap).max(least)
            }
            part if part < CAP_LOWER => (self.cap + rise).clamp(least, 1.0),
            _ => self.cap.max(least),
        };
    }
}

fn update_status(has: &mut bool, here: bool) -> ReadingStatus {
    match (std::mem::replace(has, here), here) {
        (true, true) => ReadingStatus::Available,
        (true, false) => ReadingStatus::Lost,
        (false, false) => ReadingStatus::StillMissing,
        (false, true) => ReadingStatus::Restored,
    }
}

#[cfg(test)]
mod tests;

//! From what a sensor says to the fraction of a model that is used.
//!
//! # The law
//!
//! With `r` the fraction, `r_min` the [least](LawOptions::least) one, and 1 the allocated rank (Adaptive Compression, section 4.1):
//!
//! ```text
//! r(T) = clip(1 - (1 - r_min)(T - T_low) / (T_high - T_low), r_min, 1)
//! ```
//!
//! A warmer device is followed at once. A cooler one is followed
//!
//! * only when it is cooler by the [hysteresis](LawOptions::hysteresis): the law is applied to `T'`, which is T pushed up by
//!   readings and held while T stays within `T' - h` (a one-sided play), so that a sensor that flickers moves nothing;
//! * and at a limited rate, [`LawOptions::recovery`] for each second.
//!
//! Both make the fraction smaller than the law alone, never larger.
//!
//! # When the loop is stable
//!
//! Take a plant of one time constant, `C dT/dt = P - (T - T_a)/R` with `P = P₀ + ΔP r`, whose fraction is set every `τ` seconds. With
//! `a = e^(-τ/RC)` and the loop's gain `L = R ΔP (1 - r_min)/(T_high - T_low)`, the law alone gives
//!
//! ```text
//! T[n+1] = a T[n] + (1 - a)(T_a + R P₀ + R ΔP r(T[n])),    with the pole  z = a - (1 - a) L.
//! ```
//!
//! It is stable while `z > -1`, which is `L < (1 + a)/(1 - a) = coth(τ/2RC)`, and approaches its end from one side while
//! `z ≥ 0`, which is `L ≤ 1/(e^(τ/RC) - 1)`. For a slow plant (`τ ≪ RC`) the second is about `ΔP (1 - r_min) τ / C ≤ T_high - T_low`: what the
//! device heats up by in one poll, on the power that can be saved, is at most the width of the law. For the defaults that
//! is 53 °C a second. A sensor that lags counts like a longer `τ`.
//!
//! *T never exceeds T_high* if that second condition holds, the least fraction can hold the device there (`T_a + R P(r_min) ≤ T_high`) and it was not
//! warmer at the beginning: where `T[n] ≤ T_high`, the recursion with the unclipped line is nondecreasing in T\[n\] and maps T_high to at most T_high; the clipped
//! law is below the line where T < T_low, and every smaller fraction gives a lower temperature. Between two readings T moves from the one towards an
//! equilibrium without turning. So hysteresis and recovery leave the guarantee as it is.
//!
//! *It does not oscillate*, whatever the gain: where the law alone has a limit cycle (`L > coth(τ/2RC)`), a fraction that went down comes up by at most
//! `recovery · τ` a poll, so it meets the law from below in steps as small, and stays in the play. What is left of a cycle has that height. With a sensor that says whole degrees, as NVML does, it is at most the law's slope for
//! one degree where the second condition holds, and for two where it does not (0.0375 and 0.075 for the defaults; so found on 60,000 plants with time
//! constants from 2 s to 10 min), and the device may be warmer than T_high by the part of a degree that is not said. (A model
//! that only knows some fractions goes back and forth between two of them where the law ends between, at the pace of the recovery.) Where the first condition is
//! broken the device is too quick for any law that looks every `τ` seconds, and may be warmer than T_high for a while.
//!
//! # The power cap
//!
//! Scaling by `P_budget / P` each time, as the method is usually written down, does not work in a closed loop, because P is drawn with the fraction
//! that was set before: `r[n+1] = P_budget / P(r[n])` has the fixed point `r P(r) = P_budget`, at which `P > P_budget`, and its derivative there
//! is `-r ΔP / P`; for a device without idle power that is -1, and it goes back and forth for ever. What is scaled has to be the fraction in
//! use, that is, it has to be integrated:
//!
//! ```text
//! c[n+1] = r[n] · (0.95 P_budget / P[n])^½    where P > 0.98 P_budget
//! c[n+1] = c[n] + recovery · τ                where P < 0.92 P_budget,    else c[n];    r = min(r(T), c)
//! ```
//!
//! With the exponent β, `log c` has the pole `1 - β r ΔP/P` with `0 < r ΔP/P ≤ 1`: it comes from one side for β ≤ 1. The exponent ½ is for drivers that average
//! the power over about a second, twice the time between polls. Between 0.92 and 0.98 of the budget nothing moves, so that noise of some percent
//! moves nothing either; the aim within is below the budget by more than that, because what only approaches a budget from above never is below it.
//! A budget below `P(r_min)` cannot be met: the fraction is then the least, and [`Decision::beyond`] says so.

mod law;

use std::time::Duration;

pub use law::{Law, LawError, LawOptions};
use serde::Serialize;

use super::sensor::Reading;

/// A fraction is rounded down to multiples of this, so that noise in the last place is no change.
pub const STEP: f64 = 1.0 / 256.0;

/// The cap is aimed at from above this part of the budget,
const TOO_MUCH: f64 = 0.98;
/// towards this part,
const AIM: f64 = 0.95;
/// and left alone down to this one.
const ENOUGH: f64 = 0.92;

/// Longest time that one step recovers for: a device that is looked at rarely would jump.
const LONGEST_STEP: Duration = Duration::from_secs(2);

/// What decides on a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nothing limits it: it is the base.
    Base,
    /// The temperature.
    Temperature,
    /// The power cap.
    PowerCap,
    /// There is no reading that would limit it: it is the base.
    NoReading,
}

/// What has become of a quantity since the reading before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// The law does not ask for it.
    Unused,
    /// It is there.
    Here,
    /// It was there, or is asked for the first time, and is not there now.
    Lost,
    /// It is still not there.
    Away,
    /// It is there again.
    Back,
}

/// The fraction to use from now on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// In [least, 1], a multiple of [`STEP`] or the least itself.
    pub fraction: f64,
    /// What limits it.
    pub why: Why,
    /// Whether it is the least, and the device is still warmer than the upper threshold or draws more than its cap: nothing is left to give.
    pub beyond: bool,
    /// The temperature; [`Sense::Unused`] where it limits nothing.
    pub temperature: Sense,
    /// The power; [`Sense::Unused`] without a cap.
    pub power: Sense,
}

/// Follows readings by a [`Law`]. It has no clock: time is that of the readings.
#[derive(Clone, Debug)]
pub struct Controller {
    law: Law,
    /// Time of the latest reading.
    before: Option<Duration>,
    /// T', °C.
    held: Option<f64>,
    /// What temperature and cap allow, before rounding.
    thermal: f64,
    cap: f64,
    /// What is in use.
    fraction: f64,
    has_temperature: bool,
    has_power: bool,
}

impl Controller {
    /// At the base.
    pub fn new(law: Law) -> Controller {
        Controller {
            law,
            before: None,
            held: None,
            thermal: 1.0,
            cap: 1.0,
            fraction: 1.0,
            has_temperature: true,
            has_power: true,
        }
    }

    /// The law.
    pub fn law(&self) -> &Law {
        &self.law
    }

    /// Changes the least fraction, for instance to what a model can do. It takes effect with the next reading.
    ///
    /// # Errors
    /// [`LawError`] outside (0, 1].
    pub fn set_least(&mut self, least: f64) -> Result<(), LawError> {
        self.law = self.law.with_least(least)?;
        Ok(())
    }

    /// Decides upon a reading. A quantity that it does not have, or that is not
    /// [plausible](Reading::plausible_temperature), limits nothing: without any the fraction is 1, the base.
    ///
    /// Readings whose time is not after that of the one before count, but no time passes for the recovery.
    pub fn step(&mut self, reading: &Reading) -> Decision {
        let before = self.before.unwrap_or(reading.at);
        let passed = reading.at.saturating_sub(before).min(LONGEST_STEP);
        self.before = Some(reading.at.max(before));
        let rise = self.law.recovery() * passed.as_secs_f64();
        let celsius = reading.plausible_temperature();
        let celsius = celsius.filter(|_| self.law.thermal());
        let watts = reading.plausible_power();
        let temperature = match self.law.thermal() {
            true => sense(&mut self.has_temperature, celsius.is_some()),
            false => Sense::Unused,
        };
        let power = match self.law.power_cap() {
            Some(_) => sense(&mut self.has_power, watts.is_some()),
            None => Sense::Unused,
        };
        self.follow_temperature(celsius, rise);
        self.follow_power(watts, rise);

        let least = self.law.least();
        let limit = self.thermal.min(self.cap);
        self.fraction = match limit >= 1.0 {
            true => 1.0,
            false => ((limit / STEP).floor() * STEP).max(least),
        };
        let gone = |of: Sense| matches!(of, Sense::Lost | Sense::Away);
        let nothing = match temperature {
            Sense::Unused => gone(power),
            sense => gone(sense),
        };
        let why = match self.fraction >= 1.0 {
            true if nothing => Why::NoReading,
            true => Why::Base,
            false if self.cap < self.thermal => Why::PowerCap,
            false => Why::Temperature,
        };
        let too_warm = celsius.is_some_and(|celsius| celsius > self.law.high());
        let over = |budget: f64| watts.is_some_and(|watts| watts > budget);
        let too_much = self.law.power_cap().is_some_and(over);
        Decision {
            fraction: self.fraction,
            why,
            beyond: self.fraction <= least && (too_warm || too_much),
            temperature,
            power,
        }
    }

    /// Decides where there is no reading at all, because the sensor failed.
    pub fn miss(&mut self, at: Duration) -> Decision {
        self.step(&Reading {
            at,
            ..Reading::default()
        })
    }

    fn follow_temperature(&mut self, celsius: Option<f64>, rise: f64) {
        let Some(celsius) = celsius else {
            self.held = None;
            self.thermal = 1.0;
            return;
        };
        let held = match self.held {
            Some(held) => held.min(celsius + self.law.hysteresis()).max(celsius),
            None => celsius,
        };
        self.held = Some(held);
        let aim = self.law.fraction(held);
        self.thermal = aim.min(self.thermal + rise).max(self.law.least());
    }

    fn follow_power(&mut self, watts: Option<f64>, rise: f64) {
        let (Some(watts), Some(budget)) = (watts, self.law.power_cap()) else {
            self.cap = 1.0;
            return;
        };
        let least = self.law.least();
        // From the fraction that drew this power: from what a cap allows and nobody used, nothing follows.
        self.cap = match watts / budget {
            part if part > TOO_MUCH => {
                let scaled = self.fraction * (AIM / part).sqrt();
                scaled.min(self.cap).max(least)
            }
            part if part < ENOUGH => (self.cap + rise).clamp(least, 1.0),
            _ => self.cap.max(least),
        };
    }
}

fn sense(has: &mut bool, here: bool) -> Sense {
    match (std::mem::replace(has, here), here) {
        (true, true) => Sense::Here,
        (true, false) => Sense::Lost,
        (false, false) => Sense::Away,
        (false, true) => Sense::Back,
    }
}

#[cfg(test)]
mod tests;

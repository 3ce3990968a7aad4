//! The parameters of a law, checked.

use thiserror::Error;

use crate::live::sensor::{MAX_WATTS, PLAUSIBLE_TEMPERATURE};

/// What a law is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LawOptions {
    /// Whether the temperature limits anything (it does); else the thresholds and the hysteresis are not looked at.
    pub thermal: bool,
    /// Temperature up to which all of the model is used, °C (65).
    pub low: f64,
    /// Temperature from which the least fraction is used, °C (85).
    pub high: f64,
    /// The least fraction, in (0, 1] (0.25).
    pub least: f64,
    /// By how much the device has to be cooler before the fraction rises, K (2).
    pub hysteresis: f64,
    /// How fast the fraction rises at most, for each second (0.02: from a quarter to all in 37.5 s, as fast as coolers cool).
    pub recovery: f64,
    /// Watts that the device is to stay below.
    pub power_cap: Option<f64>,
}

impl Default for LawOptions {
    fn default() -> Self {
        LawOptions {
            thermal: true,
            low: 65.0,
            high: 85.0,
            least: 0.25,
            hysteresis: 2.0,
            recovery: 0.02,
            power_cap: None,
        }
    }
}

/// A law with parameters that fit together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law(LawOptions);

/// Why parameters make no law.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LawError {
    /// Thresholds that are no temperatures, or in the wrong order.
    #[error(
        "thermal thresholds are {low} and {high} °C, expected a lower and a higher temperature from {} to {}",
        PLAUSIBLE_TEMPERATURE.start(), PLAUSIBLE_TEMPERATURE.end()
    )]
    Thresholds {
        /// The lower one.
        low: f64,
        /// The upper one.
        high: f64,
    },
    /// A least fraction that is none.
    #[error("the least fraction is {0}, expected more than 0 and at most 1")]
    Least(f64),
    /// A hysteresis that is negative or as wide as the law.
    #[error(
        "the hysteresis is {found} K, expected at least 0 and less than the {width} K between the thresholds"
    )]
    Hysteresis {
        /// The value given.
        found: f64,
        /// Kelvin from the lower to the upper threshold.
        width: f64,
    },
    /// A recovery that never recovers, or is none.
    #[error("the recovery is {0} a second, expected more than 0 and at most 1")]
    Recovery(f64),
    /// A cap that is no power.
    #[error("the power cap is {0} W, expected more than 0 and at most {MAX_WATTS}")]
    PowerCap(f64),
}

impl Law {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`LawError`] with what was expected.
    pub fn new(options: LawOptions) -> Result<Law, LawError> {
        let LawOptions {
            thermal,
            low,
            high,
            hysteresis,
            recovery,
            ..
        } = options;
        let is_temperature = |value| PLAUSIBLE_TEMPERATURE.contains(value);
        // Comparisons with NaN are false.
        if thermal && !(is_temperature(&low) && is_temperature(&high) && low < high) {
            return Err(LawError::Thresholds { low, high });
        }
        if thermal && !(hysteresis >= 0.0 && hysteresis < high - low) {
            return Err(LawError::Hysteresis {
                found: hysteresis,
                width: high - low,
            });
        }
        if !(recovery > 0.0 && recovery <= 1.0) {
            return Err(LawError::Recovery(recovery));
        }
        match options.power_cap {
            Some(watts) if !(watts > 0.0 && watts <= MAX_WATTS) => Err(LawError::PowerCap(watts)),
            _ => Law(options).with_least(options.least),
        }
    }

    /// The same with another least fraction.
    ///
    /// # Errors
    /// [`LawError::Least`].
    pub fn with_least(self, least: f64) -> Result<Law, LawError> {
        match least > 0.0 && least <= 1.0 {
            true => Ok(Law(LawOptions { least, ..self.0 })),
            false => Err(LawError::Least(least)),
        }
    }

    /// r(T): the fraction at a temperature in °C, in [least, 1].
    pub fn fraction(&self, celsius: f64) -> f64 {
        let LawOptions {
            low, high, least, ..
        } = self.0;
        (1.0 - (1.0 - least) * (celsius - low) / (high - low)).clamp(least, 1.0)
    }

    /// The parameters.
    pub fn options(&self) -> LawOptions {
        self.0
    }

    pub(super) fn thermal(&self) -> bool {
        self.0.thermal
    }

    /// The upper threshold, °C.
    pub(super) fn high(&self) -> f64 {
        self.0.high
    }

    /// The least fraction.
    pub fn least(&self) -> f64 {
        self.0.least
    }

    pub(super) fn hysteresis(&self) -> f64 {
        self.0.hysteresis
    }

    pub(super) fn recovery(&self) -> f64 {
        self.0.recovery
    }

    /// Watts to stay below.
    pub fn power_cap(&self) -> Option<f64> {
        self.0.power_cap
    }
}

//! Validated parameters of the control law.

use crate::live::LiveError;
use crate::live::sensor::{MAX_WATTS, PLAUSIBLE_TEMPERATURE};

/// Parameters of a control law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlLawOptions {
    /// Enables the temperature limit (default true); otherwise thresholds and hysteresis are
    /// ignored.
    pub thermal: bool,
    /// Temperature up to which the full model is used, °C (65).
    pub low_celsius: f64,
    /// Temperature from which the least fraction is used, °C (85).
    pub high_celsius: f64,
    /// Least fraction, in (0, 1] (0.25).
    pub min_fraction: f64,
    /// Required decrease in temperature before the fraction rises, K (2).
    pub hysteresis: f64,
    /// Maximum rise of the fraction per second (0.02, similar to the speed of coolers).
    pub recovery: f64,
    /// Power limit in watts.
    pub power_cap: Option<f64>,
}

impl Default for ControlLawOptions {
    fn default() -> Self {
        ControlLawOptions {
            thermal: true,
            low_celsius: 65.0,
            high_celsius: 85.0,
            min_fraction: 0.25,
            hysteresis: 2.0,
            recovery: 0.02,
            power_cap: None,
        }
    }
}

/// A control law with valid parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlLaw(ControlLawOptions);

impl ControlLaw {
    /// Validates the parameters.
    ///
    /// # Errors
    /// [`LiveError`] for an invalid parameter.
    pub fn new(options: ControlLawOptions) -> Result<ControlLaw, LiveError> {
        let ControlLawOptions {
            thermal,
            low_celsius: low,
            high_celsius: high,
            hysteresis,
            recovery,
            ..
        } = options;
        let is_temperature = |value| PLAUSIBLE_TEMPERATURE.contains(value);
        if thermal && !(is_temperature(&low) && is_temperature(&high) && low < high) {
            return Err(LiveError::Thresholds { low, high });
        }
        if thermal && !(hysteresis >= 0.0 && hysteresis < high - low) {
            return Err(LiveError::Hysteresis {
                found: hysteresis,
                width: high - low,
            });
        }
        if !(recovery > 0.0 && recovery <= 1.0) {
            return Err(LiveError::Recovery(recovery));
        }
        match options.power_cap {
            Some(watts) if !(watts > 0.0 && watts <= MAX_WATTS) => Err(LiveError::PowerCap(watts)),
            _ => ControlLaw(options).with_min_fraction(options.min_fraction),
        }
    }

    /// Returns the law with another least fraction.
    pub fn with_min_fraction(self, least: f64) -> Result<ControlLaw, LiveError> {
        if least > 0.0 && least <= 1.0 {
            Ok(ControlLaw(ControlLawOptions {
                min_fraction: least,
                ..self.0
            }))
        } else {
            Err(LiveError::MinFraction(least))
        }
    }

    /// Returns r(T), the fraction at a temperature in °C, in [least, 1].
    pub fn fraction(&self, celsius: f64) -> f64 {
        let ControlLawOptions {
            low_celsius: low,
            high_celsius: high,
            min_fraction: least,
            ..
        } = self.0;
        (1.0 - (1.0 - least) * (celsius - low) / (high - low)).clamp(least, 1.0)
    }

    /// Returns the parameters.
    pub fn options(&self) -> ControlLawOptions {
        self.0
    }
}

//! Axis scales: from values to positions, and round values for the labels.

use super::number::{UNITS, bytes, number};

/// Keeps differences finite.
const LARGEST: f64 = 1e300;

const SMALLEST_LOG: f64 = 1e-300;

const TICKS: f64 = 5.0;

/// Maximum part of a linear axis that is left empty to begin at zero.
const MAX_EMPTY: f64 = 0.1;

/// How the values of an axis are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Starting near the data.
    Linear,
    /// Values that are not above zero have no place.
    Log,
    /// Whole numbers, with half a unit of space at the ends.
    Whole,
    /// Linear, labelled in bytes.
    Bytes,
}

/// A quantity with its unit, and how it is shown.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity with its unit.
    pub name: String,
    /// How it is shown.
    pub kind: Kind,
}

impl Axis {
    /// Creates an axis; the name of a logarithmic one says so.
    pub fn new(name: impl Into<String>, kind: Kind) -> Axis {
        let mut name = name.into();
        if kind == Kind::Log {
            name += " (logarithmic)";
        }
        Axis { name, kind }
    }

    /// Creates a linear axis.
    pub fn linear(name: &str) -> Axis {
        Axis::new(name, Kind::Linear)
    }

    /// Creates a logarithmic axis.
    pub fn log(name: &str) -> Axis {
        Axis::new(name, Kind::Log)
    }

    /// Formats a value of the quantity.
    pub fn format(&self, value: f64) -> String {
        if self.kind == Kind::Bytes {
            bytes(value)
        } else {
            number(value)
        }
    }
}

/// Visible range of an axis, in decimal logarithms if it is logarithmic; the ends are finite and
/// differ.
#[derive(Clone, Debug)]
pub struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
}

impl Scale {
    /// Returns true if an axis of this kind has a place for a value.
    pub fn accepts(kind: Kind, value: f64) -> bool {
        value.abs() <= LARGEST && (kind != Kind::Log || value >= SMALLEST_LOG)
    }

    /// Creates a scale that covers all acceptable values.
    pub fn covering(kind: Kind, values: impl IntoIterator<Item = f64>) -> Scale {
        let accepted = values.into_iter().filter(|&v| Scale::accepts(kind, v));
        let ends = |(low, high): (f64, f64), v: f64| (low.min(v), high.max(v));
        let none = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut low, mut high) = accepted.map(|v| position(kind, v)).fold(none, ends);
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let size = low.abs().max(high.abs());
        if kind == Kind::Whole {
            let half = (size * 1e-9).max(0.5);
            (low, high) = (low - half, high + half);
            return Scale { kind, low, high };
        }
        if high - low <= size * 1e-9 {
            let pad = match kind {
                Kind::Log => 0.3,
                _ if size > 0.0 => size * 0.05,
                _ => 1.0,
            };
            (low, high) = (low - pad, high + pad);
        }
        let margin = (high - low) * 0.06;
        let from_zero = kind != Kind::Log && (0.0..=MAX_EMPTY * high).contains(&low);
        low = if from_zero { 0.0 } else { low - margin };
        high += margin;
        Scale { kind, low, high }
    }

    /// Returns the position of a value, from 0 to 1.
    pub fn fraction(&self, value: f64) -> f64 {
        let part = (position(self.kind, value) - self.low) / (self.high - self.low);
        if part.is_nan() {
            0.0
        } else {
            part.clamp(0.0, 1.0)
        }
    }

    /// Returns round values inside the range with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        if self.kind != Kind::Log {
            return linear_ticks(self.low, self.high, self.kind);
        }
        let (from, to) = (self.low.ceil() as i32, self.high.floor() as i32);
        let (low, high) = (10f64.powf(self.low), 10f64.powf(self.high));
        let parts: &[f64] = if to - from >= 2 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let step = ((to - from + 3).max(1) as usize).div_ceil(7);
        let exponents = (from - 1..=to + 1).step_by(step);
        let all = exponents.flat_map(|e| parts.iter().map(move |part| part * 10f64.powi(e)));
        let inside: Vec<f64> = all.filter(|v| (low..=high).contains(v)).collect();
        if inside.len() < 2 {
            return linear_ticks(low, high, Kind::Linear);
        }
        inside.into_iter().map(|v| (v, number(v))).collect()
    }
}

fn position(kind: Kind, value: f64) -> f64 {
    if kind == Kind::Log {
        value.max(SMALLEST_LOG).log10()
    } else {
        value
    }
}

/// Multiples of a round step.
fn linear_ticks(low: f64, high: f64, kind: Kind) -> Vec<(f64, String)> {
    let whole = kind == Kind::Whole;
    let rough = ((high - low) / TICKS).max(if whole { 1.0 } else { 0.0 });
    let size = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * size);
    let fits = |s: &f64| *s >= rough * (1.0 - 1e-9) && !(whole && s.fract() != 0.0);
    let step = steps.into_iter().find(fits).unwrap_or(rough);
    let first = (low / step).ceil();
    if !step.is_normal() || !first.is_finite() || first.abs() > 1e12 {
        return Vec::new();
    }
    let ticks = (0..=2 * TICKS as i32).map(|i| (first + f64::from(i)) * step);
    let inside = ticks.take_while(|&v| v <= high);
    inside
        .map(|v| (v, tick_label(v, step, high, kind)))
        .collect()
}

/// Formats a tick with as many decimals as its neighbours differ in.
fn tick_label(value: f64, step: f64, high: f64, kind: Kind) -> String {
    let fits = |unit: &(f64, &str)| high >= unit.0;
    let unit = UNITS.into_iter().filter(|_| kind == Kind::Bytes).find(fits);
    let (size, unit) = unit.unwrap_or((1.0, ""));
    let (value, step) = (value / size, step / size);
    if value.abs() >= 1e6 || step < 1e-6 {
        return number(value) + unit;
    }
    let scaled = |decimals: &usize| step * 10f64.powi(*decimals as i32);
    let exact = |decimals: &usize| (scaled(decimals) - scaled(decimals).round()).abs() < 1e-6;
    let decimals = (0..8).find(exact).unwrap_or(8);
    // Removes the sign of minus zero.
    format!("{:.decimals$}{unit}", value + 0.0)
}

#[cfg(test)]
mod tests;

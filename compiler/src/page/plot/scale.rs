//! From values to places on an axis, for any finite values, and where its labels stand.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::super::number::{bytes, number};

/// What an axis shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As the values are.
    Linear,
    /// As the values are, with zero in sight.
    FromZero,
    /// The logarithms of the values; what is not above zero has no place.
    Log,
    /// Whole numbers, each with room on both sides.
    Whole,
    /// Bytes, with zero in sight.
    Bytes,
}

/// An axis: what it shows, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The quantity, with its unit.
    pub name: String,
    /// How it is shown.
    pub kind: Kind,
}

impl Axis {
    /// An axis for a quantity.
    pub fn new(name: impl Into<String>, kind: Kind) -> Axis {
        Axis {
            name: name.into(),
            kind,
        }
    }

    /// A value as it is told of this quantity.
    pub fn tell(&self, value: f64) -> String {
        match self.kind {
            Kind::Bytes => bytes(value),
            _ => number(value),
        }
    }
}

/// A range of an axis with its labels; its bounds are finite and differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    kind: Kind,
    ticks: Vec<f64>,
}

impl Scale {
    /// A scale on which all of `values` have a place; values without a place are passed over.
    pub fn over(kind: Kind, values: impl IntoIterator<Item = f64>) -> Scale {
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        for value in values.into_iter().filter(|&v| has_place(kind, v)) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = if kind == Kind::Log {
                (0.1, 1.0)
            } else {
                (0.0, 1.0)
            };
        }
        match kind {
            Kind::Log => {
                // Below, numbers lose digits and logarithms their sense.
                (low, high) = (low.max(f64::MIN_POSITIVE), high.max(f64::MIN_POSITIVE));
                if high.log10() - low.log10() < 1e-9 {
                    low = (low / 2.0).max(f64::MIN_POSITIVE);
                    high = (high * 2.0).min(f64::MAX);
                }
                // Room on both sides, as on the other axes.
                let room = 10f64.powf((high.log10() - low.log10()) * 0.05);
                let low = (low / room).max(f64::MIN_POSITIVE);
                let high = (high * room).min(f64::MAX);
                Scale {
                    ticks: decades(low, high),
                    low,
                    high,
                    kind,
                }
            }
            Kind::Whole => {
                let ticks = steps(low, high, 6, 1.0);
                // Half of one is nothing beside very large numbers.
                let half = (low.abs().max(high.abs()) * 1e-9).max(0.5);
                Scale {
                    low: widened(low, -half),
                    high: widened(high, half),
                    kind,
                    ticks,
                }
            }
            Kind::Linear | Kind::FromZero | Kind::Bytes => {
                if kind != Kind::Linear {
                    low = low.min(0.0);
                    high = high.max(0.0);
                }
                let size = low.abs().max(high.abs());
                if high / 2.0 - low / 2.0 <= size * 1e-9 {
                    let by = if size > 0.0 { size * 0.05 } else { 1.0 };
                    low = widened(low, -by);
                    high = widened(high, by);
                }
                let margin = (high / 2.0 - low / 2.0) * 0.08;
                if low != 0.0 || kind == Kind::Linear {
                    low = widened(low, -margin);
                }
                if high != 0.0 || kind == Kind::Linear {
                    high = widened(high, margin);
                }
                Scale {
                    ticks: steps(low, high, 5, 0.0),
                    low,
                    high,
                    kind,
                }
            }
        }
    }

    /// The lower end.
    pub fn low(&self) -> f64 {
        self.low
    }

    /// The upper end.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// Whether a value has a place.
    pub fn has_place(&self, value: f64) -> bool {
        has_place(self.kind, value)
    }

    /// Where a value lies between the ends, 0 to 1.
    pub fn fraction(&self, value: f64) -> f64 {
        let part = if self.kind == Kind::Log {
            let of = |v: f64| v.max(f64::MIN_POSITIVE).log10();
            (of(value) - of(self.low)) / (of(self.high) - of(self.low))
        } else {
            // Halves: the difference of two finite numbers may be too large.
            (value / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0)
        };
        if part.is_nan() {
            0.0
        } else {
            part.clamp(0.0, 1.0)
        }
    }
}

fn has_place(kind: Kind, value: f64) -> bool {
    value.is_finite() && (kind != Kind::Log || value > 0.0)
}

fn widened(value: f64, by: f64) -> f64 {
    (value + by).clamp(f64::MIN, f64::MAX)
}

/// At most about `count` round numbers from `low` to `high`, at least `least` apart.
fn steps(low: f64, high: f64, count: usize, least: f64) -> Vec<f64> {
    let rough = ((high / 2.0 - low / 2.0) / count as f64 * 2.0).max(least);
    let size = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|m| m * size)
        .into_iter()
        .filter(|s| least == 0.0 || s.fract() == 0.0)
        .find(|&s| s >= rough * (1.0 - 1e-9))
        .unwrap_or(rough);
    let first = (low / step).ceil();
    if !step.is_normal() || !first.is_finite() || first.abs() > 1e12 {
        return vec![low, high];
    }
    (0..=2 * count)
        .map(|i| (first + i as f64) * step)
        .take_while(|&v| v <= high)
        .map(|v| if v == 0.0 { 0.0 } else { v })
        .collect()
}

/// Powers of ten between two positive numbers; where there are fewer than two, round numbers.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (from, to) = (low.log10().ceil() as i32, high.log10().floor() as i32);
    let count = (to - from + 1).max(0);
    if count < 3 {
        let tens = (from - 1..=to + 1).map(|e| 10f64.powi(e));
        let parts = tens.flat_map(|ten| [1.0, 2.0, 5.0].map(|part| part * ten));
        let inside: Vec<f64> = parts.filter(|v| (low..=high).contains(v)).collect();
        if inside.len() > 1 {
            return inside;
        }
        let round = steps(low, high, 4, 0.0);
        return round.into_iter().filter(|&v| v > 0.0).collect();
    }
    let every = (count as usize).div_ceil(6);
    (from..=to).step_by(every).map(|e| 10f64.powi(e)).collect()
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let length = f64::from(limit.1) - f64::from(limit.0);
        (f64::from(limit.0) + self.fraction(*value) * length).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        match self.kind {
            Kind::Bytes => bytes(*value),
            _ => number(*value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 5] = [
        Kind::Linear,
        Kind::FromZero,
        Kind::Log,
        Kind::Whole,
        Kind::Bytes,
    ];

    #[test]
    fn every_value_has_a_place_on_its_scale() {
        let cases: [&[f64]; 12] = [
            &[],
            &[0.0],
            &[5.0],
            &[-5.0],
            &[3.0, 3.0, 3.0],
            &[f64::MAX, f64::MIN],
            &[f64::MAX, f64::MAX],
            &[f64::MIN_POSITIVE, f64::MAX],
            &[5e-324, 0.0],
            &[1.0, 1.0 + 1e-15],
            &[f64::NAN, f64::INFINITY, 2.0],
            &[1e18, 1e18 + 1000.0],
        ];
        for kind in KINDS {
            for values in cases {
                let scale = Scale::over(kind, values.iter().copied());
                assert!(scale.low < scale.high, "{kind:?} {values:?}: {scale:?}");
                assert!(scale.low.is_finite() && scale.high.is_finite());
                assert!(scale.ticks.len() <= 16, "{kind:?} {values:?}: {scale:?}");
                for &value in values.iter().filter(|&&v| scale.has_place(v)) {
                    let at = scale.map(&value, (10, 110));
                    assert!((10..=110).contains(&at), "{kind:?} {values:?}");
                }
            }
        }
    }

    #[test]
    fn places_and_labels_equal_the_closed_form() {
        let scale = Scale::over(Kind::Whole, [0.0, 9.0]);
        assert_eq!(scale.ticks, [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(scale.map(&0.0, (0, 100)), 5);
        assert_eq!(scale.map(&9.0, (0, 100)), 95);
        let scale = Scale::over(Kind::Log, [1e-4, 1.0]);
        assert_eq!(scale.ticks, [1e-4, 1e-3, 1e-2, 1e-1, 1.0]);
        assert_eq!(scale.map(&1e-2, (0, 100)), 50);
        assert_eq!(scale.map(&1e-4, (0, 1100)), 50);
        let scale = Scale::over(Kind::FromZero, [0.4, 0.8]);
        assert_eq!(scale.low, 0.0);
        assert_eq!(scale.ticks, [0.0, 0.2, 0.4, 0.6000000000000001, 0.8]);
    }
}

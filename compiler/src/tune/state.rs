//! State of a tuning.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Decay rates of Adam (Kingma and Ba 2015), as in the prototype.
const BETAS: [f64; 2] = [0.9, 0.98];

const RATE: f64 = 2e-3;

const WARM_UP_STEPS: f64 = 5.0;

/// Prevents division by zero; far below any gradient.
const EPSILON: f64 = 1e-15;

/// Measurement on the held-out text.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct TuningPoint {
    /// Number of steps so far.
    pub step: usize,
    /// Mean divergence from the source, in nats.
    pub kl: f64,
    /// Divergence without refinements, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bases: Option<f64>,
}

impl TuningPoint {
    /// Divergence; with refinements the product of both, so that relative changes count.
    fn loss(&self) -> f64 {
        self.kl.max(0.0) * self.bases.map_or(1.0, |kl| kl.max(0.0))
    }
}

/// State of the descent. All vectors have one entry per tuned parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TuningState {
    /// Number of steps.
    pub step: usize,
    /// Measurements; the first is before the first step.
    pub trace: Vec<TuningPoint>,
    /// Relative change of each parameter.
    pub change: Vec<f32>,
    /// Changes at the best measurement.
    pub best: Vec<f32>,
    /// Means of the gradients, and roots of those of their squares.
    moments: [Vec<f32>; 2],
}

#[derive(Debug, Serialize, Deserialize)]
struct StateHeader {
    step: usize,
    trace: Vec<TuningPoint>,
}

impl TuningState {
    pub fn new(count: usize) -> TuningState {
        let zeros = || vec![0.0; count];
        TuningState {
            step: 0,
            trace: Vec::new(),
            change: zeros(),
            best: zeros(),
            moments: [zeros(), zeros()],
        }
    }

    /// Returns the first measurement with the smallest loss.
    pub fn best_point(&self) -> Option<TuningPoint> {
        let smaller = |best: TuningPoint, point: &TuningPoint| {
            if point.loss() < best.loss() {
                *point
            } else {
                best
            }
        };
        let (first, others) = self.trace.split_first()?;
        Some(others.iter().fold(*first, smaller))
    }

    pub fn measurements_since_best(&self) -> usize {
        let least = self.best_point().map_or(0, |point| point.step);
        self.trace.iter().filter(|point| point.step > least).count()
    }

    pub fn record(&mut self, kl: f64, bases: Option<f64>) {
        let step = self.step;
        self.trace.push(TuningPoint { step, kl, bases });
        if self.best_point().is_some_and(|least| least.step == step) {
            self.best.clone_from(&self.change);
        }
    }

    /// Takes a step of Adam; the rate warms up and decays linearly.
    pub fn descend(&mut self, gradients: impl IntoIterator<Item = f64>, steps: usize) {
        let at = self.step as f64 + 1.0;
        let left = 1.0 - self.step as f64 / steps.max(1) as f64;
        let rate = RATE * (at / WARM_UP_STEPS).min(1.0) * left;
        let corrections = BETAS.map(|beta| 1.0 - beta.powf(at));
        let [firsts, seconds] = &mut self.moments;
        let moments = firsts.iter_mut().zip(seconds);
        for ((change, (first, second)), g) in self.change.iter_mut().zip(moments).zip(gradients) {
            let root = f64::from(*second);
            *first = (BETAS[0] * f64::from(*first) + (1.0 - BETAS[0]) * g) as f32;
            let root = (BETAS[1] * root * root + (1.0 - BETAS[1]) * g * g).sqrt();
            *second = root as f32;
            let step = f64::from(*first) / corrections[0];
            let scale = root / corrections[1].sqrt() + EPSILON;
            *change -= (rate * step / scale) as f32;
        }
        self.step += 1;
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let head = StateHeader {
            step: self.step,
            trace: self.trace.clone(),
        };
        let mut bytes = serde_json::to_vec(&head).unwrap_or_default();
        bytes.push(b'\n');
        let [first, second] = &self.moments;
        for vector in [&self.change, &self.best, first, second] {
            bytes.extend(vector.iter().flat_map(|x| x.to_le_bytes()));
        }
        bytes
    }

    /// Parses a state of `count` parameters; `None` if invalid.
    pub fn from_bytes(bytes: &[u8], count: usize) -> Option<TuningState> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let StateHeader { step, trace } = serde_json::from_slice(&bytes[..end]).ok()?;
        let (numbers, []) = bytes[end + 1..].as_chunks::<4>() else {
            return None;
        };
        let numbers: Vec<f32> = numbers
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        if numbers.len() != 4 * count {
            return None;
        }
        let part = |index: usize| numbers[index * count..(index + 1) * count].to_vec();
        Some(TuningState {
            step,
            trace,
            change: part(0),
            best: part(1),
            moments: [part(2), part(3)],
        })
    }

    pub fn max_bytes(count: usize, steps: usize) -> usize {
        16 * count + 128 * (steps + 2)
    }
}

#[cfg(test)]
mod tests;

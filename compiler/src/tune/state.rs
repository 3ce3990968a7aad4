//! How far a tuning has come: all that the next step depends on.

use serde::{Deserialize, Serialize};

/// Changes of the relative step of a number from one step to the next are averaged with these (Kingma and Ba 2015),
/// as the prototype that this follows does.
const BETAS: [f64; 2] = [0.9, 0.98];

/// The largest relative change of a number in a step, about.
const RATE: f64 = 2e-3;

/// Steps until it is reached.
const WARM: f64 = 5.0;

/// Keeps a division from one by zero: far below any gradient.
const EPSILON: f64 = 1e-15;

/// What was measured on the text that stops.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Steps until then.
    pub step: usize,
    /// Mean divergence from the source, nats.
    pub kl: f64,
    /// That of the bases alone, where there are refinements beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bases: Option<f64>,
}

impl Point {
    /// What is to become small: of an artifact with refinements both of its ends count, by what they are relative to
    /// what they were.
    fn loss(&self) -> f64 {
        self.kl.max(0.0) * self.bases.map_or(1.0, |kl| kl.max(0.0))
    }
}

/// Where a descent is. All vectors are of the numbers that are tuned, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    /// Steps that were taken.
    pub step: usize,
    /// What was measured, first in front of the first step.
    pub trace: Vec<Point>,
    /// By how much each number differs from what it was, relative to that.
    pub change: Vec<f32>,
    /// The same, where least was measured.
    pub best: Vec<f32>,
    /// Running means of the gradients, and the roots of those of their squares.
    moments: [Vec<f32>; 2],
}

/// What is kept beside the vectors.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    step: usize,
    trace: Vec<Point>,
}

impl State {
    /// In front of the first step.
    pub fn new(count: usize) -> State {
        let zeros = || vec![0.0; count];
        State {
            step: 0,
            trace: Vec::new(),
            change: zeros(),
            best: zeros(),
            moments: [zeros(), zeros()],
        }
    }

    /// The point where least was measured; of equal ones the first.
    pub fn least(&self) -> Option<Point> {
        let smaller = |best: Point, point: &Point| match point.loss() < best.loss() {
            true => *point,
            false => best,
        };
        let (first, others) = self.trace.split_first()?;
        Some(others.iter().fold(*first, smaller))
    }

    /// Measurements since then.
    pub fn waiting(&self) -> usize {
        let least = self.least().map_or(0, |point| point.step);
        self.trace.iter().filter(|point| point.step > least).count()
    }

    /// Takes in what was measured here.
    pub fn measured(&mut self, kl: f64, bases: Option<f64>) {
        let step = self.step;
        self.trace.push(Point { step, kl, bases });
        if self.least().is_some_and(|least| least.step == step) {
            self.best.clone_from(&self.change);
        }
    }

    /// A step of Adam against the gradients with respect to the relative changes, of `steps`: its rate rises over the
    /// first ones and falls to nothing with the last.
    pub fn descend(&mut self, gradients: impl IntoIterator<Item = f64>, steps: usize) {
        let at = self.step as f64 + 1.0;
        let left = 1.0 - self.step as f64 / steps.max(1) as f64;
        let rate = RATE * (at / WARM).min(1.0) * left;
        let corrections = BETAS.map(|beta| 1.0 - beta.powf(at));
        let [firsts, seconds] = &mut self.moments;
        let moments = firsts.iter_mut().zip(seconds);
        for ((change, (first, second)), g) in self.change.iter_mut().zip(moments).zip(gradients) {
            let root = f64::from(*second);
            *first = (BETAS[0] * f64::from(*first) + (1.0 - BETAS[0]) * g) as f32;
            // The squares of small gradients would be none in float32, their roots are kept.
            let root = (BETAS[1] * root * root + (1.0 - BETAS[1]) * g * g).sqrt();
            *second = root as f32;
            let step = f64::from(*first) / corrections[0];
            let scale = root / corrections[1].sqrt() + EPSILON;
            *change -= (rate * step / scale) as f32;
        }
        self.step += 1;
    }

    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = Head {
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

    /// Of bytes; `None` where they are not those of a state of so many numbers.
    pub fn of_bytes(bytes: &[u8], count: usize) -> Option<State> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let Head { step, trace } = serde_json::from_slice(&bytes[..end]).ok()?;
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
        Some(State {
            step,
            trace,
            change: part(0),
            best: part(1),
            moments: [part(2), part(3)],
        })
    }

    /// Bytes of one at most, whatever was measured in so many steps.
    pub fn most_bytes(count: usize, steps: usize) -> usize {
        16 * count + 128 * (steps + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_its_bytes_and_others_are_none() {
        let mut state = State::new(3);
        state.measured(0.1 + 0.2, None);
        state.descend([1.0, -1e-12, 0.0], 10);
        state.measured(0.2, Some(1.0 / 3.0));
        let bytes = state.to_bytes();
        assert!(bytes.len() <= State::most_bytes(3, 10));
        assert_eq!(State::of_bytes(&bytes, 3), Some(state));
        assert_eq!(State::of_bytes(&bytes, 2), None);
        assert_eq!(State::of_bytes(&bytes[1..], 3), None);
        assert_eq!(State::of_bytes(&bytes[..bytes.len() - 1], 3), None);
    }

    /// Of a quadratic the minimum is approached, by numbers of any size of gradients alike.
    #[test]
    fn a_descent_goes_against_the_gradient_whatever_its_size() {
        for size in [1e-9, 1.0, 1e6] {
            let (goal, steps) = (0.02, 60);
            let mut state = State::new(2);
            for _ in 0..steps {
                let gradients = [state.change[0], -state.change[1]];
                let of = gradients.map(|x| size * (f64::from(x) - goal));
                state.descend([of[0], -of[1]], steps);
            }
            assert!(
                (f64::from(state.change[0]) - goal).abs() < 2e-3,
                "{:?}",
                state.change
            );
            assert!(
                (f64::from(state.change[1]) + goal).abs() < 2e-3,
                "{:?}",
                state.change
            );
        }
    }

    #[test]
    fn the_best_is_what_measured_least_and_the_first_of_equals() {
        let mut state = State::new(1);
        for (change, kl) in [(0.0, 0.5), (0.1, 0.4), (0.2, 0.4), (0.3, 0.6)] {
            state.change[0] = change;
            state.measured(kl, None);
            state.step += 1;
        }
        assert_eq!(state.best, [0.1]);
        assert_eq!(
            state.least(),
            Some(Point {
                step: 1,
                kl: 0.4,
                bases: None
            })
        );
        assert_eq!(state.waiting(), 2);
    }

    #[test]
    fn what_bases_lose_counts_against_what_all_gains() {
        let mut state = State::new(1);
        state.measured(0.4, Some(1.0));
        state.step = 1;
        state.measured(0.3, Some(1.5));
        assert_eq!(state.least().map(|point| point.step), Some(0));
        state.step = 2;
        state.measured(0.3, Some(1.2));
        assert_eq!(state.least().map(|point| point.step), Some(2));
    }
}

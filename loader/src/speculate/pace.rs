//! Choice of the draft length from measured acceptance and times.

use std::time::Duration;

/// Maximum draft length.
pub const LONGEST_DRAFT: usize = 16;

/// Initial tokens without a draft, as a baseline.
const ALONE: usize = 3;

/// Length and initial number of trial drafts.
const FIRST: usize = 4;
const TRIALS: usize = 3;

/// Rounds with drafts between two baseline tokens.
const BETWEEN: usize = 32;

/// Decay of measurements.
const MEMORY: f64 = 0.9;

/// Minimum speed-up for drafting.
const WORTH: f64 = 1.05;

/// Tokens until the next trial: initially, and at most.
const REST: [usize; 2] = [32, 1024];

/// Largest number of unread tokens for a trial, because reading them takes time.
const BEHIND: usize = 40;

/// Decay of acceptance over a pause.
const KEPT: f64 = 0.25;

/// Policy for the number of drafted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftLength {
    /// Fixed length, 1 to [`LONGEST_DRAFT`], while the context has space, except for baseline
    /// tokens: the first and one after every 32 drafts.
    Fixed(usize),
    /// Length of the highest measured throughput, possibly none.
    #[default]
    Auto,
}

#[derive(Clone, Debug)]
pub(super) struct Pace {
    length: DraftLength,
    /// Accepted and checked tokens.
    accepted: f64,
    looked_at: f64,
    /// Seconds of drafted tokens: sum and count.
    draft: [f64; 2],
    /// Seconds of passes over one row: sum and count.
    alone: [f64; 2],
    drafting: usize,
    /// Regression of seconds over `n` rows: weight, and sums of `n`, `n²`, seconds and `n` times
    /// seconds.
    passes: [f64; 5],
    resting: usize,
    rest: usize,
    trials: usize,
}

impl Pace {
    pub fn new(length: DraftLength) -> Self {
        Pace {
            length,
            accepted: 0.0,
            looked_at: 0.0,
            draft: [0.0; 2],
            alone: [0.0; 2],
            drafting: 0,
            passes: [0.0; 5],
            resting: ALONE,
            rest: REST[0],
            trials: TRIALS,
        }
    }

    /// Returns the draft length of the next round, at most `most`, with `behind` tokens unread by
    /// the draft.
    pub fn next(&mut self, most: usize, behind: usize) -> usize {
        let most = most.min(LONGEST_DRAFT);
        if let DraftLength::Fixed(length) = self.length {
            let unknown = self.alone[1] == 0.0 || self.drafting >= BETWEEN;
            return if unknown { 0 } else { length.min(most) };
        }
        if self.resting > 0 {
            self.resting -= 1;
            return 0;
        }
        if most == 0 || behind > BEHIND || self.drafting >= BETWEEN {
            return 0;
        }
        if self.trials > 0 {
            self.trials -= 1;
            return FIRST.min(most);
        }
        let (length, gain) = self.best(most);
        if gain >= WORTH {
            self.rest = REST[0];
            return length;
        }
        self.resting = self.rest;
        self.rest = (2 * self.rest).min(REST[1]);
        // The trial after a pause counts most.
        (self.accepted, self.looked_at) = (self.accepted * KEPT, self.looked_at * KEPT);
        self.draft = [0.0; 2];
        self.trials = 1;
        0
    }

    /// Returns the length of the highest throughput, and its speed-up.
    fn best(&self, most: usize) -> (usize, f64) {
        let [seconds, tokens] = self.alone;
        let alone = tokens / seconds.max(1e-9);
        let speeds = (1..=most).map(|length| (length, self.speed(length) / alone));
        speeds.fold(
            (0, 0.0),
            |best, next| if next.1 > best.1 { next } else { best },
        )
    }

    /// Returns tokens per second at a draft length: `(1 − α^(n+1)) / (1 − α)` per round with
    /// acceptance probability `α` (Leviathan et al. 2023, equation 1).
    fn speed(&self, length: usize) -> f64 {
        let acceptance = self.acceptance();
        let tokens: f64 = (0..=length).map(|n| acceptance.powi(n as i32)).sum();
        let [seconds, drafts] = self.draft;
        tokens / (length as f64 * seconds / drafts.max(1e-9) + self.pass(length + 1))
    }

    /// Returns the acceptance probability, with one prior observation of each outcome.
    fn acceptance(&self) -> f64 {
        (self.accepted + 1.0) / (self.looked_at + 2.0)
    }

    /// Returns the seconds of a pass over `n` rows.
    fn pass(&self, n: usize) -> f64 {
        let [weight, sum, squares, seconds, products] = self.passes;
        let spread = weight * squares - sum * sum;
        let mean = seconds / weight.max(1e-9);
        if spread <= 1e-9 * squares.max(1.0) {
            return mean.max(1e-9);
        }
        let slope = ((weight * products - sum * seconds) / spread).max(0.0);
        (mean + slope * (n as f64 - sum / weight)).max(1e-9)
    }

    /// Records a round.
    pub fn note(&mut self, length: usize, accepted: usize, draft: Duration, pass: Duration) {
        let (rows, seconds) = ((length + 1) as f64, pass.as_secs_f64());
        let measured = [1.0, rows, rows * rows, seconds, rows * seconds];
        for (sum, number) in self.passes.iter_mut().zip(measured) {
            *sum = *sum * MEMORY.sqrt() + number;
        }
        match length {
            0 => {
                let [sum, number] = &mut self.alone;
                *sum = *sum * MEMORY + seconds;
                *number = *number * MEMORY + 1.0;
                self.drafting = 0;
            }
            _ => self.drafting += 1,
        }
        if length > 0 {
            let looked_at = (accepted + 1).min(length);
            self.accepted = self.accepted * MEMORY + accepted as f64;
            self.looked_at = self.looked_at * MEMORY + looked_at as f64;
            let [sum, number] = &mut self.draft;
            *sum = *sum * MEMORY + draft.as_secs_f64();
            *number = *number * MEMORY + length as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chosen lengths, with constant costs in milliseconds.
    fn lengths(draft: f64, passes: impl Fn(usize) -> f64, accepted: usize) -> Vec<usize> {
        let mut pace = Pace::new(DraftLength::Auto);
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let round = |_| {
            let length = pace.next(100, 0);
            let time = ms(draft * length as f64);
            pace.note(length, accepted.min(length), time, ms(passes(length + 1)));
            length
        };
        (0..400).map(round).collect()
    }

    #[test]
    fn fixed_length_is_kept_except_for_baseline_tokens() {
        let mut pace = Pace::new(DraftLength::Fixed(3));
        let round = |_| {
            let length = pace.next(100, 0);
            pace.note(length, length, Duration::ZERO, Duration::from_millis(1));
            length
        };
        let found: Vec<usize> = (0..2 * (1 + BETWEEN)).map(round).collect();
        for (index, length) in found.into_iter().enumerate() {
            let alone = index.is_multiple_of(1 + BETWEEN);
            assert_eq!(length, if alone { 0 } else { 3 }, "{index}");
        }
        assert_eq!(pace.next(2, 0), 0);
        pace.note(0, 0, Duration::ZERO, Duration::from_millis(1));
        assert_eq!(pace.next(2, 0), 2);
    }

    #[test]
    fn cheap_perfect_draft_has_the_maximum_length() {
        let found = lengths(0.1, |n| 1.0 + 0.05 * n as f64, usize::MAX);
        let other = found[20..].iter().filter(|&&n| n != LONGEST_DRAFT);
        assert!(other.clone().all(|&n| n == 0), "{found:?}");
        assert!(other.count() <= 1 + found.len() / BETWEEN, "{found:?}");
    }

    /// A perfect draft as slow as the model does not pay off.
    #[test]
    fn baseline_time_is_not_derived_from_long_passes() {
        let found = lengths(
            0.6,
            |n| if n == 1 { 1.0 } else { 2.2 + 0.1 * n as f64 },
            usize::MAX,
        );
        let late = found[100..].iter().filter(|&&n| n > 0).count();
        assert!(late <= 6, "{found:?}");
    }

    #[test]
    fn useless_draft_is_tried_less_and_less() {
        let found = lengths(0.1, |n| 1.0 + 0.05 * n as f64, 0);
        let drafted = found.iter().filter(|&&n| n > 0).count();
        assert!(drafted < 40, "{drafted}");
        let late = found[200..].iter().filter(|&&n| n > 0).count();
        assert!(late <= drafted / 2, "{late} of {drafted}");
    }

    #[test]
    fn chosen_length_maximises_throughput() {
        let mut pace = Pace::new(DraftLength::Auto);
        for length in [0, 4, 2, 4, 6, 1] {
            let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            let rows = length as f64 + 1.0;
            pace.note(
                length,
                length / 2,
                time(0.2 * length as f64),
                time(0.9 + 0.1 * rows),
            );
        }
        let a = pace.acceptance();
        let speed = |n: usize| {
            let tokens = (1.0 - a.powi(n as i32 + 1)) / (1.0 - a);
            tokens / (0.2 * n as f64 + 0.9 + 0.1 * (n as f64 + 1.0))
        };
        let best = (1..=16).max_by(|&m, &n| speed(m).total_cmp(&speed(n)));
        let (found, gain) = pace.best(16);
        assert_eq!(Some(found), best);
        assert!((gain - speed(found)).abs() < 1e-6, "{gain}");
    }

    /// Chosen lengths, given seconds per drafted token and accepted tokens of each round.
    fn simulated_lengths(rounds: usize, does: impl Fn(usize) -> (f64, usize)) -> Vec<usize> {
        let mut pace = Pace::new(DraftLength::Auto);
        let round = |number| {
            let (draft, kept) = does(number);
            let length = pace.next(100, 0);
            let seconds = Duration::from_secs_f64;
            let pass = seconds(1.0 + 0.05 * length as f64);
            pace.note(
                length,
                kept.min(length),
                seconds(draft * length as f64),
                pass,
            );
            length
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn draft_that_becomes_useful_is_used() {
        let found = simulated_lengths(1000, |round| {
            (0.5, if round < 100 { 0 } else { usize::MAX })
        });
        let late = found[600..].iter().filter(|&&n| n > 0).count();
        assert!(late > 350, "{found:?}");
    }

    #[test]
    fn draft_with_many_unread_tokens_is_abandoned() {
        let mut pace = Pace::new(DraftLength::Auto);
        let (mut behind, mut tries) = (0, Vec::new());
        for round in 0..2000 {
            let length = pace.next(100, behind);
            behind = if length > 0 { 0 } else { behind + 1 };
            let pass = Duration::from_millis(100 + length as u64);
            pace.note(length, 0, Duration::from_millis(50 * length as u64), pass);
            if length > 0 {
                tries.push(round);
            }
        }
        let last = tries.last().copied().unwrap_or_default();
        assert!((30..100).contains(&last), "{tries:?}");
    }

    #[test]
    fn noisy_first_measurement_is_corrected() {
        let found = simulated_lengths(600, |round| {
            (if round < 10 { 5.0 } else { 0.2 }, usize::MAX)
        });
        let late = found[200..].iter().filter(|&&n| n > 0).count();
        assert!(late > 350, "{found:?}");
    }
}

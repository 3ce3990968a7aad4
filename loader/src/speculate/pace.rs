//! Choice of the draft length from measured acceptance and times.

use std::time::Duration;

/// Maximum draft length.
pub const MAX_DRAFT_LENGTH: usize = 16;

/// Initial tokens without a draft.
const BASELINE_TOKENS: usize = 3;

const TRIAL_LENGTH: usize = 4;
const INITIAL_TRIALS: usize = 3;

/// Rounds with drafts between two tokens without.
const BASELINE_INTERVAL: usize = 32;

const DECAY: f64 = 0.9;

const MIN_SPEED_UP: f64 = 1.05;

/// Tokens until the next trial: initially, and at most.
const PAUSE_TOKENS: [usize; 2] = [32, 1024];

/// Largest number of unread tokens for a trial, because reading them takes time.
const MAX_UNREAD_FOR_TRIAL: usize = 40;

const ACCEPTANCE_DECAY_OVER_PAUSE: f64 = 0.25;

/// Policy for the number of drafted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftLength {
    /// Fixed length, 1 to [`MAX_DRAFT_LENGTH`], while the context has space, except for baseline
    /// tokens.
    Fixed(usize),
    /// Length of the highest measured throughput, possibly none.
    #[default]
    Auto,
}

#[derive(Clone, Debug)]
pub(super) struct DraftLengthPolicy {
    length: DraftLength,
    accepted: f64,
    checked: f64,
    /// Seconds of drafted tokens: sum and count.
    draft: [f64; 2],
    /// Seconds of passes over one row: sum and count.
    single_row_passes: [f64; 2],
    rounds_since_baseline: usize,
    /// Regression of seconds: weight, and sums of `n`, `n²`, seconds and `n` times seconds.
    passes: [f64; 5],
    pause_left: usize,
    next_pause: usize,
    trials: usize,
}

impl DraftLengthPolicy {
    pub fn new(length: DraftLength) -> Self {
        DraftLengthPolicy {
            length,
            accepted: 0.0,
            checked: 0.0,
            draft: [0.0; 2],
            single_row_passes: [0.0; 2],
            rounds_since_baseline: 0,
            passes: [0.0; 5],
            pause_left: BASELINE_TOKENS,
            next_pause: PAUSE_TOKENS[0],
            trials: INITIAL_TRIALS,
        }
    }

    /// Returns the draft length of the next round, at most `most`; the draft has not read `behind`
    /// tokens.
    pub fn next_length(&mut self, most: usize, behind: usize) -> usize {
        let most = most.min(MAX_DRAFT_LENGTH);
        if let DraftLength::Fixed(length) = self.length {
            let unknown =
                self.single_row_passes[1] == 0.0 || self.rounds_since_baseline >= BASELINE_INTERVAL;
            return if unknown { 0 } else { length.min(most) };
        }
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return 0;
        }
        if most == 0
            || behind > MAX_UNREAD_FOR_TRIAL
            || self.rounds_since_baseline >= BASELINE_INTERVAL
        {
            return 0;
        }
        if self.trials > 0 {
            self.trials -= 1;
            return TRIAL_LENGTH.min(most);
        }
        let (length, gain) = self.best_length(most);
        if gain >= MIN_SPEED_UP {
            self.next_pause = PAUSE_TOKENS[0];
            return length;
        }
        self.pause_left = self.next_pause;
        self.next_pause = (2 * self.next_pause).min(PAUSE_TOKENS[1]);
        (self.accepted, self.checked) = (
            self.accepted * ACCEPTANCE_DECAY_OVER_PAUSE,
            self.checked * ACCEPTANCE_DECAY_OVER_PAUSE,
        );
        self.draft = [0.0; 2];
        self.trials = 1;
        0
    }

    /// Returns the length of the highest throughput, and its speed-up.
    fn best_length(&self, most: usize) -> (usize, f64) {
        let [seconds, tokens] = self.single_row_passes;
        let alone = tokens / seconds.max(1e-9);
        let speeds = (1..=most).map(|length| (length, self.tokens_per_second(length) / alone));
        speeds.fold(
            (0, 0.0),
            |best, next| if next.1 > best.1 { next } else { best },
        )
    }

    /// Returns tokens per second at a draft length: `(1 − α^(n+1)) / (1 − α)` per round with
    /// acceptance probability `α` (Leviathan et al. 2023, equation 1).
    fn tokens_per_second(&self, length: usize) -> f64 {
        let acceptance = self.acceptance();
        let tokens: f64 = (0..=length).map(|n| acceptance.powi(n as i32)).sum();
        let [seconds, drafts] = self.draft;
        tokens / (length as f64 * seconds / drafts.max(1e-9) + self.pass_seconds(length + 1))
    }

    /// Returns the acceptance probability, with one prior observation of each outcome.
    fn acceptance(&self) -> f64 {
        (self.accepted + 1.0) / (self.checked + 2.0)
    }

    fn pass_seconds(&self, n: usize) -> f64 {
        let [weight, sum, squares, seconds, products] = self.passes;
        let spread = weight * squares - sum * sum;
        let mean = seconds / weight.max(1e-9);
        if spread <= 1e-9 * squares.max(1.0) {
            return mean.max(1e-9);
        }
        let slope = ((weight * products - sum * seconds) / spread).max(0.0);
        (mean + slope * (n as f64 - sum / weight)).max(1e-9)
    }

    pub fn record_round(
        &mut self,
        length: usize,
        accepted: usize,
        draft: Duration,
        pass: Duration,
    ) {
        let (rows, seconds) = ((length + 1) as f64, pass.as_secs_f64());
        let measured = [1.0, rows, rows * rows, seconds, rows * seconds];
        for (sum, number) in self.passes.iter_mut().zip(measured) {
            *sum = *sum * DECAY.sqrt() + number;
        }
        match length {
            0 => {
                let [sum, number] = &mut self.single_row_passes;
                *sum = *sum * DECAY + seconds;
                *number = *number * DECAY + 1.0;
                self.rounds_since_baseline = 0;
            }
            _ => self.rounds_since_baseline += 1,
        }
        if length > 0 {
            let looked_at = (accepted + 1).min(length);
            self.accepted = self.accepted * DECAY + accepted as f64;
            self.checked = self.checked * DECAY + looked_at as f64;
            let [sum, number] = &mut self.draft;
            *sum = *sum * DECAY + draft.as_secs_f64();
            *number = *number * DECAY + length as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(draft: f64, passes: impl Fn(usize) -> f64, accepted: usize) -> Vec<usize> {
        let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let round = |_| {
            let length = pace.next_length(100, 0);
            let time = ms(draft * length as f64);
            pace.record_round(length, accepted.min(length), time, ms(passes(length + 1)));
            length
        };
        (0..400).map(round).collect()
    }

    #[test]
    fn fixed_length_is_kept_except_for_baseline_tokens() {
        let mut pace = DraftLengthPolicy::new(DraftLength::Fixed(3));
        let round = |_| {
            let length = pace.next_length(100, 0);
            pace.record_round(length, length, Duration::ZERO, Duration::from_millis(1));
            length
        };
        let found: Vec<usize> = (0..2 * (1 + BASELINE_INTERVAL)).map(round).collect();
        for (index, length) in found.into_iter().enumerate() {
            let alone = index.is_multiple_of(1 + BASELINE_INTERVAL);
            assert_eq!(length, if alone { 0 } else { 3 }, "{index}");
        }
        assert_eq!(pace.next_length(2, 0), 0);
        pace.record_round(0, 0, Duration::ZERO, Duration::from_millis(1));
        assert_eq!(pace.next_length(2, 0), 2);
    }

    #[test]
    fn cheap_perfect_draft_has_the_maximum_length() {
        let found = lengths(0.1, |n| 1.0 + 0.05 * n as f64, usize::MAX);
        let other = found[20..].iter().filter(|&&n| n != MAX_DRAFT_LENGTH);
        assert!(other.clone().all(|&n| n == 0), "{found:?}");
        assert!(
            other.count() <= 1 + found.len() / BASELINE_INTERVAL,
            "{found:?}"
        );
    }

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
        let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
        for length in [0, 4, 2, 4, 6, 1] {
            let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            let rows = length as f64 + 1.0;
            pace.record_round(
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
        let (found, gain) = pace.best_length(16);
        assert_eq!(Some(found), best);
        assert!((gain - speed(found)).abs() < 1e-6, "{gain}");
    }

    fn simulated_lengths(rounds: usize, does: impl Fn(usize) -> (f64, usize)) -> Vec<usize> {
        let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
        let round = |number| {
            let (draft, kept) = does(number);
            let length = pace.next_length(100, 0);
            let seconds = Duration::from_secs_f64;
            let pass = seconds(1.0 + 0.05 * length as f64);
            pace.record_round(
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
        let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
        let (mut behind, mut tries) = (0, Vec::new());
        for round in 0..2000 {
            let length = pace.next_length(100, behind);
            behind = if length > 0 { 0 } else { behind + 1 };
            let pass = Duration::from_millis(100 + length as u64);
            pace.record_round(length, 0, Duration::from_millis(50 * length as u64), pass);
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

//! How many tokens to draft: what an accepted token is worth against what drafting and verifying take.

use std::time::Duration;

/// Tokens that are drafted at most.
pub const LONGEST_DRAFT: usize = 16;

/// Tokens that are written without a draft in the beginning, to know what that takes.
const ALONE: usize = 3;

/// Tokens of drafts that are tried, before anything is known or behind a rest, and how many there are in the beginning.
const FIRST: usize = 4;
const TRIALS: usize = 3;

/// Rounds with drafts between two tokens that are written without, so that it stays known what that takes: a line through passes over several
/// rows does not say it.
const BETWEEN: usize = 32;

/// What a measurement weighs after the next one.
const MEMORY: f64 = 0.9;

/// By which drafting must be faster than writing without.
const WORTH: f64 = 1.05;

/// Tokens that are written without a draft before one is tried again: at first, and at most.
const REST: [usize; 2] = [32, 1024];

/// Tokens that a draft is tried behind at most, if it has to read them first: that is a batch and still takes a good part of what writing
/// them took, so that what may pay one day is not worth it again and again.
const BEHIND: usize = 40;

/// What is left over a rest of what was seen of acceptance: less than a trial says, enough for what is never right to be tried once.
const KEPT: f64 = 0.25;

/// How many tokens a draft has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftLength {
    /// So many as long as there is room, whether it pays or not: at least 1, at most [`LONGEST_DRAFT`]. Only the first token and
    /// one behind every 32 drafts are written without, to know what that takes.
    Fixed(usize),
    /// What writes most tokens in a second by the times and the acceptance that were measured so far, or
    /// none.
    #[default]
    Auto,
}

/// What was measured, and what follows.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    length: DraftLength,
    /// Tokens that were accepted, and those that were looked at: up to the first that was not.
    accepted: f64,
    looked_at: f64,
    /// Seconds of a drafted token: their sum and their number.
    draft: [f64; 2],
    /// Seconds of a pass over one row: their sum and their number. Only the next of these makes one count for less.
    alone: [f64; 2],
    /// Rounds with drafts since the last of these.
    drafting: usize,
    /// Seconds of a pass over `n` rows, as a line: weights, and sums of `n`, `n²`, seconds and `n` times seconds.
    passes: [f64; 5],
    /// Tokens still to be written without a draft.
    resting: usize,
    /// Tokens of the rest that comes next.
    rest: usize,
    /// Drafts still to be tried, whatever was measured.
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

    /// Tokens that the next round drafts, at most `most`, by a draft that has to read `behind` tokens first.
    pub fn next(&mut self, most: usize, behind: usize) -> usize {
        let most = most.min(LONGEST_DRAFT);
        if let DraftLength::Fixed(length) = self.length {
            let unknown = self.alone[1] == 0.0 || self.drafting >= BETWEEN;
            return if unknown { 0 } else { length.min(most) };
        }
        // First what a token takes without, then what a draft does.
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
        // Behind the rest a draft is tried, and judged by that: the text may be another, and what was measured may have been the
        // machine's doing.
        (self.accepted, self.looked_at) = (self.accepted * KEPT, self.looked_at * KEPT);
        self.draft = [0.0; 2];
        self.trials = 1;
        0
    }

    /// The length that writes most tokens in a second, and how much faster it is than none.
    fn best(&self, most: usize) -> (usize, f64) {
        let [seconds, tokens] = self.alone;
        let alone = tokens / seconds.max(1e-9);
        let speeds = (1..=most).map(|length| (length, self.speed(length) / alone));
        speeds.fold((0, 0.0), |best, next| match next.1 > best.1 {
            true => next,
            false => best,
        })
    }

    /// Tokens a second with drafts of so many: `(1 − α^(n+1)) / (1 − α)` of them a round, each drafted token being
    /// accepted with probability `α` (Leviathan et al. 2023, equation 1).
    fn speed(&self, length: usize) -> f64 {
        let acceptance = self.acceptance();
        let tokens: f64 = (0..=length).map(|n| acceptance.powi(n as i32)).sum();
        let [seconds, drafts] = self.draft;
        tokens / (length as f64 * seconds / drafts.max(1e-9) + self.pass(length + 1))
    }

    /// The probability that a drafted token is accepted, with one seen of either kind to begin with.
    fn acceptance(&self) -> f64 {
        (self.accepted + 1.0) / (self.looked_at + 2.0)
    }

    /// Seconds of a pass over `n` rows: the line through those that were measured.
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

    /// Takes what a round of `length` drafted tokens, of which so many were accepted, took.
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

    /// Rounds with constant costs in milliseconds, in which every draft has its first `accepted` tokens accepted; the
    /// lengths that were chosen.
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
    fn a_fixed_length_is_kept_but_for_what_a_token_takes_without() {
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
    fn a_cheap_draft_that_is_always_right_is_as_long_as_it_may_be() {
        let found = lengths(0.1, |n| 1.0 + 0.05 * n as f64, usize::MAX);
        // But for the tokens that tell what writing without takes.
        let other = found[20..].iter().filter(|&&n| n != LONGEST_DRAFT);
        assert!(other.clone().all(|&n| n == 0), "{found:?}");
        assert!(other.count() <= 1 + found.len() / BETWEEN, "{found:?}");
    }

    /// Passes over several rows that take little more for each do not make one over a single row dear: what is always right and as dear
    /// as the model itself does not pay.
    #[test]
    fn what_a_token_takes_without_a_draft_is_not_forgotten() {
        let found = lengths(
            0.6,
            |n| if n == 1 { 1.0 } else { 2.2 + 0.1 * n as f64 },
            usize::MAX,
        );
        let late = found[100..].iter().filter(|&&n| n > 0).count();
        assert!(late <= 6, "{found:?}");
    }

    #[test]
    fn a_draft_that_is_never_right_is_tried_ever_less() {
        let found = lengths(0.1, |n| 1.0 + 0.05 * n as f64, 0);
        let drafted = found.iter().filter(|&&n| n > 0).count();
        assert!(drafted < 40, "{drafted}");
        let late = found[200..].iter().filter(|&&n| n > 0).count();
        assert!(late <= drafted / 2, "{late} of {drafted}");
    }

    /// Right half of the time, so that a token is worth drafting only while it costs less than it brings.
    #[test]
    fn a_length_is_the_best_of_all() {
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

    /// Rounds of a length chosen by itself, with what the next of them does: seconds of a drafted token, and how many of a
    /// draft are kept. The lengths.
    fn of(rounds: usize, does: impl Fn(usize) -> (f64, usize)) -> Vec<usize> {
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
    fn a_draft_that_begins_to_pay_is_found() {
        let found = of(1000, |round| {
            (0.5, if round < 100 { 0 } else { usize::MAX })
        });
        let late = found[600..].iter().filter(|&&n| n > 0).count();
        assert!(late > 350, "{found:?}");
    }

    /// Another model is tried again while it has little to read, and left behind that.
    #[test]
    fn a_draft_that_would_have_much_to_read_is_left() {
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
    fn a_first_measurement_that_was_noise_is_measured_again() {
        let found = of(600, |round| {
            (if round < 10 { 5.0 } else { 0.2 }, usize::MAX)
        });
        let late = found[200..].iter().filter(|&&n| n > 0).count();
        assert!(late > 350, "{found:?}");
    }
}

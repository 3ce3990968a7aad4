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
mod tests;

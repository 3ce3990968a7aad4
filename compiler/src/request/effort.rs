//! How much work goes into how close an artifact is.

use std::fmt;
use std::str::FromStr;

use htc_formats::block::BlockFit;

use super::DEFAULT_TOKENS;
use super::goal::NEIGHBOURS;

/// How much work goes into how close an artifact is: [`Effort::work`] says what each sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effort {
    /// For trying something out.
    Fast,
    /// What pays.
    #[default]
    Normal,
    /// Where minutes do not count.
    High,
}

/// What an effort sets. Whatever is asked for by an option of its own goes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Tokens of each calibration text at most.
    pub calibration_tokens: usize,
    /// Tokens that gradients are taken of, about.
    pub gradient_tokens: usize,
    /// Sweeps of coordinate descent over the codes at most, behind the first choice of them.
    pub sweeps: usize,
    /// Rows of a matrix that are coded to find out what it loses in a type, at most.
    pub sampled_rows: usize,
    /// Steps in which norms and scales of rows are tuned beside codes.
    pub tune_steps: usize,
    /// Files in one type that are measured beside an artifact in codes, at most.
    pub compared: usize,
}

impl Effort {
    /// All of them.
    pub const ALL: [Effort; 3] = [Effort::Fast, Effort::Normal, Effort::High];

    /// The name used on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Effort::Fast => "fast",
            Effort::Normal => "normal",
            Effort::High => "high",
        }
    }

    /// What it sets.
    pub const fn work(self) -> Work {
        match self {
            Effort::Fast => Work {
                calibration_tokens: 16_384,
                gradient_tokens: 4096,
                sweeps: 0,
                sampled_rows: 64,
                tune_steps: 0,
                compared: 0,
            },
            Effort::Normal => Work {
                calibration_tokens: DEFAULT_TOKENS,
                gradient_tokens: 16_384,
                sweeps: 2,
                sampled_rows: 128,
                tune_steps: 20,
                compared: NEIGHBOURS,
            },
            Effort::High => Work {
                calibration_tokens: 4 * DEFAULT_TOKENS,
                gradient_tokens: 65_536,
                sweeps: 8,
                sampled_rows: 512,
                tune_steps: 120,
                compared: BlockFit::TYPES.len(),
            },
        }
    }
}

impl FromStr for Effort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Effort::ALL.into_iter().find(|effort| effort.name() == text);
        known.ok_or_else(|| "an effort is fast, normal or high".to_owned())
    }
}

/// As it is typed.
impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

as_typed!(Effort);

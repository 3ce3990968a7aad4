//! Compilation effort.

use htc_formats::block::BlockFit;

use super::DEFAULT_TOKENS;
use super::compile::COMPARISON_FILES;

/// Trade-off of compilation time against quality; [`Effort::settings`] returns the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effort {
    /// For experiments.
    Fast,
    /// Recommended.
    #[default]
    Normal,
    /// For long compilations.
    High,
}

/// Settings of an effort level. Explicit options take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffortSettings {
    /// Maximum tokens of each calibration text.
    pub calibration_tokens: usize,
    /// Approximate number of tokens for gradients.
    pub gradient_tokens: usize,
    /// Maximum sweeps of coordinate descent over the codes after their initial choice.
    pub sweeps: usize,
    /// Maximum rows of a matrix that are coded to measure its loss in a type.
    pub sampled_rows: usize,
    /// Tuning steps for norms and row scales with codes.
    pub tune_steps: usize,
    /// Maximum number of single-type files measured for comparison with a coded artifact.
    pub max_comparison_files: usize,
}

impl Effort {
    pub(super) fn is_default(&self) -> bool {
        *self == Effort::default()
    }

    /// Returns the settings.
    pub const fn settings(self) -> EffortSettings {
        match self {
            Effort::Fast => EffortSettings {
                calibration_tokens: 16_384,
                gradient_tokens: 4096,
                sweeps: 0,
                sampled_rows: 64,
                tune_steps: 0,
                max_comparison_files: 0,
            },
            Effort::Normal => EffortSettings {
                calibration_tokens: DEFAULT_TOKENS,
                gradient_tokens: 16_384,
                sweeps: 2,
                sampled_rows: 128,
                tune_steps: 20,
                max_comparison_files: COMPARISON_FILES,
            },
            Effort::High => EffortSettings {
                calibration_tokens: 4 * DEFAULT_TOKENS,
                gradient_tokens: 65_536,
                sweeps: 8,
                sampled_rows: 512,
                tune_steps: 120,
                max_comparison_files: BlockFit::TYPES.len(),
            },
        }
    }
}

named!(Effort, "fast, normal or high", Fast: "fast", Normal: "normal", High: "high");

//! How a draft followed a text, as `cargo run --release -p htc-loader --example drift` writes it.

use serde::Deserialize;

/// Points of a record: a page shows them all.
pub const MAX_POINTS: usize = 4096;

/// One run of a draft over texts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Drift {
    /// The model that wrote.
    pub model: String,
    /// The artifact that drafted for it.
    pub draft: String,
    /// How the draft learnt, `off` where it did not.
    pub learns: String,
    /// In the order of time.
    pub points: Vec<DriftPoint>,
}

/// Some windows of a text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DriftPoint {
    /// The text.
    pub text: String,
    /// Windows of this text so far.
    pub windows: u64,
    /// The part of the drafted tokens that was kept, the mean over windows.
    pub acceptance: f64,
    /// Its standard error over windows.
    pub standard_error: f64,
    /// The logarithm of the draft's perplexity over the model's, on windows that neither had read.
    pub log_perplexity_ratio: f64,
    /// Its standard error over windows.
    pub log_perplexity_ratio_error: f64,
    /// `‖P_t − P_0‖_F`, or of a correction `‖B A‖_F`.
    pub distance: f64,
    /// `tr(P_t P_0) / r`.
    pub overlap: Option<f64>,
    /// The part of the energy of differences that bases do not hold.
    pub residual: Option<f64>,
    /// The same of the bases as they began.
    pub residual_frozen: Option<f64>,
}

impl Drift {
    /// What the page counts on.
    pub(super) fn check(&self) -> Result<(), String> {
        let found = self.points.len();
        if found > MAX_POINTS {
            Err(format!(
                "points: expected at most {MAX_POINTS}, found {found}"
            ))
        } else {
            Ok(())
        }
    }
}

//! Request of a selection and its candidates.

use crate::calibrate::Calibration;
use crate::calibrate::windows::{HeldOut, Windows};
use crate::options::{
    BiasArg, GaugeKind, OptionError, QualityLimit, Shrinkage, ShrinkageArg, Treatment,
    TreatmentOptions,
};

const GAUGES: [GaugeKind; 3] = [GaugeKind::Whiten, GaugeKind::Activation, GaugeKind::None];

/// Request of a selection and the available data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChoiceRequest {
    /// Number of plans tried; zero counts as one.
    pub plans: usize,
    /// Requested treatment; missing parts are chosen by measurement.
    pub treatment: TreatmentOptions,
    /// Maximum loss, if any.
    pub limit: QualityLimit,
    /// True if activations are available.
    pub calibrated: bool,
    /// True if held-out text is available.
    pub held_out: bool,
    /// Tuning steps for norms and rows; 0 for none.
    pub tune: usize,
    /// True if tuning steps were requested, not a default.
    pub tune_is_explicit: bool,
}

impl ChoiceRequest {
    pub(super) fn candidate_treatments(&self) -> Result<Vec<Treatment>, OptionError> {
        let first = self.treatment.resolve(self.calibrated)?;
        let open = self.treatment.gauge.is_none() && self.calibrated && self.held_out;
        let gauges = if open { &GAUGES[..] } else { &[first.gauge] };
        let with = |&gauge: &GaugeKind| Treatment { gauge, ..first };
        Ok(gauges.iter().map(with).collect())
    }

    pub(super) fn tries_shrinkages(&self) -> bool {
        self.treatment.shrinkage == Some(ShrinkageArg::Auto)
    }

    pub(super) fn tries_biases(&self) -> bool {
        let open = matches!(self.treatment.bias, None | Some(BiasArg::Auto));
        open && self.calibrated && self.held_out
    }

    /// Returns true if held-out text is needed for a choice.
    pub fn needs_selection(&self) -> bool {
        self.candidates() > 1 || (self.held_out && self.tune > 0)
    }

    pub(super) fn test_windows(&self, held_out: &HeldOut) -> Option<Windows> {
        if self.needs_selection() {
            held_out.test()
        } else {
            held_out.all()
        }
    }

    /// Returns true if the quality of the result is measured.
    pub fn measures(&self, calibration: Option<&Calibration>) -> bool {
        let held_out = calibration.and_then(|found| found.held_out.as_ref());
        held_out.is_some_and(|held_out| self.test_windows(held_out).is_some())
    }

    /// Returns the number of candidates; for a search the maximum.
    pub fn candidates(&self) -> usize {
        if !self.held_out {
            return 1;
        }
        let gauges = match self.treatment.gauge {
            None if self.calibrated => GAUGES.len(),
            Some(gauge) if gauge.needs_measurement() => 2,
            _ => 1,
        };
        // The largest ratio, and seven halvings of a hundred.
        let ratios = if self.limit.is_none() { 0 } else { 8 };
        let shrinkages = if self.tries_shrinkages() {
            Shrinkage::CANDIDATES.len()
        } else {
            0
        };
        let plans = self.plans.saturating_sub(1);
        gauges + shrinkages + usize::from(self.tries_biases()) + ratios + plans
    }
}

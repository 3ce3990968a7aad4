//! What is asked for, and which candidates that makes.

use crate::calibrate::Calibration;
use crate::calibrate::windows::{HeldOut, Windows};
use crate::request::{
    BiasArg, GaugeKind, Goal, Shrinkage, ShrinkageArg, Treatment, TreatmentError, TreatmentRequest,
};

/// Gauges that are tried where none is asked for; of equal ones the first counts.
const GAUGES: [GaugeKind; 3] = [GaugeKind::Whiten, GaugeKind::Activation, GaugeKind::None];

/// What is asked for, and what there is to decide it by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChoiceRequest {
    /// Plans that are tried with the best treatment; zero counts as one.
    pub plans: usize,
    /// How weights are to be treated; where it is silent, the best is found.
    pub treatment: TreatmentRequest,
    /// What is to be reached.
    pub goal: Goal,
    /// Whether there are activations.
    pub calibrated: bool,
    /// Whether there is text to measure on.
    pub held_out: bool,
    /// Steps that norms and rows are tuned in; 0 for none.
    pub tune: usize,
}

impl ChoiceRequest {
    /// Treatments with the gauges that are compared; of equal ones the first counts.
    pub(super) fn gauges(&self) -> Result<Vec<Treatment>, TreatmentError> {
        let first = self.treatment.resolve(self.calibrated)?;
        let open = self.treatment.gauge.is_none() && self.calibrated && self.held_out;
        let gauges = if open { &GAUGES[..] } else { &[first.gauge] };
        let with = |&gauge: &GaugeKind| Treatment { gauge, ..first };
        Ok(gauges.iter().map(with).collect())
    }

    /// Whether the best shrinkage is to be found.
    pub(super) fn tries_shrinkages(&self) -> bool {
        self.treatment.shrinkage == Some(ShrinkageArg::Auto)
    }

    /// Whether biases are tried.
    pub(super) fn tries_biases(&self) -> bool {
        let open = matches!(self.treatment.bias, None | Some(BiasArg::Auto));
        open && self.calibrated && self.held_out
    }

    /// Whether held-out text is to decide anything.
    pub fn decides(&self) -> bool {
        self.candidates() > 1 || (self.held_out && self.tune > 0)
    }

    /// The held-out windows that the quality of what is chosen is measured on: those that decide nothing.
    pub(super) fn reporting(&self, held_out: &HeldOut) -> Option<Windows> {
        match self.decides() {
            true => held_out.reporting(),
            false => held_out.all(),
        }
    }

    /// Whether the quality of what is chosen is measured.
    pub fn measures(&self, calibration: Option<&Calibration>) -> bool {
        let held_out = calibration.and_then(|found| found.held_out.as_ref());
        held_out.is_some_and(|held_out| self.reporting(held_out).is_some())
    }

    /// Candidates that are made; of a search at most.
    pub fn candidates(&self) -> usize {
        if !self.held_out {
            return 1;
        }
        let gauges = match self.treatment.gauge {
            None if self.calibrated => GAUGES.len(),
            Some(gauge) if gauge.is_unproven() => 2,
            _ => 1,
        };
        // The largest ratio, and seven halvings of a hundred.
        let ratios = if self.goal.limit.is_none() { 0 } else { 8 };
        let shrinkages = match self.tries_shrinkages() {
            true => Shrinkage::TRIED.len(),
            false => 0,
        };
        let plans = self.plans.saturating_sub(1);
        gauges + shrinkages + usize::from(self.tries_biases()) + ratios + plans
    }
}

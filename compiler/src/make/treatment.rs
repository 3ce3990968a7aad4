//! What became of the slots that were factorised: errors, gauges, sinks.

use htc_formats::model::{MatrixId, Slot};
use serde::{Deserialize, Serialize};

use crate::math::random_coverage;
use crate::plan::{Member, UnitPlan};
use crate::unit::{Found, Norm};

/// A slot that was factorised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSlot {
    /// Index of the block.
    pub layer: usize,
    /// Which of the seven.
    pub slot: Slot,
    /// `‖W − Ŵ‖_F / ‖W‖_F`, of what is stored.
    pub error: f64,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` on the calibration, of what is stored; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<f64>,
    /// The smallest error that the rank allows, before storing, in the norm of [`norm`](Self::norm);
    /// for slots that share a basis that of all of them. Absent where channels are exempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// What [`predicted`](Self::predicted) is measured in.
    pub norm: Norm,
}

/// The embedding or the head, in factors or encoded anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredMatrix {
    /// Which of them.
    pub matrix: MatrixId,
    /// `‖W − Ŵ‖_F / ‖W‖_F`, of what is stored.
    pub error: f64,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` on the calibration, of what is stored; absent without one, and for an
    /// embedding that is not the head as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<f64>,
    /// The smallest error that the rank allows, before storing, in the norm of [`norm`](Self::norm). Absent
    /// where it is no truncation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// What [`predicted`](Self::predicted) is measured in.
    pub norm: Norm,
}

/// The search for the axiom gauge of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxiomSearch {
    /// Index of the block.
    pub layer: usize,
    /// Tail energy of the layer's slots at their ranks, without a gauge.
    pub before: f64,
    /// The same under the gauge, in its coordinates.
    pub after: f64,
    /// The tail energy before the first and after every iteration.
    pub trace: Vec<f64>,
}

/// How the factors of a unit meet the direction of the first position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkCoverage {
    /// Index of the block.
    pub layer: usize,
    /// The slots that the factors belong to.
    pub slots: Vec<Slot>,
    /// How much of the direction they cover without help, 0 to 1.
    pub coverage: f64,
    /// The largest part of it that a single component has.
    pub largest: f64,
    /// The threshold: how much of any direction a basis of this rank in random directions covers, `(k/d)^½`.
    /// Factors below it avoid the direction and are completed, unless they reproduce it nevertheless.
    pub random: f64,
    /// Whether a component was given up for it, which is the first then.
    pub appended: bool,
}

/// Input channels that the factors of a unit keep exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExemptChannels {
    /// Index of the block.
    pub layer: usize,
    /// The slots that the factors belong to.
    pub slots: Vec<Slot>,
    /// The channels, ascending, in the order in which they are stored.
    pub channels: Vec<usize>,
}

/// What became of all slots that were factorised, in the order of execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TreatmentReport {
    /// One for every slot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<MeasuredSlot>,
    /// One for each matrix outside of blocks that is not kept as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured_matrices: Vec<MeasuredMatrix>,
    /// One for every layer with an axiom gauge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axiom: Vec<AxiomSearch>,
    /// One for every decomposition that must not miss a direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sinks: Vec<SinkCoverage>,
    /// One for every unit with exact channels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<ExemptChannels>,
}

impl TreatmentReport {
    /// Takes in a unit; units come in the order of execution.
    pub(crate) fn add(&mut self, unit: &UnitPlan, factors: &Found) {
        let Some(layer) = unit.layer() else {
            self.add_outside(unit, factors);
            return;
        };
        let slots: Vec<Slot> = unit.members.iter().filter_map(Member::slot).collect();
        let members = slots.iter().zip(&factors.errors).enumerate();
        self.measured
            .extend(members.map(|(index, (&slot, &error))| MeasuredSlot {
                layer,
                slot,
                error,
                output_error: factors.output_errors.get(index).copied(),
                predicted: factors.predicted.as_ref().map(|of| of[index]),
                norm: factors.norm,
            }));
        let cols = unit.members.first().map_or(1, |member| member.cols.max(1));
        let random = random_coverage(unit.rank().unwrap_or(cols), cols);
        for sink in &factors.sinks {
            self.sinks.push(SinkCoverage {
                layer,
                slots: slots.clone(),
                coverage: sink.coverage.norm,
                largest: sink.coverage.largest,
                random,
                appended: sink.appended,
            });
        }
        if !factors.exempt.is_empty() {
            self.exempt.push(ExemptChannels {
                layer,
                slots,
                channels: factors.exempt.clone(),
            });
        }
        // Every unit of a layer says the same.
        let is_new = self.axiom.last().is_none_or(|known| known.layer != layer);
        if let Some(trace) = factors.axiom.as_ref().filter(|_| is_new)
            && let (Some(&before), Some(&after)) = (trace.first(), trace.last())
        {
            self.axiom.push(AxiomSearch {
                layer,
                before,
                after,
                trace: trace.clone(),
            });
        }
    }

    /// Takes in a unit outside of blocks.
    fn add_outside(&mut self, unit: &UnitPlan, factors: &Found) {
        let members = unit.members.iter().zip(&factors.errors).enumerate();
        self.measured_matrices
            .extend(members.map(|(index, (member, &error))| MeasuredMatrix {
                matrix: member.matrix,
                error,
                output_error: factors.output_errors.get(index).copied(),
                predicted: factors.predicted.as_ref().map(|of| of[index]),
                norm: factors.norm,
            }));
    }

    /// The errors of the outputs of slots, where they are measured.
    pub(crate) fn output_errors(&self) -> Vec<(Slot, f64)> {
        let errors = self.measured.iter();
        errors
            .filter_map(|of| Some((of.slot, of.output_error?)))
            .collect()
    }

    /// The lowest and the highest threshold of [`sinks`](Self::sinks).
    pub(crate) fn sink_thresholds(&self) -> [f64; 2] {
        let of = || self.sinks.iter().map(|sink| sink.random);
        [of().fold(f64::INFINITY, f64::min), of().fold(0.0, f64::max)]
    }

    /// For people, a line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.axiom.is_empty() {
            let sum = |of: fn(&AxiomSearch) -> f64| self.axiom.iter().map(of).sum::<f64>();
            let (before, after) = (sum(|a| a.before), sum(|a| a.after));
            let iterations: usize = self.axiom.iter().map(|a| a.trace.len() - 1).sum();
            let change = match before > 0.0 {
                true => format!(" ({:+.1} %)", 100.0 * (after / before - 1.0)),
                false => String::new(),
            };
            lines.push(format!(
                "axiom       tail energy {before:.4} -> {after:.4}{change} in the gauge's coordinates, {} layers, {iterations} iterations",
                self.axiom.len()
            ));
        }
        if !self.sinks.is_empty() {
            let appended = self.sinks.iter().filter(|sink| sink.appended).count();
            let lowest = self.sinks.iter().map(|sink| sink.coverage);
            let lowest = lowest.fold(f64::INFINITY, f64::min);
            let [least, most] = self.sink_thresholds();
            lines.push(format!(
                "sinks       {appended} of {} bases got the direction of the first position, as they cover less of it than random ones of their ranks would ({least:.3} to {most:.3}); the lowest coverage was {lowest:.3}",
                self.sinks.len(),
            ));
        }
        if let Some(first) = self.exempt.first() {
            lines.push(format!(
                "sinks       {} input channels exact in each of {} bases",
                first.channels.len(),
                self.exempt.len()
            ));
        }
        lines
    }
}

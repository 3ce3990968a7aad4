//! Report of factorised projections: errors, gauges, sinks.

use htc_formats::model::{MatrixId, ProjectionKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::math::random_coverage;
use crate::plan::{UnitMatrix, UnitPlan};
use crate::system::show::format_count;
use crate::unit::{Norm, UnitMeasurements};

/// Measurements of a factorised projection.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct MeasuredProjection {
    /// Index of the layer.
    pub layer: usize,
    /// The projection.
    pub projection: ProjectionKind,
    /// `‖W − Ŵ‖_F / ‖W‖_F`, after storing.
    pub error: f64,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` on the calibration, after storing; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<f64>,
    /// Smallest error possible at the rank, in the norm of [`norm`](Self::norm); for a shared basis
    /// that of all its projections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// Norm of [`predicted`](Self::predicted).
    pub norm: Norm,
}

/// Measurements of the embedding or the head, factorised or encoded.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct MeasuredMatrix {
    /// The matrix.
    pub matrix: MatrixId,
    /// `‖W − Ŵ‖_F / ‖W‖_F`, after storing.
    pub error: f64,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` on the calibration, after storing; absent without one, and
    /// for an embedding that is not also the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<f64>,
    /// Smallest error possible at the rank, in the norm of [`norm`](Self::norm).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// Norm of [`predicted`](Self::predicted).
    pub norm: Norm,
}

/// Search for the axiom gauge of a layer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AxiomSearch {
    /// Index of the layer.
    pub layer: usize,
    /// Tail energy of the layer's projections, without a gauge.
    pub before: f64,
    /// Tail energy under the gauge, in its coordinates.
    pub after: f64,
    /// Tail energy before the first and after every iteration.
    pub trace: Vec<f64>,
}

/// Coverage of the sink direction by the factors of a unit.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SinkCoverage {
    /// Index of the layer.
    pub layer: usize,
    /// Projections of the factors.
    pub projections: Vec<ProjectionKind>,
    /// Coverage of the direction without protection, 0 to 1.
    pub coverage: f64,
    /// Largest coverage by a single component.
    pub largest: f64,
    /// Threshold: coverage by a random basis of this rank, `(k/d)^½`. Factors below it are
    /// completed, unless they reproduce the direction.
    pub random: f64,
    /// Set if the direction became the first component.
    pub appended: bool,
}

/// Input channels that the factors of a unit keep exact.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ExemptChannels {
    /// Index of the layer.
    pub layer: usize,
    /// Projections of the factors.
    pub projections: Vec<ProjectionKind>,
    /// The channels, ascending, in stored order.
    pub channels: Vec<usize>,
}

/// Measurements of all factorised projections, in the order of execution.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct TreatmentReport {
    /// One per projection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<MeasuredProjection>,
    /// One per matrix outside of layers that is not kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured_matrices: Vec<MeasuredMatrix>,
    /// One per layer with an axiom gauge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axiom: Vec<AxiomSearch>,
    /// One per decomposition with sink protection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sinks: Vec<SinkCoverage>,
    /// One per unit with exact channels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<ExemptChannels>,
}

impl TreatmentReport {
    /// Adds a unit; units come in the order of execution.
    pub(crate) fn add(&mut self, unit: &UnitPlan, factors: &UnitMeasurements) {
        let Some(layer) = unit.layer() else {
            self.add_outside(unit, factors);
            return;
        };
        let projections: Vec<ProjectionKind> = unit
            .members
            .iter()
            .filter_map(UnitMatrix::projection)
            .collect();
        let members = projections.iter().zip(&factors.errors).enumerate();
        self.measured.extend(
            members.map(|(index, (&projection, &error))| MeasuredProjection {
                layer,
                projection,
                error,
                output_error: factors.output_errors.get(index).copied(),
                predicted: factors.predicted.as_ref().map(|of| of[index]),
                norm: factors.norm,
            }),
        );
        let cols = unit.members.first().map_or(1, |member| member.cols.max(1));
        let random = random_coverage(unit.rank().unwrap_or(cols), cols);
        for sink in &factors.sinks {
            self.sinks.push(SinkCoverage {
                layer,
                projections: projections.clone(),
                coverage: sink.coverage.norm,
                largest: sink.coverage.largest,
                random,
                appended: sink.appended,
            });
        }
        if !factors.exempt.is_empty() {
            self.exempt.push(ExemptChannels {
                layer,
                projections,
                channels: factors.exempt.clone(),
            });
        }
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

    fn add_outside(&mut self, unit: &UnitPlan, factors: &UnitMeasurements) {
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

    pub(crate) fn output_errors(&self) -> Vec<(ProjectionKind, f64)> {
        let errors = self.measured.iter();
        errors
            .filter_map(|of| Some((of.projection, of.output_error?)))
            .collect()
    }

    pub(crate) fn sink_thresholds(&self) -> [f64; 2] {
        let of = || self.sinks.iter().map(|sink| sink.random);
        [of().fold(f64::INFINITY, f64::min), of().fold(0.0, f64::max)]
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.axiom.is_empty() {
            let sum = |of: fn(&AxiomSearch) -> f64| self.axiom.iter().map(of).sum::<f64>();
            let (before, after) = (sum(|a| a.before), sum(|a| a.after));
            let iterations: usize = self.axiom.iter().map(|a| a.trace.len() - 1).sum();
            let change = if before > 0.0 {
                format!(" ({:+.1} %)", 100.0 * (after / before - 1.0))
            } else {
                String::new()
            };
            lines.push(format!(
                "axiom       tail energy {before:.4} -> {after:.4}{change} in the gauge's coordinates, {}, {}",
                format_count(self.axiom.len(), "layer"),
                format_count(iterations, "iteration")
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

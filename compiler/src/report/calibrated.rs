//! Calibration section of the report.

use std::collections::BTreeSet;
use std::fmt;

use htc_formats::escape::escape;
use htc_formats::htz::Digest;
use htc_formats::model::{MatrixId, ProjectionKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::{CalibratedText, Calibration};
use crate::make::TreatmentReport;
use crate::options::GaugeKind;
use crate::system::show::format_count;

/// Calibration texts, and output errors on them.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
pub struct CalibrationReport {
    /// File names of the texts, with weights other than 1.
    pub text: String,
    /// Digest of the text; for several, see [`Calibration::text_digest`].
    pub text_sha256: Digest,
    /// One entry per text.
    #[serde(default)]
    pub texts: Vec<CalibratedText>,
    /// Tokens processed.
    pub tokens: usize,
    /// Tokens per window.
    pub context: usize,
    /// Layers whose statistics were in the cache.
    pub found_layers: usize,
    /// Number of layers.
    pub layers: usize,
    /// Gauge of the errors.
    pub gauge: String,
    /// One entry per kind of factorised projection.
    pub output_errors: Vec<OutputError>,
    /// Error of the head or tied embedding, if encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadError>,
}

/// Error of the head's matrix.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct HeadError {
    /// The head or the embedding.
    pub matrix: MatrixId,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` of the stored matrix.
    pub error: f64,
}

/// Output errors of one kind of projection.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct OutputError {
    /// Projection.
    pub projection: ProjectionKind,
    /// Root mean square over the layers of `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½`.
    pub error: f64,
    /// Largest error of a layer.
    pub largest_error: f64,
}

impl CalibrationReport {
    pub(crate) fn new(
        calibration: &Calibration,
        gauge: GaugeKind,
        treated: &TreatmentReport,
    ) -> Self {
        let errors = treated.output_errors();
        let projections: BTreeSet<ProjectionKind> = errors
            .iter()
            .map(|(projection, _)| projection.dense())
            .collect();
        let of_projection = |projection: ProjectionKind| {
            let errors = errors.iter().filter(|(of, _)| of.dense() == projection);
            let errors: Vec<f64> = errors.map(|(_, error)| *error).collect();
            let (error, largest_error) = super::rms_and_largest(&errors)?;
            Some(OutputError {
                projection,
                error,
                largest_error,
            })
        };
        CalibrationReport {
            text: calibration.text(),
            text_sha256: calibration.text_digest(),
            texts: calibration.texts.clone(),
            tokens: calibration.tokens(),
            context: calibration.context,
            found_layers: calibration.cached_layers,
            layers: calibration.layers.len(),
            gauge: gauge.name().to_owned(),
            output_errors: projections.into_iter().filter_map(of_projection).collect(),
            head: treated.measured_matrices.iter().find_map(|of| {
                Some(HeadError {
                    matrix: of.matrix,
                    error: of.output_error?,
                })
            }),
        }
    }
}

impl fmt::Display for CalibrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  calibrated  on {}: {} in windows of {}, {} of {} from the cache; gauge {}",
            escape(&self.text),
            format_count(self.tokens, "token"),
            self.context,
            self.found_layers,
            format_count(self.layers, "layer"),
            self.gauge
        )?;
        for text in self.texts.iter().filter(|text| !text.left_out.is_empty()) {
            let left_out = text.left_out.join(", ");
            write!(
                f,
                "\n  left out    of {}: {left_out} (no tokens for their script)",
                escape(&text.name)
            )?;
        }
        let projections = self.output_errors.iter();
        let projections = projections.map(|e| format!("{} {:.4}", e.projection, e.error));
        let head = self.head.iter();
        let head = head.map(|e| format!("{} {:.4}", e.matrix.name(), e.error));
        let errors: Vec<String> = projections.chain(head).collect();
        if errors.is_empty() {
            return Ok(());
        }
        write!(f, "\n  outputs     error (rms) {}", errors.join(", "))
    }
}

use serde::{Deserialize, Serialize};

use super::{HtzError, Record};
use crate::model::{HyperParameters, MatrixId};

/// Stored spectra against which a probe compares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct GeometryRecord {
    /// Layer that is probed by default.
    pub depth_sink: DepthSinkRecord,
    /// One record for each projection of each layer, in execution order.
    pub spectra: Vec<SpectrumRecord>,
}

/// First layer where the cumulative explained variance of the residual stream is near its plateau.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct DepthSinkRecord {
    /// Index of the layer.
    pub layer: usize,
    /// Origin of the choice.
    pub origin: DepthSinkOrigin,
}

impl DepthSinkRecord {
    /// Returns two thirds of the depth, rounded to an existing layer.
    pub fn from_depth(layers: usize) -> DepthSinkRecord {
        // Avoids overflow.
        let two_thirds = layers - layers / 3 - usize::from(layers % 3 == 2);
        DepthSinkRecord {
            layer: two_thirds.min(layers.saturating_sub(1)),
            origin: DepthSinkOrigin::Guessed,
        }
    }
}

/// Origin of a depth sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DepthSinkOrigin {
    /// Measured on the activations of a calibration.
    Measured,
    /// Two thirds of the depth.
    Guessed,
    /// Chosen by the user.
    Asked,
}

crate::names!(DepthSinkOrigin { Measured "measured", Guessed "guessed", Asked "asked" });

/// Spectrum of a stored projection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SpectrumRecord {
    /// The projection.
    pub id: MatrixId,
    /// Number of components: the rank of the factors, or the rows of a dense projection.
    pub components: u64,
    /// Largest weight of a component.
    pub largest: f64,
    /// Sum of the squared weights of all components.
    pub energy: f64,
}

pub(super) fn check(
    hyper: &HyperParameters,
    record: &GeometryRecord,
    stored: impl ExactSizeIterator<Item = (MatrixId, u64)>,
) -> Result<(), HtzError> {
    let layer = record.depth_sink.layer;
    if layer >= hyper.layers {
        let expected = format!("below {}", hyper.layers);
        return Err(Record::Geometry("depth sink".to_owned()).error("layer", expected, layer));
    }
    let whole = Record::Geometry("the whole".to_owned());
    whole.expect_equal("number of spectra", stored.len(), record.spectra.len())?;
    for (spectrum, (id, components)) in record.spectra.iter().zip(stored) {
        let place = Record::Geometry(id.to_string());
        place.expect_equal("id", id, spectrum.id)?;
        place.expect_equal("number of components", components, spectrum.components)?;
        for (property, value) in [("largest", spectrum.largest), ("energy", spectrum.energy)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(place.error(property, "a finite number, not negative", value));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

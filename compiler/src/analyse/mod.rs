//! Analysis of a model for compression, from its weights and the statistics of
//! [`crate::calibrate`].

mod depth;
mod dimension;
mod manifold;
mod page;
mod phases;
pub mod record;
mod sample;
mod sinks;
mod spectra;

use htc_formats::htz::Digest;
use htc_formats::source::ModelFile;

pub use record::Analysis;

use crate::calibrate::Calibration;
use crate::event::{Progress, Task};
use crate::math::{Algebra, FactoriseError, Host};
use crate::system::show::file_name;
use crate::unit::MakeError;
use record::{
    CalibrationInfo, DepthSink, DimensionLayer, Kind, ManifoldLayer, Shape, SinkLayer, Spectra,
};
use sample::Sample;

/// Input of an analysis.
#[derive(Clone, Copy, Debug)]
pub struct AnalysisInput<'a> {
    /// Model.
    pub source: &'a ModelFile,
    /// Model digest.
    pub digest: Digest,
    /// Calibration, if any.
    pub calibration: Option<&'a Calibration>,
}

/// Analyses a model.
pub fn analyse(
    subject: AnalysisInput,
    threads: usize,
    watch: Progress,
) -> Result<Analysis, MakeError> {
    let (source, calibration) = (subject.source, subject.calibration);
    let units = spectra::units(source);
    let layers = source.hyper.layers;
    let steps = units.len() + calibration.map_or(0, |_| 2 * layers);
    watch.begin(Task::Analysis, steps);
    let hyper = &source.hyper;
    let mut analysis = Analysis {
        kind: Kind::Analysis,
        version: record::VERSION,
        model: file_name(&source.path),
        source_sha256: subject.digest,
        shape: Shape {
            architecture: hyper.architecture.clone(),
            layers,
            width: hyper.width,
            heads: hyper.heads,
            kv_heads: hyper.kv_heads,
            head_size: hyper.head_size,
            ffn: hyper.ffn,
        },
        calibration: calibration.map(|found| CalibrationInfo {
            text: found.text(),
            text_sha256: found.text_digest(),
            tokens: found.tokens(),
            context: found.context,
        }),
        spectra: spectra::empty(),
        phases: None,
        sinks: None,
        depth: None,
        dimension: None,
        manifold: None,
    };
    let mut directions = Vec::new();
    if let Some(calibration) = calibration {
        analysis.phases = Some(phases::phase_profiles(calibration)?);
        directions = add_streams(&mut analysis, source, calibration, threads, watch)?;
        analysis.depth = Some(depth_sink(source, calibration, threads, &Host, watch)?);
    }
    let weights = Weights {
        source,
        calibration,
        directions: &directions,
    };
    let sinks = analysis.sinks.as_mut().map(|sinks| &mut sinks.layers[..]);
    analysis.spectra = weights.spectra(sinks, threads, watch)?;
    Ok(analysis)
}

/// Adds the residual stream of all layers; returns the direction of the sink of each layer.
fn add_streams(
    analysis: &mut Analysis,
    source: &ModelFile,
    calibration: &Calibration,
    threads: usize,
    watch: Progress,
) -> Result<Vec<Option<Vec<f64>>>, MakeError> {
    let layers = calibration.layers.len();
    let mut directions = Vec::with_capacity(layers);
    let (mut sinks, mut dimension) = (sinks::empty(), dimension::empty());
    let mut manifold = manifold::empty();
    let streams = watch.run_steps(
        threads,
        layers,
        |layer| format!("layer {layer}: residual stream"),
        |layer| stream(calibration, layer).map_err(statistics(source, layer)),
    )?;
    for (mut sink, direction, of_dimension, of_manifold) in streams {
        if let Ok(vocabulary) = &source.vocabulary {
            sinks::name_tokens(&mut sink, &calibration.windows, vocabulary);
        }
        sinks.layers.push(sink);
        directions.push(direction);
        dimension.layers.push(of_dimension);
        manifold.layers.push(of_manifold);
    }
    analysis.sinks = Some(sinks);
    analysis.dimension = Some(dimension);
    analysis.manifold = Some(manifold);
    Ok(directions)
}

/// The residual stream of a layer, with the direction of its sink.
type Stream = (SinkLayer, Option<Vec<f64>>, DimensionLayer, ManifoldLayer);

fn stream(calibration: &Calibration, layer: usize) -> Result<Stream, FactoriseError> {
    let stored = &calibration.layers[layer];
    let (sink, direction) = sinks::layer_sink(layer, stored)?;
    let moment = stored.stream();
    let sample = Sample::new(
        &stored.sample(),
        moment.mean.len(),
        &stored.sample_windows(),
    );
    let distances = sample.distances();
    let dimension = dimension::analyse_layer(layer, &moment, &sample, &distances)?;
    drop(moment);
    let manifold = manifold::layer_manifold(layer, stored, &sample, &distances)?;
    Ok((sink, direction, dimension, manifold))
}

/// Computes the depth sink; one eigendecomposition of model width per layer.
pub fn depth_sink(
    source: &ModelFile,
    calibration: &Calibration,
    threads: usize,
    algebra: &dyn Algebra,
    watch: Progress,
) -> Result<DepthSink, MakeError> {
    let layers = calibration.layers.len();
    let last = layers.saturating_sub(1);
    let Some(all) = depth::cumulated_up_to(calibration, last) else {
        return Ok(depth::depth_sink(&[], 0, Vec::new()));
    };
    let whole = depth::CumulatedCovariance::new(all, algebra).map_err(statistics(source, last))?;
    let curve = watch.run_steps(
        threads,
        layers,
        |layer| format!("layer {layer}: depth"),
        |layer| {
            let part = depth::cumulated_up_to(calibration, layer);
            let explained = part.map_or(Ok(0.0), |part| whole.explained(part, algebra));
            explained.map_err(statistics(source, layer))
        },
    )?;
    let weights = calibration.layers.iter();
    let weights = weights.map(|layer| depth::weight(&layer.stream()));
    Ok(depth::depth_sink(&curve, whole.rank, weights.collect()))
}

fn statistics(source: &ModelFile, layer: usize) -> impl Fn(FactoriseError) -> MakeError {
    move |error| MakeError::Statistics {
        path: source.path.clone(),
        layer,
        error,
    }
}

struct Weights<'a> {
    source: &'a ModelFile,
    calibration: Option<&'a Calibration>,
    directions: &'a [Option<Vec<f64>>],
}

impl Weights<'_> {
    fn spectra(
        &self,
        mut sinks: Option<&mut [SinkLayer]>,
        threads: usize,
        watch: Progress,
    ) -> Result<Spectra, MakeError> {
        let units = spectra::units(self.source);
        let gauges = spectra::Gauges::new(self.calibration);
        let mut spectra = spectra::empty();
        let failed = MakeError::with_source_path(self.source);
        let all = watch.run_steps(
            threads,
            units.len(),
            |index| units[index].label(),
            |index| {
                let unit = &units[index];
                let sink = self.sink(unit.layer).map_err(&failed)?;
                spectra::unit_spectra(self.source, unit, &gauges, sink.as_deref()).map_err(&failed)
            },
        )?;
        for (unit, found) in units.iter().zip(all) {
            spectra.projections.extend(found.projections);
            spectra.groups.extend(found.group);
            let sink = sinks.as_mut().and_then(|sinks| sinks.get_mut(unit.layer));
            if let Some(sink) = sink {
                sink.coverage.extend(found.coverage);
            }
        }
        Ok(spectra)
    }

    fn sink(&self, layer: usize) -> Result<Option<Vec<f64>>, MakeError> {
        let before = layer.checked_sub(1).and_then(|l| self.directions.get(l));
        match before {
            Some(Some(direction)) => {
                sinks::attention_input_direction(self.source, layer, direction).map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;

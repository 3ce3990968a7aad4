//! What is measured on a model before its plan is made: only what the allocator looks at.

mod bands;
pub(crate) mod bound;
pub mod curves;
mod rank;
mod sample;

use htc_formats::source::ModelFile;

use curves::Looked;

use crate::calibrate::{Calibration, StoredLayer};
use crate::device::Device;
use crate::event::{Event, Measurement, Watch};
use crate::gradient::Gradients;
use crate::order::{Order, Ordered};
use crate::plan::allocate::Allocator;
use crate::plan::{self, Branches, Curve, Evidence, Member, Method, OfSource, Request, Unit};
use crate::request::Target;
use crate::request::{CodeKinds, FirstPositions, GaugeKind, LowRankArg, RotationArg, Treatment};
use crate::system::ordered;
use crate::unit::UnitsError;
use crate::unit::{ModelTreatment, spectrum};

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// The model.
    pub source: &'a ModelFile,
    /// Its units, in the order of the plan.
    pub units: &'a [Unit],
    /// Its activations.
    pub calibration: Option<&'a Calibration>,
    /// What errors at the outputs of its matrices cost.
    pub gradients: Option<&'a Gradients>,
    /// The order in which it will be stored, where that is another.
    pub order: Option<&'a Order>,
    /// What executes it, whose host's threads measure.
    pub device: &'a dyn Device,
}

impl<'a> Measured<'a> {
    fn ordered(&self) -> Ordered<'a> {
        Ordered::new(self.source, self.order)
    }

    fn threads(&self) -> usize {
        self.device.pool().threads()
    }

    fn treated(&self, treatment: Treatment) -> ModelTreatment<'a> {
        ModelTreatment::new(treatment, self.calibration, self.device.algebra())
    }
}

/// Measures what the allocator of a request looks at; whatever it does not look at is left out, and
/// no weight is read for it. The numbers do not depend on the number of threads.
///
/// # Errors
/// [`UnitsError::Unit`] where a weight does not decode or is not finite.
pub fn measure(
    measured: Measured,
    request: &Request,
    target: &Target,
    watch: Watch,
) -> Result<Evidence, UnitsError> {
    measured.device.make_room();
    let mut evidence = target.evidence();
    if let Some(calibration) = measured.calibration {
        let layers = calibration.layers.iter();
        let first = request.allocation.first_positions;
        let (branches, variance) = layers.map(|layer| depth(layer, first)).unzip();
        evidence.branches = Some(branches);
        evidence.variance = Some(variance);
    }
    let calibrated = measured.calibration.is_some();
    if request.method == Method::Quantise {
        // As factors of its plan are treated; codes have no gauge.
        let treatment = Treatment::with_gauge(GaugeKind::Whiten);
        let treatment = measured.treated(treatment);
        let treatment = treatment.in_order(measured.order);
        let treatment = treatment.with_effort(request.effort);
        let treatment = treatment.with_gradients(measured.gradients);
        let members = plan::matrices(&measured.source.hyper, &OfSource(measured.source));
        let looked = Looked {
            source: &measured.ordered(),
            members: &members,
            treatment: &treatment,
            gradients: measured.gradients,
            codes: request.codes,
            low_rank: request.low_rank == LowRankArg::On,
            rotated: request.rotation == RotationArg::On,
        };
        let (curves, shared, told) = curves::measure(looked, measured.threads(), watch)?;
        evidence.factors = told;
        evidence.curves = Some(curves);
        evidence.shared = shared;
        return Ok(evidence);
    }
    if reads_weights(request, target, calibrated) {
        let whitened = calibrated
            && matches!(
                request.allocation.allocator,
                Allocator::Whitened | Allocator::DiffPlan
            );
        let kind = if whitened {
            GaugeKind::Whiten
        } else {
            GaugeKind::None
        };
        // Without biases, whatever is asked for: a plan does not depend on how weights are treated, so that
        // candidates with biases and without have one plan, and what was chosen is what asking for it gives.
        let treatment = Treatment::with_gauge(kind);
        let treatment = measured.treated(treatment).in_order(measured.order);
        let spectra = spectra(measured, request, &treatment, watch)?;
        if whitened {
            evidence.whitened = Some(spectra);
        } else {
            evidence.spectra = Some(spectra);
        }
    }
    Ok(evidence)
}

/// What is lost of each of some matrices where what an artifact lacks of it gets codes, and where it gets none
/// ([`plan::Form::Kept`]).
///
/// # Errors
/// Those of [`measure`].
pub fn refinements(
    measured: Measured,
    base: &ModelFile,
    members: &[Member],
    request: &Request,
    watch: Watch,
) -> Result<Vec<Curve>, UnitsError> {
    let treatment = measured.treated(Treatment::default());
    let treatment = treatment.in_order(measured.order);
    let looked = Looked {
        source: &measured.ordered().less(base),
        members,
        treatment: &treatment.with_effort(request.effort),
        gradients: measured.gradients,
        codes: match request.codes {
            CodeKinds::Levels => CodeKinds::Levels,
            _ => CodeKinds::Trellis,
        },
        low_rank: false,
        rotated: request.rotation == RotationArg::On,
    };
    Ok(curves::measure(looked, measured.threads(), watch)?.0)
}

/// What the branches of a layer add, as parts of the stream behind it, and the variance of that. Parts of
/// `E‖h‖²`, by which the next norm divides: RMSNorm takes no mean off, and an error counts there by the
/// angle that it turns the stream by. Only in the variance first positions may count: what branches add there
/// is no measure of what they do elsewhere.
fn depth(layer: &StoredLayer, first: FirstPositions) -> (Branches, f64) {
    let stream = layer.stream();
    let variance = match first {
        FirstPositions::LeftOut => stream.variance(),
        FirstPositions::Counted => layer.sink().variance_with(&stream),
    };
    let energy: f64 = stream.diagonal().iter().sum();
    let [attention, feed_forward] = layer.branches().map(|branch| match energy > 0.0 {
        true => branch / energy,
        false => 0.0,
    });
    let branches = Branches {
        attention,
        feed_forward,
    };
    (branches, variance)
}

/// Whether an allocator looks at what a calibration finds.
pub fn reads_activations(allocator: Allocator) -> bool {
    match allocator {
        Allocator::Phase | Allocator::Curvature | Allocator::Whitened | Allocator::DiffPlan => true,
        Allocator::Uniform | Allocator::Waterfill | Allocator::CacheFit => false,
    }
}

/// Whether the allocator of a request looks at the spectra of the weights.
pub fn reads_weights(request: &Request, target: &Target, calibrated: bool) -> bool {
    match request.allocation.allocator {
        Allocator::Waterfill => true,
        // Without what they need beside they are refused, whatever the spectra are.
        Allocator::DiffPlan => target.tokens_per_joule.is_some() || target.energy.is_some(),
        Allocator::Whitened => calibrated,
        Allocator::Uniform | Allocator::Phase | Allocator::Curvature | Allocator::CacheFit => false,
    }
}

/// Whether what the allocator of a request needs is measured by [`measure`], so that its absence
/// before is no fault.
pub fn is_measured(request: &Request, target: &Target, calibrated: bool) -> bool {
    if request.method == Method::Quantise {
        return true;
    }
    match request.allocation.allocator {
        Allocator::Phase | Allocator::Curvature => calibrated,
        Allocator::Uniform | Allocator::CacheFit => false,
        Allocator::Waterfill | Allocator::DiffPlan | Allocator::Whitened => {
            reads_weights(request, target, calibrated)
        }
    }
}

/// The singular values of every unit's weights. One unit per thread is in memory at a time.
fn spectra(
    measured: Measured,
    request: &Request,
    treatment: &ModelTreatment,
    watch: Watch,
) -> Result<Vec<Vec<f64>>, UnitsError> {
    let (source, units) = (measured.ordered(), measured.units);
    let shared = request.method == Method::SharedBasis;
    watch.tell(Event::Measuring(Measurement::Spectra, units.len()));
    let mut spectra = Vec::with_capacity(units.len());
    ordered::for_each(
        measured.threads(),
        units.len(),
        // A spectrum takes no room, so a slow unit need not hold up the others.
        units.len(),
        |index| {
            let spectrum = spectrum::of_unit(&source, &units[index], shared, treatment);
            spectrum.map_err(UnitsError::of(source.file()))
        },
        |index, spectrum| {
            watch.done(&units[index].label())?;
            spectra.push(spectrum);
            Ok(())
        },
    )?;
    Ok(spectra)
}

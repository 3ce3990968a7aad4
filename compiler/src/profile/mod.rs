//! Measurements for the allocator before a plan is made.

mod bands;
pub(crate) mod bound;
pub mod curves;
mod experts;
mod rank;
mod sample;

use htc_formats::source::ModelFile;

pub(crate) use bound::smallest_factor_bytes;
use curves::CurveInputs;
pub(crate) use rank::input_groups;

use crate::calibrate::{Calibration, StoredLayer};
use crate::device::Device;
use crate::event::{Progress, Task};
use crate::gradient::Gradients;
use crate::options::TargetMachine;
use crate::options::{CodeKinds, FirstPositions, GaugeKind, Treatment};
use crate::order::{ChannelPermutation, PermutedSource};
use crate::plan::allocate::Allocator;
use crate::plan::{
    self, BranchShares, Evidence, LossCurve, Method, ModelFileTypes, PlanRequest, Unit, UnitMatrix,
};
use crate::unit::MakeError;
use crate::unit::{ModelTreatment, spectrum};

/// Inputs of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct ProfileInputs<'a> {
    /// Model.
    pub source: &'a ModelFile,
    /// Units in plan order.
    pub units: &'a [Unit],
    /// Activations.
    pub calibration: Option<&'a Calibration>,
    /// Costs of output errors.
    pub gradients: Option<&'a Gradients>,
    /// Channel permutation, if any.
    pub order: Option<&'a ChannelPermutation>,
    /// Device; the threads of its host do the measuring.
    pub device: &'a dyn Device,
}

impl<'a> ProfileInputs<'a> {
    fn ordered(&self) -> PermutedSource<'a> {
        PermutedSource::new(self.source, self.order)
    }

    fn threads(&self) -> usize {
        self.device.pool().threads()
    }

    fn treatment(&self, treatment: Treatment, request: &PlanRequest) -> ModelTreatment<'a> {
        let algebra = self.device.algebra();
        let mut treatment = ModelTreatment::new(treatment, self.calibration, algebra);
        treatment.gradients = self.gradients;
        treatment.order = self.order;
        treatment.effort = request.effort;
        treatment
    }
}

/// Measures the evidence that the allocator of a request needs.
pub fn measure(
    measured: ProfileInputs,
    request: &PlanRequest,
    target: &TargetMachine,
    watch: Progress,
) -> Result<Evidence, MakeError> {
    measured.device.unload_idle_models();
    let mut evidence = target.evidence();
    if let Some(calibration) = measured.calibration {
        let layers = calibration.layers.iter();
        let first = request.allocation.first_positions;
        let (branches, variance) = layers
            .map(|layer| branches_and_variance(layer, first))
            .unzip();
        evidence.branches = Some(branches);
        evidence.variance = Some(variance);
        let shares = measured
            .units
            .iter()
            .map(|unit| experts::position_share(unit, &calibration.layers));
        evidence.position_shares = Some(shares.collect());
    }
    let calibrated = measured.calibration.is_some();
    if request.method == Method::Quantise {
        // As the factors of the plan.
        let treatment = Treatment::with_gauge(GaugeKind::Whiten);
        let treatment = measured.treatment(treatment, request);
        let members = plan::matrices(&measured.source.hyper, &ModelFileTypes(measured.source));
        let inputs = CurveInputs {
            source: &measured.ordered(),
            members: &members,
            treatment: &treatment,
            codes: request.codes.kinds(),
            low_rank: request.codes.evaluates_factors(),
            rotated: request.codes.rotates(),
        };
        let found = curves::measure(inputs, measured.threads(), watch)?;
        evidence.factor_summary = found.factor_summary;
        evidence.curves = Some(found.curves);
        evidence.shared = found.shared;
        evidence.outliers = found.outliers;
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
        // Candidates with and without biases have the same plan.
        let treatment = measured.treatment(Treatment::with_gauge(kind), request);
        let spectra = spectra(measured, request, &treatment, watch)?;
        if whitened {
            evidence.whitened = Some(spectra);
        } else {
            evidence.spectra = Some(spectra);
        }
    }
    Ok(evidence)
}

/// Measures the loss of matrices with and without ([`plan::MatrixForm::Unchanged`]) coding their
/// difference to an artifact.
pub fn refinements(
    measured: ProfileInputs,
    base: &ModelFile,
    members: &[UnitMatrix],
    request: &PlanRequest,
    watch: Progress,
) -> Result<Vec<LossCurve>, MakeError> {
    let inputs = CurveInputs {
        source: &measured.ordered().minus(base),
        members,
        treatment: &measured.treatment(Treatment::default(), request),
        codes: match request.codes.kinds() {
            CodeKinds::Levels => CodeKinds::Levels,
            _ => CodeKinds::Trellis,
        },
        low_rank: false,
        rotated: request.codes.rotates(),
    };
    Ok(curves::measure(inputs, measured.threads(), watch)?.curves)
}

/// Branches are relative to `E‖h‖²`, by which the next norm divides: RMSNorm does not subtract the
/// mean.
fn branches_and_variance(layer: &StoredLayer, first: FirstPositions) -> (BranchShares, f64) {
    let stream = layer.stream();
    let variance = match first {
        FirstPositions::Excluded => stream.variance(),
        FirstPositions::Included => layer.sink().variance_with(&stream),
    };
    let energy: f64 = stream.diagonal().iter().sum();
    let [attention, feed_forward] = layer
        .branches()
        .map(|branch| if energy > 0.0 { branch / energy } else { 0.0 });
    let branches = BranchShares {
        attention,
        feed_forward,
    };
    (branches, variance)
}

/// Returns true if an allocator uses activations.
pub fn reads_activations(allocator: Allocator) -> bool {
    match allocator {
        Allocator::Phase | Allocator::Curvature | Allocator::Whitened | Allocator::DiffPlan => true,
        Allocator::Uniform | Allocator::Waterfill | Allocator::CacheFit => false,
    }
}

/// Returns true if the allocator uses the spectra of the weights.
pub fn reads_weights(request: &PlanRequest, target: &TargetMachine, calibrated: bool) -> bool {
    match request.allocation.allocator {
        Allocator::Waterfill => true,
        Allocator::DiffPlan => target.tokens_per_joule.is_some() || target.energy.is_some(),
        Allocator::Whitened => calibrated,
        Allocator::Uniform | Allocator::Phase | Allocator::Curvature | Allocator::CacheFit => false,
    }
}

/// Returns true if [`measure`] provides the allocator's evidence.
pub fn is_measured(request: &PlanRequest, target: &TargetMachine, calibrated: bool) -> bool {
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

fn spectra(
    measured: ProfileInputs,
    request: &PlanRequest,
    treatment: &ModelTreatment,
    watch: Progress,
) -> Result<Vec<Vec<f64>>, MakeError> {
    let (source, units) = (measured.ordered(), measured.units);
    let shared = request.method == Method::SharedBasis;
    watch.begin(Task::Spectra, units.len());
    watch.run_steps(
        measured.threads(),
        units.len(),
        |index| units[index].label(),
        |index| {
            let spectrum =
                spectrum::unit_singular_values(&source, &units[index], shared, treatment);
            spectrum.map_err(MakeError::with_source_path(source.file()))
        },
    )
}

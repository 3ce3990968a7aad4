//! Gauges of activation points and layers, and the directions that factors must preserve.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use htc_formats::model::{ActivationPoint, MatrixId};

use super::{MakeError, dense_weights, factorise_error};
use crate::calibrate::{CalibratedInput, Calibration, StoredMoment};
use crate::codes;
use crate::gradient::Gradients;
use crate::math::{
    Algebra, AxiomGauge, AxiomOptions, AxiomProjection, DEFAULT_EXPONENT, ErrorEnergies,
    ErrorFeedback, FactoriseError, Gauge, ResidualSide, SecondMoment, Weight, axiom_gauge,
    covariance, largest_columns, largest_moments, mean_energy, weighted_energies,
};
use crate::options::{Effort, GaugeKind, SinkProtection, Treatment};
use crate::order::{ChannelPermutation, PermutedSource, permuted, permuted_moment};
use crate::plan::{MatrixForm, Plan, UnitMatrix, UnitPlan};

/// Number of cached gauges: those of a layer and of the next, as several threads work.
pub(crate) const CACHE_CAPACITY: usize = 8;

/// Lazily computed value per input, by the first thread that requests it; the most recent inputs
/// are cached.
type InputCache<T> = Mutex<Vec<(CalibratedInput, CacheEntry<T>)>>;
type CacheEntry<T> = Arc<OnceLock<Result<Arc<T>, FactoriseError>>>;

/// `None` until the search is done.
type AxiomEntry = Arc<Mutex<Option<Option<Arc<AxiomGauge>>>>>;

/// Width from which an evaluation of the axiom gauge takes many seconds, and the number of
/// evaluations for such layers.
const WIDE: usize = 2048;
const EVALUATIONS_WHERE_WIDE: usize = 8;

/// Input statistics of an activation point or of the head on the calibration text.
///
/// With correcting biases errors are weighted by the [covariance]. Otherwise, for the head and for
/// dense projections, they are weighted by the second moment.
#[derive(Debug)]
pub struct InputStatistics {
    order: usize,
    /// Lower triangle of `E[x xᵀ] [n, n]`.
    second: Vec<f64>,
    /// The mean, and the lower triangle of the covariance.
    corrected: Option<(Vec<f64>, Vec<f64>)>,
}

impl InputStatistics {
    fn new(moment: &StoredMoment, corrected: bool) -> Result<Self, FactoriseError> {
        let mut inputs = InputStatistics {
            order: moment.mean.len(),
            second: moment.lower(),
            corrected: None,
        };
        if corrected {
            let covariance = covariance(inputs.second_moment(), &moment.mean)?;
            inputs.corrected = Some((moment.mean.clone(), covariance));
        }
        Ok(inputs)
    }

    /// Returns `E[x xᵀ]`.
    pub fn second_moment(&self) -> SecondMoment<'_> {
        SecondMoment {
            order: self.order,
            values: &self.second,
        }
    }

    fn error_weighting(&self) -> SecondMoment<'_> {
        let covariance = self.corrected.as_ref().map(|(_, covariance)| covariance);
        SecondMoment {
            order: self.order,
            values: covariance.unwrap_or(&self.second),
        }
    }

    /// Returns the mean input, if a bias corrects the loss on it.
    pub fn mean_to_correct(&self) -> Option<&[f64]> {
        self.corrected.as_ref().map(|(mean, _)| &mean[..])
    }

    /// Returns the output energies lost by factors (after the bias correction, if any) and in
    /// total, and the square root of the fraction of the total that weighs errors.
    pub fn energies(
        &self,
        weight: Weight<'_>,
        a: &[f32],
        b: &[f32],
        rank: usize,
    ) -> (ErrorEnergies, f64) {
        let mut energies = weighted_energies(weight, a, b, rank, self.error_weighting());
        let Some((mean, _)) = &self.corrected else {
            return (energies, 1.0);
        };
        let varying = energies.weight.max(0.0);
        energies.weight = varying + mean_energy(weight, mean);
        let part = if energies.weight > 0.0 {
            (varying / energies.weight).sqrt()
        } else {
            1.0
        };
        (energies, part)
    }
}

/// Treatment of a model's projections, unit by unit.
///
/// An axiom gauge belongs to a layer and is folded into each projection separately. The search
/// minimises the tails of the layer's factorised projections at the ranks of the plan; those that
/// share a basis count with their individual tail at its rank, a lower bound.
#[derive(Debug, Default)]
pub struct ModelTreatment<'a> {
    /// Resolved treatment options.
    pub treatment: Treatment,
    calibration: Option<&'a Calibration>,
    /// Linear algebra backend.
    pub algebra: &'a dyn Algebra,
    /// Costs of errors at the outputs of matrices.
    pub gradients: Option<&'a Gradients>,
    /// Channel permutation, which also applies to the calibration's statistics.
    pub order: Option<&'a ChannelPermutation>,
    planned: Option<(PermutedSource<'a>, &'a Plan)>,
    /// Effort spent on codes.
    pub effort: Effort,
    /// True if the weights are bases of an elastic artifact.
    pub is_base: bool,
    gauges: InputCache<Gauge>,
    feedbacks: InputCache<ErrorFeedback>,
    axioms: Mutex<BTreeMap<usize, AxiomEntry>>,
}

impl<'a> ModelTreatment<'a> {
    /// Creates a treatment for spectra and single units; without a calibration every gauge is
    /// [`Gauge::None`].
    pub fn new(
        treatment: Treatment,
        calibration: Option<&'a Calibration>,
        algebra: &'a dyn Algebra,
    ) -> Self {
        ModelTreatment {
            treatment,
            calibration,
            algebra,
            ..ModelTreatment::default()
        }
    }

    /// Sets the plan whose ranks the axiom gauge uses.
    #[must_use]
    pub fn with_plan(self, source: PermutedSource<'a>, plan: &'a Plan) -> Self {
        ModelTreatment {
            treatment: plan.treatment_of_factors(self.treatment, self.calibration.is_some()),
            order: source.order(),
            planned: Some((source, plan)),
            effort: plan.request().effort,
            ..self
        }
    }

    fn moment(&self, calibration: &Calibration, place: CalibratedInput) -> StoredMoment {
        let moment = calibration.inputs(place);
        match self.order {
            None => moment,
            Some(order) => permuted_moment(&moment, order.inputs(place)),
        }
    }

    /// Returns the mean square of an input.
    pub fn mean_square(&self, place: CalibratedInput) -> Option<f64> {
        let squares = self.calibration?.inputs(place).diagonal();
        Some(squares.iter().sum::<f64>() / squares.len().max(1) as f64)
    }

    /// Returns the damping for [`feedback`](Self::feedback) of a matrix.
    pub fn damping(&self, matrix: Option<MatrixId>) -> f64 {
        let damping = codes::damping(matrix);
        if self.is_base {
            codes::DAMPING_OF_BASES * damping
        } else {
            damping
        }
    }

    /// Returns the sink direction that factors must cover: the mean input at the first position of
    /// a sequence. `None` if nothing is appended, and for the head.
    pub fn sink(&self, place: CalibratedInput) -> Option<Vec<f64>> {
        let CalibratedInput::Site { layer, site } = place else {
            return None;
        };
        if self.treatment.sink != SinkProtection::Append {
            return None;
        }
        let direction = self.calibration?.layers[layer].first_input(site)?;
        let direction = match self.order {
            None => direction,
            Some(order) => permuted(&direction, order.inputs(place)),
        };
        direction.iter().any(|v| *v != 0.0).then_some(direction)
    }

    /// Returns the input channels that the factors of a unit keep exact, ascending; none for the
    /// head.
    pub fn exempt(
        &self,
        place: CalibratedInput,
        weights: &[Weight<'_>],
    ) -> Result<Vec<usize>, FactoriseError> {
        let reads_stream =
            matches!(place, CalibratedInput::Site { site, .. } if site.reads_stream());
        match (self.treatment.sink, self.calibration) {
            (SinkProtection::Channels(count), Some(calibration)) if reads_stream => {
                largest_moments(&self.moment(calibration, place).diagonal(), count)
            }
            (SinkProtection::Channels(count), None) if reads_stream => {
                largest_columns(weights, count)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the axiom gauge of a layer, computed by the first thread that requests it; `None`
    /// with another gauge, or if truncation loses nothing.
    pub fn axiom(&self, layer: usize) -> Result<Option<Arc<AxiomGauge>>, MakeError> {
        let (GaugeKind::Axiom, Some((source, plan))) = (self.treatment.gauge, self.planned) else {
            return Ok(None);
        };
        let made = {
            let mut all = self.axioms.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(layer).or_default())
        };
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*made {
            return Ok(found.clone());
        }
        let found = search_axiom_gauge(&source, plan, layer, self.algebra)?.map(Arc::new);
        Ok(made.insert(found).clone())
    }

    /// Returns the statistics of an input; `None` without a calibration.
    pub fn inputs(
        &self,
        place: CalibratedInput,
    ) -> Result<Option<InputStatistics>, FactoriseError> {
        let moment = self.calibration.map(|of| self.moment(of, place));
        moment
            .map(|moment| InputStatistics::new(&moment, self.has_bias_correction(place)))
            .transpose()
    }

    fn has_bias_correction(&self, place: CalibratedInput) -> bool {
        self.treatment.bias && place != CalibratedInput::Head
    }

    /// Returns the error feedback for the matrices that read an input. It is cached, so an input
    /// must always be requested with the same damping.
    pub fn feedback(
        &self,
        place: CalibratedInput,
        damping: f64,
    ) -> Result<Option<Arc<ErrorFeedback>>, FactoriseError> {
        let Some(calibration) = self.calibration else {
            return Ok(None);
        };
        let made = cache_entry(&self.feedbacks, place);
        // Other inputs can be computed meanwhile.
        made.get_or_init(|| {
            let moment = self.moment(calibration, place);
            let second = SecondMoment {
                order: moment.mean.len(),
                values: &moment.lower(),
            };
            Ok(Arc::new(ErrorFeedback::new(second, damping)?))
        })
        .clone()
        .map(Some)
    }

    /// Returns the gauge of an input, of its covariance if biases correct the mean. [`Gauge::None`]
    /// with the axiom gauge, which belongs to a layer.
    pub fn gauge(&self, place: CalibratedInput) -> Result<Arc<Gauge>, FactoriseError> {
        let (kind, Some(calibration)) = (self.treatment.gauge, self.calibration) else {
            return Ok(Arc::new(Gauge::None));
        };
        if matches!(kind, GaugeKind::None | GaugeKind::Axiom) {
            return Ok(Arc::new(Gauge::None));
        }
        let made = cache_entry(&self.gauges, place);
        made.get_or_init(|| {
            let moment = self.moment(calibration, place);
            let inputs = InputStatistics::new(&moment, self.has_bias_correction(place))?;
            let weighed = inputs.error_weighting();
            let gauge = match kind {
                GaugeKind::None | GaugeKind::Axiom => Gauge::None,
                GaugeKind::Activation => Gauge::activation(&weighed.diagonal(), DEFAULT_EXPONENT)?,
                GaugeKind::Whiten => Gauge::whiten(weighed, self.treatment.shrinkage.value())?,
            };
            Ok(Arc::new(gauge))
        })
        .clone()
    }
}

fn is_wide(place: CalibratedInput) -> bool {
    matches!(
        place,
        CalibratedInput::Site {
            site: ActivationPoint::FfnHidden | ActivationPoint::ExpertHidden(_),
            ..
        }
    )
}

fn cache_entry<T>(kept: &InputCache<T>, place: CalibratedInput) -> CacheEntry<T> {
    let mut all = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, made)) = all.iter().find(|(of, _)| *of == place) {
        return Arc::clone(made);
    }
    // The next layer needs the memory.
    if is_wide(place) {
        all.retain(|(of, _)| !is_wide(*of));
    }
    if all.len() >= CACHE_CAPACITY {
        all.remove(0);
    }
    let made = CacheEntry::default();
    all.push((place, Arc::clone(&made)));
    made
}

/// Returns the projections of a layer that lose something by truncation, each with its rank;
/// excludes residuals, which are no truncation.
pub(crate) fn truncated_projections(
    plan: &Plan,
    layer: usize,
) -> impl Iterator<Item = (&UnitPlan, &UnitMatrix, usize)> {
    let units = plan.units().iter();
    let units = units.filter(move |unit| unit.layer() == Some(layer));
    let units = units.filter(|unit| !matches!(unit.form, MatrixForm::Residual { .. }));
    let ranked = units.filter_map(|unit| Some((unit, unit.rank()?)));
    let members = ranked.flat_map(|(unit, rank)| {
        let members = unit.members.iter();
        members.map(move |member| (unit, member, rank))
    });
    members.filter(|(_, member, rank)| *rank < member.rows.min(member.cols))
}

fn search_axiom_gauge(
    source: &PermutedSource<'_>,
    plan: &Plan,
    layer: usize,
    algebra: &dyn Algebra,
) -> Result<Option<AxiomGauge>, MakeError> {
    let truncated = truncated_projections(plan, layer);
    let (members, ranks): (Vec<UnitMatrix>, Vec<usize>) =
        truncated.map(|(_, member, rank)| (*member, rank)).unzip();
    let dense = dense_weights(source, &members)?;
    let weights: Vec<AxiomProjection> = members
        .iter()
        .zip(ranks)
        .zip(&dense)
        .filter_map(|((member, rank), values)| {
            Some(AxiomProjection {
                weight: member.weight(values),
                rank,
                side: ResidualSide::from_projection(member.projection()?),
            })
        })
        .collect();
    if weights.is_empty() {
        return Ok(None);
    }
    let mut options = AxiomOptions::default();
    if source.hyper.width >= WIDE {
        options.evaluations = EVALUATIONS_WHERE_WIDE;
    }
    let found = axiom_gauge(&weights, options, algebra).map(Some);
    found.map_err(|error| factorise_error(source, &members, 0, error))
}

#[cfg(test)]
mod tests;

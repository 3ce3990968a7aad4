//! Which errors of a slot count, and what its factors must not lose: the gauges of a model's sites
//! and layers, from what calibration saw or from the weights.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use htc_formats::model::{MatrixId, Site};

use super::{UnitError, dense_weight, weight_name, weight_of};
use crate::calibrate::{Calibration, Moment, Place};
use crate::codes;
use crate::gradient::Gradients;
use crate::math::{
    Algebra, AxiomGauge, AxiomOptions, AxiomSlot, DEFAULT_EXPONENT, Energies, FactoriseError,
    Feedback, Gauge, SecondMoment, Side, Weight, axiom_gauge, covariance, largest_columns,
    largest_moments, mean_energy, weighted_energies,
};
use crate::order::{Order, Ordered, reordered, reordered_moment};
use crate::plan::{Form, Plan, UnitPlan};
use crate::request::{Effort, GaugeKind, SinkProtection, Treatment};

/// Places whose gauges are kept: those of a layer and of the next, where several threads work.
const KEPT: usize = 8;

/// What is made once for a place, by the thread that asks first; of the places that were asked for last.
type Kept<T> = Mutex<Vec<(Place, Made<T>)>>;
type Made<T> = Arc<OnceLock<Result<Arc<T>, FactoriseError>>>;

/// The axiom gauge of a layer, likewise; `None` where truncation loses nothing.
type MadeAxiom = Arc<OnceLock<Result<Option<Arc<AxiomGauge>>, UnitError>>>;

/// Widths from which an evaluation of the axiom gauge takes many seconds, and the evaluations that
/// such a layer gets. They reach most of the decrease.
const WIDE: usize = 2048;
const EVALUATIONS_WHERE_WIDE: usize = 8;

/// What the slots of a site read on the calibration's text, or the head: by what their errors are weighed and measured.
///
/// Every slot of every architecture can have a bias, its own or one that it is given, and with
/// `--bias on` each that is factorised has one: the errors that count are those under the
/// [covariance], and the bias takes the rest. Without, and for the head, which never has one, it is the
/// second moment; so it is for slots that stay dense, whose bias is left as it is.
#[derive(Debug)]
pub struct SiteInputs {
    order: usize,
    /// The lower triangle of `E[x xᵀ] [n, n]`.
    second: Vec<f64>,
    /// Where biases correct: the mean, and the lower triangle of the covariance.
    corrected: Option<(Vec<f64>, Vec<f64>)>,
}

impl SiteInputs {
    fn new(moment: &Moment, corrected: bool) -> Result<Self, FactoriseError> {
        let mut inputs = SiteInputs {
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

    /// `E[x xᵀ]`.
    pub fn second_moment(&self) -> SecondMoment<'_> {
        SecondMoment {
            order: self.order,
            values: &self.second,
        }
    }

    /// What errors of factors are weighed by: the covariance where biases correct, else the second moment.
    fn weighed(&self) -> SecondMoment<'_> {
        let covariance = self.corrected.as_ref().map(|(_, covariance)| covariance);
        SecondMoment {
            order: self.order,
            values: covariance.unwrap_or(&self.second),
        }
    }

    /// The mean input, where a bias is to put back what is lost on it.
    pub fn mean_to_correct(&self) -> Option<&[f64]> {
        self.corrected.as_ref().map(|(mean, _)| &mean[..])
    }

    /// What factors lose of the outputs, with the bias that corrects them where there is one, and what there
    /// is; and the root of the part of that which errors are weighed by, all of it without a bias.
    pub fn energies(
        &self,
        weight: Weight<'_>,
        a: &[f32],
        b: &[f32],
        rank: usize,
    ) -> (Energies, f64) {
        let mut energies = weighted_energies(weight, a, b, rank, self.weighed());
        let Some((mean, _)) = &self.corrected else {
            return (energies, 1.0);
        };
        let varying = energies.whole.max(0.0);
        energies.whole = varying + mean_energy(weight, mean);
        let part = match energies.whole > 0.0 {
            true => (varying / energies.whole).sqrt(),
            false => 1.0,
        };
        (energies, part)
    }
}

/// How a model's slots are treated, unit by unit.
///
/// An axiom gauge belongs to a layer: it is baked into every slot on its own, so layers need not agree
/// on one, and one layer's weights are in memory at a time for each thread that searches. What is
/// minimised are the tails of the layer's factorised slots at the ranks of the plan. Slots that share
/// a basis count with the tail that each would have alone at the rank of the basis, which is a lower
/// bound of what the shared basis loses; slots at their full rank lose nothing and do not count.
#[derive(Debug, Default)]
pub struct ModelTreatment<'a> {
    treatment: Treatment,
    calibration: Option<&'a Calibration>,
    algebra: &'a dyn Algebra,
    gradients: Option<&'a Gradients>,
    order: Option<&'a Order>,
    planned: Option<(Ordered<'a>, &'a Plan)>,
    effort: Effort,
    refined: bool,
    gauges: Kept<Gauge>,
    feedbacks: Kept<Feedback>,
    axioms: Mutex<BTreeMap<usize, MadeAxiom>>,
}

impl<'a> ModelTreatment<'a> {
    /// For spectra and single units; without a calibration every gauge is [`Gauge::None`].
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

    /// For weights in another order: that of what calibration saw, too.
    #[must_use]
    pub fn in_order(self, order: Option<&'a Order>) -> Self {
        ModelTreatment { order, ..self }
    }

    /// For all units of a plan, whose ranks the axiom gauge looks at.
    #[must_use]
    pub fn of_plan(self, source: Ordered<'a>, plan: &'a Plan) -> Self {
        ModelTreatment {
            treatment: plan.treated(self.treatment, self.calibration.is_some()),
            order: source.order(),
            planned: Some((source, plan)),
            effort: plan.request().effort,
            ..self
        }
    }

    /// What is read in a place, in the order of what is stored.
    fn moment(&self, calibration: &Calibration, place: Place) -> Moment {
        let moment = calibration.inputs(place);
        match self.order {
            None => moment,
            Some(order) => reordered_moment(&moment, order.inputs(place)),
        }
    }

    /// With what errors at the outputs of matrices cost.
    #[must_use]
    pub fn with_gradients(self, gradients: Option<&'a Gradients>) -> Self {
        ModelTreatment { gradients, ..self }
    }

    /// What errors at the outputs of matrices cost.
    pub fn gradients(&self) -> Option<&Gradients> {
        self.gradients
    }

    /// The mean square of what is read in a place.
    pub fn mean_square(&self, place: Place) -> Option<f64> {
        let squares = self.calibration?.inputs(place).diagonal();
        Some(squares.iter().sum::<f64>() / squares.len().max(1) as f64)
    }

    /// With so much work on codes.
    #[must_use]
    pub fn with_effort(self, effort: Effort) -> Self {
        ModelTreatment { effort, ..self }
    }

    /// For the bases of an elastic artifact: what their codes lose is coded beside them where a byte gains enough by that,
    /// which nobody knows yet.
    #[must_use]
    pub fn to_be_refined(self, refined: bool) -> Self {
        ModelTreatment { refined, ..self }
    }

    /// The damping of what a matrix reads, for [`feedback`](Self::feedback).
    pub fn damping(&self, matrix: Option<MatrixId>) -> f64 {
        let damping = codes::damping(matrix);
        match self.refined {
            true => codes::DAMPING_OF_BASES * damping,
            false => damping,
        }
    }

    /// How much work goes into codes.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// What multiplies and decomposes.
    pub fn algebra(&self) -> &'a dyn Algebra {
        self.algebra
    }

    /// How weights are treated.
    pub fn treatment(&self) -> &Treatment {
        &self.treatment
    }

    /// The direction that factors of a site's slots must not miss: the mean of what they read at the
    /// first position of a sequence, behind the norm, where the norm's weight has scaled it.
    /// `None` where nothing is to be appended, and where that mean is zero; and for the head, behind which
    /// no attention follows.
    pub fn sink(&self, place: Place) -> Option<Vec<f64>> {
        let Place::Site { layer, site } = place else {
            return None;
        };
        if self.treatment.sink != SinkProtection::Append {
            return None;
        }
        let direction = self.calibration?.layers[layer].first_input(site)?;
        let direction = match self.order {
            None => direction,
            Some(order) => reordered(&direction, order.inputs(place)),
        };
        direction.iter().any(|v| *v != 0.0).then_some(direction)
    }

    /// The input channels that the factors of a unit keep exact, ascending; the head has none.
    ///
    /// # Errors
    /// More channels than there are, weights or moments that are not finite.
    pub fn exempt(
        &self,
        place: Place,
        weights: &[Weight<'_>],
    ) -> Result<Vec<usize>, FactoriseError> {
        let reads_stream = matches!(
            place,
            Place::Site {
                site: Site::Attention | Site::Ffn,
                ..
            }
        );
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

    /// The axiom gauge of a layer, made by the thread that asks first; `None` with another gauge, and
    /// where truncation loses nothing.
    ///
    /// # Errors
    /// [`UnitError`], which names the tensor.
    pub fn axiom(&self, layer: usize) -> Result<Option<Arc<AxiomGauge>>, UnitError> {
        let (GaugeKind::Axiom, Some((source, plan))) = (self.treatment.gauge, self.planned) else {
            return Ok(None);
        };
        let made = {
            let mut all = self.axioms.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(layer).or_default())
        };
        made.get_or_init(|| Ok(axiom_of_layer(&source, plan, layer, self.algebra)?.map(Arc::new)))
            .clone()
    }

    /// What is read in a place; `None` without a calibration.
    ///
    /// # Errors
    /// A mean that the second moment does not allow.
    pub fn inputs(&self, place: Place) -> Result<Option<SiteInputs>, FactoriseError> {
        let moment = self.calibration.map(|of| self.moment(of, place));
        moment
            .map(|moment| SiteInputs::new(&moment, self.corrects(place)))
            .transpose()
    }

    /// Whether biases correct factors in a place.
    fn corrects(&self, place: Place) -> bool {
        self.treatment.bias && place != Place::Head
    }

    /// How codes of the matrices that read in a place make up for each other's errors; `None` without a
    /// calibration. A place is asked for with the same damping every time.
    ///
    /// # Errors
    /// What [`Feedback::new`] refuses.
    pub fn feedback(
        &self,
        place: Place,
        damping: f64,
    ) -> Result<Option<Arc<Feedback>>, FactoriseError> {
        let Some(calibration) = self.calibration else {
            return Ok(None);
        };
        let made = of_place(&self.feedbacks, place);
        // Outside the lock: other places' are made meanwhile.
        made.get_or_init(|| {
            let moment = self.moment(calibration, place);
            let second = SecondMoment {
                order: moment.mean.len(),
                values: &moment.lower(),
            };
            Ok(Arc::new(Feedback::new(second, damping)?))
        })
        .clone()
        .map(Some)
    }

    /// The gauge of a place's inputs, of their covariance where biases correct the mean; [`Gauge::None`]
    /// with the axiom gauge, which is a layer's.
    ///
    /// # Errors
    /// What the gauge's constructor refuses.
    pub fn gauge(&self, place: Place) -> Result<Arc<Gauge>, FactoriseError> {
        let (kind, Some(calibration)) = (self.treatment.gauge, self.calibration) else {
            return Ok(Arc::new(Gauge::None));
        };
        if matches!(kind, GaugeKind::None | GaugeKind::Axiom) {
            return Ok(Arc::new(Gauge::None));
        }
        let made = of_place(&self.gauges, place);
        // Outside the lock: other places' gauges are made meanwhile.
        made.get_or_init(|| {
            let moment = self.moment(calibration, place);
            let inputs = SiteInputs::new(&moment, self.corrects(place))?;
            let weighed = inputs.weighed();
            let gauge = match kind {
                GaugeKind::None | GaugeKind::Axiom => Gauge::None,
                GaugeKind::Activation => Gauge::activation(&weighed.diagonal(), DEFAULT_EXPONENT)?,
                GaugeKind::Whiten => Gauge::whiten(weighed, self.treatment.shrinkage.part())?,
            };
            Ok(Arc::new(gauge))
        })
        .clone()
    }
}

/// Whether it is the hidden layer that is read there.
fn is_wide(place: Place) -> bool {
    matches!(place, Place::Site { site, .. } if site == Site::FfnHidden)
}

/// The place of what is kept for one, which may be empty.
fn of_place<T>(kept: &Kept<T>, place: Place) -> Made<T> {
    let mut all = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, made)) = all.iter().find(|(of, _)| *of == place) {
        return Arc::clone(made);
    }
    // The widest are of no use behind their layer, whose next one needs the room.
    if is_wide(place) {
        all.retain(|(of, _)| !is_wide(*of));
    }
    if all.len() >= KEPT {
        all.remove(0);
    }
    let made = Made::default();
    all.push((place, Arc::clone(&made)));
    made
}

/// The slots of a layer that truncation loses something of, each with its rank; what a base lacks is no
/// truncation of its slot.
pub(crate) fn truncated(
    plan: &Plan,
    layer: usize,
) -> impl Iterator<Item = (&UnitPlan, &crate::plan::Member, usize)> {
    let units = plan.units().iter();
    let units = units.filter(move |unit| unit.layer() == Some(layer));
    let units = units.filter(|unit| !matches!(unit.form, Form::Residual { .. }));
    let ranked = units.filter_map(|unit| Some((unit, unit.rank()?)));
    let members = ranked.flat_map(|(unit, rank)| {
        let members = unit.members.iter();
        members.map(move |member| (unit, member, rank))
    });
    members.filter(|(_, member, rank)| *rank < member.rows.min(member.cols))
}

/// Searches the axiom gauge of a layer; `None` where no slot of it is truncated.
fn axiom_of_layer(
    source: &Ordered<'_>,
    plan: &Plan,
    layer: usize,
    algebra: &dyn Algebra,
) -> Result<Option<AxiomGauge>, UnitError> {
    let slots: Vec<_> = truncated(plan, layer).collect();
    let dense: Vec<Vec<f32>> = slots
        .iter()
        .map(|(_, member, _)| dense_weight(source, member))
        .collect::<Result<_, _>>()?;
    let weights: Vec<AxiomSlot> = slots
        .iter()
        .zip(&dense)
        .filter_map(|((_, member, rank), values)| {
            Some(AxiomSlot {
                weight: Weight {
                    rows: member.rows,
                    cols: member.cols,
                    values,
                },
                rank: *rank,
                side: Side::of(member.slot()?),
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
    let found = axiom_gauge(&weights, options, algebra).map_err(|source_error| {
        let index = weight_of(&source_error).unwrap_or(0);
        let matrix = slots.get(index).map(|(_, member, _)| member.matrix);
        UnitError::Factorise {
            tensor: matrix.map_or_else(String::new, |matrix| weight_name(source, matrix)),
            source: source_error,
        }
    })?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many layers are gone through; of the others those of two.
    #[test]
    fn of_wide_places_one_is_kept() {
        let kept = Kept::<usize>::default();
        let place = |layer, site| Place::Site { layer, site };
        let sites = [Site::Attention, Site::FfnHidden];
        for layer in 0..3 {
            for site in sites {
                let made = of_place(&kept, place(layer, site));
                assert!(made.set(Ok(Arc::new(layer))).is_ok());
            }
        }
        let is_there = |layer, site| {
            let all = kept.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().any(|(of, _)| *of == place(layer, site))
        };
        assert_eq!(
            [0, 1, 2].map(|l| is_there(l, Site::FfnHidden)),
            [false, false, true]
        );
        assert_eq!([0, 1, 2].map(|l| is_there(l, Site::Attention)), [true; 3]);
        // The same again, and not anew.
        let found = of_place(&kept, place(2, Site::FfnHidden));
        assert!(found.get().is_some());
    }

    #[test]
    fn bases_are_coded_with_more_damping() {
        let embedding = Some(MatrixId::Embedding);
        for matrix in [None, embedding] {
            let of = |refined| {
                let treatment = ModelTreatment::default().to_be_refined(refined);
                treatment.damping(matrix)
            };
            assert_eq!(of(true), codes::DAMPING_OF_BASES * of(false));
        }
    }
}

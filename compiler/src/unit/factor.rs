//! Factorised forms of a unit: decomposition, storage, measurement and bias correction.

use std::sync::Arc;

use htc_formats::DType;
use htc_formats::block;
use htc_formats::model::{MatrixId, Part, Slot};

use super::treatment::SiteInputs;
use super::{
    Factors, Found, ModelTreatment, Norm, UnitError, check_finite, dense_weight, encode, place,
    weight_name, weight_of,
};
use crate::calibrate::Place;
use crate::math::{
    Algebra, AxiomGauge, BasisOptions, Diagonal, FactoriseError, Gauge, LowRankOptions, Path, Side,
    Sink, SinkOutcome, Weight,
};
use crate::math::{
    bias_correction, low_rank_error, low_rank_with, random_coverage, shared_basis_with,
    shared_error, tail,
};
use crate::order::Ordered;
use crate::plan::{Form, Member, UnitPlan};

pub(super) fn factorised(
    source: &Ordered<'_>,
    unit: &UnitPlan,
    treatment: &ModelTreatment,
) -> Result<Factors, UnitError> {
    let members = unit.members.iter();
    let dense: Vec<Vec<f32>> = members
        .clone()
        .map(|member| dense_weight(source, member))
        .collect::<Result<_, _>>()?;
    let weights: Vec<Weight> = members
        .zip(&dense)
        .map(|(member, values)| Weight {
            rows: member.rows,
            cols: member.cols,
            values,
        })
        .collect();
    let terms = Terms::new(source, unit, treatment, &weights)?;
    let mut made = Made::default();
    match unit.form {
        Form::Kept | Form::Dense { .. } | Form::Bands { .. } => {}
        Form::LowRank { rank, a, b } => {
            for (index, weight) in weights.iter().enumerate() {
                terms.low_rank(index, *weight, rank, [a, b], [1.0; 2], &mut made)?;
            }
        }
        Form::Residual { base, rank, a, b } => {
            for (index, weight) in weights.iter().enumerate() {
                terms.residual(index, *weight, base, rank, [a, b], &mut made)?;
            }
        }
        Form::SharedBasis {
            rank,
            basis,
            projected,
        } => terms.shared_basis(&weights, rank, [basis, projected], &mut made)?,
    }
    terms.finish(made)
}

struct Terms<'a> {
    source: &'a Ordered<'a>,
    unit: &'a UnitPlan,
    gauge: Arc<Gauge>,
    output: Option<Diagonal>,
    norm: Norm,
    direction: Option<Vec<f64>>,
    exempt: Vec<usize>,
    axiom: Option<Arc<AxiomGauge>>,
    inputs: Option<SiteInputs>,
    algebra: &'a dyn Algebra,
}

#[derive(Default)]
struct Made {
    tensors: Vec<Vec<u8>>,
    biases: Vec<Vec<f32>>,
    errors: Vec<f64>,
    output_errors: Vec<f64>,
    predicted: Vec<f64>,
    sinks: Vec<SinkOutcome>,
}

struct Stored<'a> {
    a: &'a [f32],
    b: &'a [f32],
    rank: usize,
}

impl<'a> Terms<'a> {
    fn new(
        source: &'a Ordered<'a>,
        unit: &'a UnitPlan,
        treatment: &ModelTreatment<'a>,
        weights: &[Weight<'_>],
    ) -> Result<Terms<'a>, UnitError> {
        let failed = |error| failed(source, unit, 0, error);
        let place = place(source, unit);
        let (gauge, output, norm) = gauges(unit, place, treatment, failed)?;
        let exempt = place.map(|place| treatment.exempt(place, weights));
        let inputs = place.map(|place| treatment.inputs(place));
        Ok(Terms {
            source,
            unit,
            gauge,
            output,
            norm,
            direction: place.and_then(|place| treatment.sink(place)),
            exempt: exempt.transpose().map_err(failed)?.unwrap_or_default(),
            axiom: match unit.layer() {
                Some(layer) => treatment.axiom(layer)?,
                None => None,
            },
            inputs: inputs.transpose().map_err(failed)?.flatten(),
            algebra: treatment.algebra(),
        })
    }

    /// Returns the sink direction for factors of the given rank. Factors that cover at least as
    /// much of it as random directions would are left unchanged.
    fn sink(&self, rank: usize) -> Option<Sink<'_>> {
        self.direction.as_deref().map(|direction| Sink {
            direction,
            threshold: random_coverage(rank, direction.len()),
        })
    }

    fn failed(&self, index: usize) -> impl Fn(FactoriseError) -> UnitError {
        move |error| failed(self.source, self.unit, index, error)
    }

    /// Stores a member as `B A`. `part` scales the errors of the weight and of its outputs: 1, or
    /// the fraction that a base left over.
    fn low_rank(
        &self,
        index: usize,
        target: Weight<'_>,
        rank: usize,
        [a, b]: [DType; 2],
        part: [f64; 2],
        made: &mut Made,
    ) -> Result<(), UnitError> {
        let slot = self.unit.members.get(index).and_then(Member::slot);
        let path = path(slot, &self.gauge);
        let options = LowRankOptions {
            path,
            input: &self.gauge,
            output: self.output.as_ref(),
            exempt: &self.exempt,
            sink: self.sink(rank),
            algebra: self.algebra,
        };
        let factors = low_rank_with(target, rank, &options).map_err(self.failed(index))?;
        let a = self.store(a, &factors.a, index, made)?;
        let b = self.store(b, &factors.b, index, made)?;
        let (a, b) = (&a[..], &b[..]);
        made.errors
            .push(part[0] * low_rank_error(target, a, b, rank));
        made.predicted.push(tail(&factors.singular_values, rank));
        made.sinks.extend(factors.sink);
        self.measure(index, target, Stored { a, b, rank }, part[1], made)
    }

    fn residual(
        &self,
        index: usize,
        weight: Weight<'_>,
        base: DType,
        rank: usize,
        types: [DType; 2],
        made: &mut Made,
    ) -> Result<(), UnitError> {
        let stored = self.store(base, weight.values, index, made)?;
        let moment = self.inputs.as_ref().map(SiteInputs::second_moment);
        let part = encode::energies(weight, &stored, moment);
        let pairs = weight.values.iter().zip(&stored);
        let lacking: Vec<f32> = pairs.map(|(w, base)| w - base).collect();
        let target = Weight {
            values: &lacking,
            ..weight
        };
        let part = part.map(|energies| energies.error());
        self.low_rank(index, target, rank, types, part, made)
    }

    fn shared_basis(
        &self,
        weights: &[Weight<'_>],
        rank: usize,
        [basis, projected]: [DType; 2],
        made: &mut Made,
    ) -> Result<(), UnitError> {
        let options = BasisOptions {
            gauge: &self.gauge,
            exempt: &self.exempt,
            sink: self.sink(rank),
            algebra: self.algebra,
            ..BasisOptions::default()
        };
        let shared = shared_basis_with(weights, rank, &options).map_err(self.failed(0))?;
        let basis = self.store(basis, &shared.basis, 0, made)?;
        let roots = shared.eigenvalues.iter().map(|value| value.max(0.0).sqrt());
        let tail = tail(&roots.collect::<Vec<f64>>(), rank);
        made.sinks.extend(shared.sink);
        for (index, (&weight, values)) in weights.iter().zip(&shared.projected).enumerate() {
            let b = self.store(projected, values, index, made)?;
            let (a, b) = (&basis[..], &b[..]);
            made.errors.push(shared_error(weight, a, b, rank));
            made.predicted.push(tail);
            self.measure(index, weight, Stored { a, b, rank }, 1.0, made)?;
        }
        Ok(())
    }

    fn store(
        &self,
        dtype: DType,
        values: &[f32],
        index: usize,
        made: &mut Made,
    ) -> Result<Vec<f32>, UnitError> {
        let name = || weight_name(self.source, self.unit.members[index].matrix);
        let codec = |source| UnitError::Block {
            tensor: name(),
            source,
        };
        let length = dtype.matrix_bytes(1, values.len()).unwrap_or(0);
        let mut bytes = vec![0; length];
        block::encode(dtype, values, &mut bytes).map_err(codec)?;
        let mut decoded = vec![0.0; values.len()];
        block::decode(dtype, &bytes, &mut decoded).map_err(codec)?;
        if decoded.iter().any(|v| !v.is_finite()) {
            return Err(UnitError::Overflow {
                tensor: name(),
                dtype,
            });
        }
        made.tensors.push(bytes);
        Ok(decoded)
    }

    /// Measures the output error of the stored factors and computes the bias that corrects its
    /// mean.
    fn measure(
        &self,
        index: usize,
        target: Weight<'_>,
        stored: Stored<'_>,
        part: f64,
        made: &mut Made,
    ) -> Result<(), UnitError> {
        let Some(inputs) = &self.inputs else {
            return Ok(());
        };
        let Stored { a, b, rank } = stored;
        let (energies, varying) = inputs.energies(target, a, b, rank);
        made.output_errors.push(part * energies.error());
        if self.norm == Norm::Output
            && let Some(predicted) = made.predicted.last_mut()
        {
            *predicted *= varying;
        }
        if let Some(mean) = inputs.mean_to_correct() {
            let lost = bias_correction(target, a, b, rank, mean).map_err(self.failed(index))?;
            let matrix = self.unit.members[index].matrix;
            made.biases.push(with_own_bias(self.source, matrix, lost)?);
        }
        Ok(())
    }

    fn finish(self, mut made: Made) -> Result<Factors, UnitError> {
        for (bias, member) in made.biases.iter().zip(&self.unit.members) {
            let mut bytes = vec![0; size_of::<f32>() * bias.len()];
            block::encode(DType::F32, bias, &mut bytes).map_err(|source| UnitError::Block {
                tensor: weight_name(self.source, member.matrix),
                source,
            })?;
            made.tensors.push(bytes);
        }
        let truncates = !matches!(self.unit.form, Form::Residual { .. });
        Ok(Factors {
            tensors: made.tensors,
            found: Found {
                errors: made.errors,
                output_errors: made.output_errors,
                predicted: (self.exempt.is_empty() && truncates).then_some(made.predicted),
                norm: self.norm,
                sinks: made.sinks,
                exempt: self.exempt,
                axiom: self.axiom.map(|axiom| axiom.trace.clone()),
            },
        })
    }
}

/// Returns the decomposition path of a projection. Down uses the SVD of W; for the others the
/// cheaper path gives the same factors up to rounding. Under a full gauge the SVD would need the
/// gauge's root, which is as wide as the hidden layer; `W C Wᵀ` is narrower.
pub(crate) fn path(slot: Option<Slot>, gauge: &Gauge) -> Path {
    match (slot, gauge) {
        (Some(Slot::Down), Gauge::None) => Path::Svd,
        _ => Path::Auto,
    }
}

fn failed(source: &Ordered<'_>, unit: &UnitPlan, index: usize, error: FactoriseError) -> UnitError {
    let index = weight_of(&error).unwrap_or(index);
    UnitError::Factorise {
        tensor: weight_name(source, unit.members[index].matrix),
        source: error,
    }
}

/// Returns the gauges of a unit's inputs and outputs, and the norm that they represent.
fn gauges(
    unit: &UnitPlan,
    place: Option<Place>,
    treatment: &ModelTreatment,
    failed: impl Fn(FactoriseError) -> UnitError,
) -> Result<(Arc<Gauge>, Option<Diagonal>, Norm), UnitError> {
    let Some(place) = place else {
        return Ok((Arc::default(), None, Norm::Frobenius));
    };
    let slot = unit.members.first().and_then(Member::slot);
    if let (Some(layer), Some(slot)) = (unit.layer(), slot)
        && let Some(axiom) = treatment.axiom(layer)?
    {
        let (input, output) = match Side::of(slot) {
            Side::Read => (axiom.reads().map_err(failed)?, None),
            Side::Write => (Gauge::None, Some(axiom.writes().map_err(failed)?)),
        };
        return Ok((Arc::new(input), output, Norm::Axiom));
    }
    let gauge = treatment.gauge(place).map_err(failed)?;
    let norm = match &*gauge {
        Gauge::None => Norm::Frobenius,
        Gauge::Diagonal(_) => Norm::Activation,
        Gauge::Full(_) => Norm::Output,
    };
    Ok((gauge, None, norm))
}

/// Adds the projection's own bias, if any, to the loss of a factorisation on the mean input.
fn with_own_bias(
    source: &Ordered<'_>,
    matrix: MatrixId,
    mut lost: Vec<f32>,
) -> Result<Vec<f32>, UnitError> {
    let own = matrix.role(Part::Bias).and_then(|role| source.tensor(role));
    let Some(tensor) = own else {
        return Ok(lost);
    };
    check_finite(source, tensor)?;
    let mut own = vec![0.0; lost.len()];
    let decoded = source.decode(tensor, 0..1, &mut own);
    decoded.map_err(|error| UnitError::of_decode(&tensor.name, error))?;
    lost.iter_mut()
        .zip(own)
        .for_each(|(lost, own)| *lost += own);
    if lost.iter().any(|v| !v.is_finite()) {
        return Err(UnitError::Overflow {
            tensor: tensor.name.clone(),
            dtype: DType::F32,
        });
    }
    Ok(lost)
}

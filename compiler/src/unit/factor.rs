//! Factorised forms of a unit: decomposition, storage, measurement and bias correction.

use std::sync::Arc;

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block;
use htc_formats::model::{MatrixId, Part, ProjectionKind};

use super::treatment::InputStatistics;
use super::{
    Factors, MakeError, ModelTreatment, Norm, UnitMeasurements, check_tensor_finite, dense_weights,
    encode, factorise_error, input_of_unit, weight_name,
};
use crate::calibrate::CalibratedInput;
use crate::math::{
    Algebra, AxiomGauge, BasisOptions, Diagonal, FactoriseError, Gauge, LowRankOptions,
    ResidualSide, Sink, SinkOutcome, SvdMethod, Weight,
};
use crate::math::{
    bias_correction, low_rank_error, low_rank_with, random_coverage, relative_tail,
    shared_basis_with, shared_error,
};
use crate::order::PermutedSource;
use crate::plan::{MatrixForm, UnitMatrix, UnitPlan};

pub(super) fn factorise_unit(
    source: &PermutedSource<'_>,
    unit: &UnitPlan,
    treatment: &ModelTreatment,
) -> Result<Factors, MakeError> {
    let dense = dense_weights(source, &unit.members)?;
    let weights = unit.members.iter().zip(&dense);
    let weights: Vec<Weight> = weights
        .map(|(member, values)| member.weight(values))
        .collect();
    let terms = Factoriser::new(source, unit, treatment, &weights)?;
    let mut made = UnitResults::default();
    match unit.form {
        MatrixForm::Unchanged | MatrixForm::Dense { .. } | MatrixForm::ColumnGroups { .. } => {}
        MatrixForm::LowRank { rank, a, b } => {
            for (index, weight) in weights.iter().enumerate() {
                terms.low_rank(index, *weight, rank, [a, b], [1.0; 2], &mut made)?;
            }
        }
        MatrixForm::Residual { base, rank, a, b } => {
            for (index, weight) in weights.iter().enumerate() {
                terms.residual(index, *weight, base, rank, [a, b], &mut made)?;
            }
        }
        MatrixForm::SharedBasis {
            rank,
            basis,
            projected,
        } => terms.shared_basis(&weights, rank, [basis, projected], &mut made)?,
    }
    terms.finish(made)
}

struct Factoriser<'a> {
    source: &'a PermutedSource<'a>,
    unit: &'a UnitPlan,
    gauge: Arc<Gauge>,
    output: Option<Diagonal>,
    norm: Norm,
    direction: Option<Vec<f64>>,
    exempt: Vec<usize>,
    axiom: Option<Arc<AxiomGauge>>,
    inputs: Option<InputStatistics>,
    algebra: &'a dyn Algebra,
}

#[derive(Default)]
struct UnitResults {
    tensors: Vec<Vec<u8>>,
    biases: Vec<Vec<f32>>,
    errors: Vec<f64>,
    output_errors: Vec<f64>,
    predicted: Vec<f64>,
    sinks: Vec<SinkOutcome>,
}

struct StoredFactors<'a> {
    a: &'a [f32],
    b: &'a [f32],
    rank: usize,
}

impl<'a> Factoriser<'a> {
    fn new(
        source: &'a PermutedSource<'a>,
        unit: &'a UnitPlan,
        treatment: &ModelTreatment<'a>,
        weights: &[Weight<'_>],
    ) -> Result<Factoriser<'a>, MakeError> {
        let failed = |error| factorise_error(source, &unit.members, 0, error);
        let place = input_of_unit(source, unit);
        let (gauge, output, norm) = gauges(unit, place, treatment, failed)?;
        let exempt = place.map(|place| treatment.exempt(place, weights));
        let inputs = place.map(|place| treatment.inputs(place));
        Ok(Factoriser {
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
            algebra: treatment.algebra,
        })
    }

    /// Factors that cover at least as much of it as random directions would are left unchanged.
    fn sink(&self, rank: usize) -> Option<Sink<'_>> {
        self.direction.as_deref().map(|direction| Sink {
            direction,
            threshold: random_coverage(rank, direction.len()),
        })
    }

    fn failed(&self, index: usize) -> impl Fn(FactoriseError) -> MakeError {
        move |error| factorise_error(self.source, &self.unit.members, index, error)
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
        made: &mut UnitResults,
    ) -> Result<(), MakeError> {
        let projection = self
            .unit
            .members
            .get(index)
            .and_then(UnitMatrix::projection);
        let path = decomposition_path(projection, &self.gauge);
        let options = LowRankOptions {
            method: path,
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
        made.predicted
            .push(relative_tail(&factors.singular_values, rank));
        made.sinks.extend(factors.sink);
        self.measure(index, target, StoredFactors { a, b, rank }, part[1], made)
    }

    fn residual(
        &self,
        index: usize,
        weight: Weight<'_>,
        base: DType,
        rank: usize,
        types: [DType; 2],
        made: &mut UnitResults,
    ) -> Result<(), MakeError> {
        let stored = self.store(base, weight.values, index, made)?;
        let moment = self.inputs.as_ref().map(InputStatistics::second_moment);
        let part = encode::error_energies(weight, &stored, moment);
        let pairs = weight.values.iter().zip(&stored);
        let lacking: Vec<f32> = pairs.map(|(w, base)| w - base).collect();
        let target = Weight {
            values: &lacking,
            ..weight
        };
        let part = part.map(|energies| energies.relative_error());
        self.low_rank(index, target, rank, types, part, made)
    }

    fn shared_basis(
        &self,
        weights: &[Weight<'_>],
        rank: usize,
        [basis, projected]: [DType; 2],
        made: &mut UnitResults,
    ) -> Result<(), MakeError> {
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
        let tail = relative_tail(&roots.collect::<Vec<f64>>(), rank);
        made.sinks.extend(shared.sink);
        for (index, (&weight, values)) in weights.iter().zip(&shared.projected).enumerate() {
            let b = self.store(projected, values, index, made)?;
            let (a, b) = (&basis[..], &b[..]);
            made.errors.push(shared_error(weight, a, b, rank));
            made.predicted.push(tail);
            self.measure(index, weight, StoredFactors { a, b, rank }, 1.0, made)?;
        }
        Ok(())
    }

    fn store(
        &self,
        dtype: DType,
        values: &[f32],
        index: usize,
        made: &mut UnitResults,
    ) -> Result<Vec<f32>, MakeError> {
        let name = || weight_name(self.source, self.unit.members[index].matrix);
        let codec = |error: CodecError| MakeError::of_tensor(&name(), error);
        let length = dtype.matrix_bytes(1, values.len()).unwrap_or(0);
        let mut bytes = vec![0; length];
        block::encode(dtype, values, &mut bytes).map_err(codec)?;
        let mut decoded = vec![0.0; values.len()];
        block::decode(dtype, &bytes, &mut decoded).map_err(codec)?;
        if decoded.iter().any(|v| !v.is_finite()) {
            return Err(MakeError::Overflow {
                tensor: name(),
                dtype,
            });
        }
        made.tensors.push(bytes);
        Ok(decoded)
    }

    fn measure(
        &self,
        index: usize,
        target: Weight<'_>,
        stored: StoredFactors<'_>,
        part: f64,
        made: &mut UnitResults,
    ) -> Result<(), MakeError> {
        let Some(inputs) = &self.inputs else {
            return Ok(());
        };
        let StoredFactors { a, b, rank } = stored;
        let (energies, varying) = inputs.energies(target, a, b, rank);
        made.output_errors.push(part * energies.relative_error());
        if self.norm == Norm::Output
            && let Some(predicted) = made.predicted.last_mut()
        {
            *predicted *= varying;
        }
        if let Some(mean) = inputs.mean_to_correct() {
            let lost = bias_correction(target, a, b, rank, mean).map_err(self.failed(index))?;
            let matrix = self.unit.members[index].matrix;
            made.biases
                .push(add_existing_bias(self.source, matrix, lost)?);
        }
        Ok(())
    }

    fn finish(self, mut made: UnitResults) -> Result<Factors, MakeError> {
        for (bias, member) in made.biases.iter().zip(&self.unit.members) {
            let mut bytes = vec![0; size_of::<f32>() * bias.len()];
            let encoded = block::encode(DType::F32, bias, &mut bytes);
            encoded.map_err(|error| {
                MakeError::of_tensor(&weight_name(self.source, member.matrix), error)
            })?;
            made.tensors.push(bytes);
        }
        let truncates = !matches!(self.unit.form, MatrixForm::Residual { .. });
        Ok(Factors {
            tensors: made.tensors,
            measurements: UnitMeasurements {
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
pub(crate) fn decomposition_path(projection: Option<ProjectionKind>, gauge: &Gauge) -> SvdMethod {
    match (projection.map(ProjectionKind::dense), gauge) {
        (Some(ProjectionKind::Down), Gauge::None) => SvdMethod::Svd,
        _ => SvdMethod::Auto,
    }
}

/// Returns the gauges of a unit's inputs and outputs, and the norm that they represent.
fn gauges(
    unit: &UnitPlan,
    place: Option<CalibratedInput>,
    treatment: &ModelTreatment,
    failed: impl Fn(FactoriseError) -> MakeError,
) -> Result<(Arc<Gauge>, Option<Diagonal>, Norm), MakeError> {
    let Some(place) = place else {
        return Ok((Arc::default(), None, Norm::Frobenius));
    };
    let projection = unit.members.first().and_then(UnitMatrix::projection);
    if let (Some(layer), Some(projection)) = (unit.layer(), projection)
        && let Some(axiom) = treatment.axiom(layer)?
    {
        let (input, output) = match ResidualSide::from_projection(projection) {
            ResidualSide::Read => (axiom.input_gauge().map_err(failed)?, None),
            ResidualSide::Write => (Gauge::None, Some(axiom.output_gauge().map_err(failed)?)),
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

/// `lost` is the loss of a factorisation on the mean input.
fn add_existing_bias(
    source: &PermutedSource<'_>,
    matrix: MatrixId,
    mut lost: Vec<f32>,
) -> Result<Vec<f32>, MakeError> {
    let own = matrix.role(Part::Bias).and_then(|role| source.tensor(role));
    let Some(tensor) = own else {
        return Ok(lost);
    };
    check_tensor_finite(source, tensor)?;
    let mut own = vec![0.0; lost.len()];
    let decoded = source.decode(tensor, 0..1, &mut own);
    decoded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
    lost.iter_mut()
        .zip(own)
        .for_each(|(lost, own)| *lost += own);
    if lost.iter().any(|v| !v.is_finite()) {
        return Err(MakeError::Overflow {
            tensor: tensor.name.clone(),
            dtype: DType::F32,
        });
    }
    Ok(lost)
}

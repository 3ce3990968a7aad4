//! What each matrix would lose in each type: some of its rows are coded as they will be, and what that adds to
//! the divergence is scaled up to all of them.

use htc_formats::DType;
use htc_formats::block::{self, BlockError, BlockFit};
use htc_formats::model::{MatrixId, Role};
use htc_formats::source::ModelTensor;

use crate::calibrate::Place;
use crate::codes;
use crate::event::{Event, Measurement, Watch};
use crate::gradient::{GradientError, Gradients};
use crate::math::{
    FactoriseError, Feedback, SecondMoment, Weight, dense_energies, weighted_dense_energies,
};
use crate::order::{Order, Ordered, reordered, reordered_lower};
use crate::plan::{self, Curve, Member, Point};
use crate::request::Work;
use crate::system::ordered;
use crate::unit::{ModelTreatment, SiteInputs, UnitError, UnitsError};

/// The curves of matrices, in their order. They do not depend on the number of threads; a matrix for each
/// is in work at a time. Without gradients each loses the part that it loses of its own outputs' energy.
///
/// # Errors
/// [`UnitsError::Unit`] where a weight does not decode or is not finite, or a second moment is none.
pub fn measure(
    source: &Ordered<'_>,
    members: &[Member],
    treatment: &ModelTreatment,
    gradients: Option<&Gradients>,
    threads: usize,
    watch: Watch,
) -> Result<Vec<Curve>, UnitsError> {
    watch.tell(Event::Measuring(Measurement::Curves, members.len()));
    let mut curves = Vec::with_capacity(members.len());
    ordered::for_each(
        threads,
        members.len(),
        members.len(),
        |index| {
            let curve = of_matrix(source, &members[index], treatment, gradients);
            curve.map_err(UnitsError::of(source.file()))
        },
        |index, curve| {
            watch.done(members[index].matrix.name())?;
            curves.push(curve);
            Ok(())
        },
    )?;
    Ok(curves)
}

/// Types that a matrix may have: those whose blocks fit, and which take less than the source.
pub(crate) fn types(member: &Member) -> impl Iterator<Item = DType> {
    let (cols, before) = (member.cols, member.source_type.row_bytes(member.cols));
    let all = BlockFit::TYPES.iter().copied();
    all.filter(move |dtype| dtype.row_bytes(cols).is_some() && dtype.row_bytes(cols) < before)
}

/// What a matrix loses in every type.
fn of_matrix(
    source: &Ordered<'_>,
    member: &Member,
    treatment: &ModelTreatment,
    gradients: Option<&Gradients>,
) -> Result<Curve, UnitError> {
    let matrix = member.matrix;
    let role = matrix.weight();
    let tensor = source.tensor(role).ok_or(UnitError::Missing(role))?;
    let failed = |source| UnitError::Factorise {
        tensor: tensor.name.clone(),
        source,
    };
    let place = plan::place(matrix, source.tensor(Role::Output).is_none());
    let inputs = place.map(|place| treatment.inputs(place));
    let inputs = inputs.transpose().map_err(failed)?.flatten();
    let moment = inputs.as_ref().map(SiteInputs::second_moment);
    let feedback = match place {
        Some(place) => treatment
            .feedback(place, codes::damping(Some(matrix)))
            .map_err(failed)?,
        None => None,
    };
    let costs = match gradients {
        Some(gradients) => costs(gradients, source.order(), matrix, place, moment)?,
        None => Vec::new(),
    };
    let effort = treatment.effort().work();
    let sample = Sample::of(source, tensor, effort)?;
    let mut points = Vec::new();
    for dtype in types(member) {
        let stored = match sample.stored(tensor, dtype, feedback.as_deref()) {
            Ok(stored) => stored,
            // Numbers beyond the type: it is none for this matrix.
            Err(UnitError::Block {
                source: BlockError::NoCode { .. },
                ..
            })
            | Err(UnitError::Factorise {
                source: FactoriseError::NoScales { .. },
                ..
            }) => continue,
            Err(error) => return Err(error),
        };
        let loss = match &costs[..] {
            [] => sample.part(&stored, moment),
            costs => costs.iter().map(|cost| sample.cost(&stored, cost)).sum(),
        };
        points.push(Point { dtype, loss });
    }
    Ok(Curve { matrix, points })
}

/// Half of `Σ_i h_i e_i C e_iᵀ` over the rows `e_i` of a matrix' error is what they cost, in nats per token.
struct Cost {
    /// `h`, by row.
    rows: Vec<f32>,
    order: usize,
    /// The lower triangle of `C`.
    moment: Vec<f64>,
}

/// What errors of a matrix cost: by what reads and the gradients at what it gives, and of an embedding by how
/// often its rows are looked up and the gradients there.
fn costs(
    gradients: &Gradients,
    order: Option<&Order>,
    matrix: MatrixId,
    place: Option<Place>,
    moment: Option<SecondMoment<'_>>,
) -> Result<Vec<Cost>, UnitError> {
    let unknown = |error: GradientError| UnitError::Cost(error.to_string());
    let mut costs = Vec::with_capacity(2);
    if let (Some(place), Some(moment)) = (place, moment) {
        let of = if place == Place::Head {
            MatrixId::Head
        } else {
            matrix
        };
        let rows = gradients.of(of).map_err(unknown)?.diagonal;
        costs.push(Cost {
            rows: match order.and_then(|order| order.outputs(of)) {
                None => rows,
                Some(order) => reordered(&rows, order),
            },
            order: moment.order,
            moment: moment.values.to_vec(),
        });
    }
    if matrix == MatrixId::Embedding {
        let found = gradients.of(matrix).map_err(unknown)?;
        let n = found.diagonal.len();
        let mut moment = vec![0.0; n * n];
        for block in &found.blocks {
            let mut numbers = block.lower.iter();
            for row in 0..block.order {
                let to = &mut moment[(block.first + row) * n + block.first..][..=row];
                for (to, &from) in to.iter_mut().zip(numbers.by_ref()) {
                    *to = f64::from(from);
                }
            }
        }
        costs.push(Cost {
            rows: gradients.shares().map_err(unknown)?,
            order: n,
            moment: match order.and_then(|order| order.outputs(matrix)) {
                None => moment,
                Some(order) => reordered_lower(&moment, order),
            },
        });
    }
    Ok(costs)
}

/// Some rows of a matrix.
struct Sample {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    /// Their indices in the matrix.
    indices: Vec<usize>,
    /// Rows of the matrix for each of them.
    stand_for: f64,
    /// Sweeps over their codes.
    sweeps: usize,
}

impl Sample {
    /// Rows at equal distances, as many as the effort says.
    fn of(source: &Ordered<'_>, tensor: &ModelTensor, effort: Work) -> Result<Sample, UnitError> {
        let (rows, cols) = (tensor.rows.min(effort.sampled_rows), tensor.cols);
        let mut values = vec![0.0; rows * cols];
        let mut indices = Vec::with_capacity(rows);
        for (index, values) in values.chunks_mut(cols.max(1)).enumerate() {
            let row = (2 * index + 1) * tensor.rows / (2 * rows);
            let decoded = source.decode(tensor, row..row + 1, values);
            decoded.map_err(|source| UnitError::Block {
                tensor: tensor.name.clone(),
                source,
            })?;
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                let (row, col) = source.place_in_source(tensor, row, at);
                return Err(UnitError::NotFinite {
                    tensor: tensor.name.clone(),
                    row,
                    col,
                    value: values[at],
                });
            }
            indices.push(row);
        }
        Ok(Sample {
            rows,
            cols,
            values,
            indices,
            stand_for: tensor.rows as f64 / rows.max(1) as f64,
            sweeps: effort.sweeps,
        })
    }

    /// What a decoder makes of them in a type.
    fn stored(
        &self,
        tensor: &ModelTensor,
        dtype: DType,
        feedback: Option<&Feedback>,
    ) -> Result<Vec<f32>, UnitError> {
        let codec = |source| UnitError::Block {
            tensor: tensor.name.clone(),
            source,
        };
        let bytes = dtype.row_bytes(self.cols).unwrap_or(0) * self.rows;
        let (mut bytes, mut stored) = (vec![0; bytes], vec![0.0; self.values.len()]);
        let weight = self.weight(&self.values);
        match feedback {
            Some(feedback) => codes::encode(
                dtype,
                weight,
                (feedback, self.sweeps),
                &mut bytes,
                &mut stored,
            )
            .map_err(|error| UnitError::of_code(&tensor.name, error))?,
            None => {
                block::encode(dtype, &self.values, &mut bytes).map_err(codec)?;
                block::decode(dtype, &bytes, &mut stored).map_err(codec)?;
            }
        }
        Ok(stored)
    }

    /// The part of the outputs' energy that is lost.
    fn part(&self, stored: &[f32], moment: Option<SecondMoment<'_>>) -> f64 {
        let weight = self.weight(&self.values);
        let energies = match moment {
            Some(moment) => weighted_dense_energies(weight, stored, moment),
            None => dense_energies(weight, stored),
        };
        energies.error().powi(2)
    }

    /// What the errors of all rows cost, judged by these.
    fn cost(&self, stored: &[f32], cost: &Cost) -> f64 {
        let roots: Vec<f32> = self
            .indices
            .iter()
            .map(|&row| cost.rows.get(row).map_or(0.0, |h| h.max(0.0).sqrt()))
            .collect();
        let weighed = |values: &[f32]| -> Vec<f32> {
            let rows = values.chunks(self.cols).zip(&roots);
            rows.flat_map(|(row, root)| row.iter().map(move |value| value * root))
                .collect()
        };
        let moment = SecondMoment {
            order: cost.order,
            values: &cost.moment,
        };
        let exact = weighed(&self.values);
        let lost = weighted_dense_energies(self.weight(&exact), &weighed(stored), moment);
        0.5 * self.stand_for * lost.missing
    }

    fn weight<'a>(&self, values: &'a [f32]) -> Weight<'a> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            values,
        }
    }
}

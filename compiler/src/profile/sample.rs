//! Some rows of a matrix, and what errors of it cost.

use htc_formats::DType;
use htc_formats::block;
use htc_formats::model::MatrixId;
use htc_formats::source::ModelTensor;

use crate::calibrate::Place;
use crate::gradient::Gradients;
use crate::math::{Feedback, SecondMoment, Weight, dense_energies, weighted_dense_energies};
use crate::order::{Order, Ordered, reordered, reordered_lower};
use crate::request::Work;
use crate::unit::UnitError;

/// Half of `Σ_i h_i e_i C e_iᵀ` over the rows `e_i` of a matrix' error is what they cost, in nats per token.
pub(super) struct Cost {
    /// `h`, by row.
    pub rows: Vec<f32>,
    /// Numbers of a row.
    pub order: usize,
    /// The lower triangle of `C`.
    pub moment: Vec<f64>,
}

/// What errors of a matrix cost: by what reads and the gradients at what it gives, and of an embedding by how
/// often its rows are looked up and the gradients there.
pub(super) fn costs(
    gradients: &Gradients,
    order: Option<&Order>,
    matrix: MatrixId,
    place: Option<Place>,
    moment: Option<SecondMoment<'_>>,
) -> Result<Vec<Cost>, UnitError> {
    let mut costs = Vec::with_capacity(2);
    if let (Some(place), Some(moment)) = (place, moment) {
        let of = if place == Place::Head {
            MatrixId::Head
        } else {
            matrix
        };
        let rows = gradients.of(of)?.diagonal;
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
        let found = gradients.of(matrix)?;
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
            rows: gradients.shares()?,
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
pub(super) struct Sample {
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f32>,
    /// Their indices in the matrix.
    pub indices: Vec<usize>,
    /// Rows of the matrix for each of them.
    stand_for: f64,
    /// Sweeps over their codes.
    pub sweeps: usize,
}

impl Sample {
    /// Rows at equal distances, as many as the effort says.
    pub fn of(
        source: &Ordered<'_>,
        tensor: &ModelTensor,
        effort: Work,
    ) -> Result<Sample, UnitError> {
        let (rows, cols) = (tensor.rows.min(effort.sampled_rows), tensor.cols);
        let mut values = vec![0.0; rows * cols];
        let mut indices = Vec::with_capacity(rows);
        for (index, values) in values.chunks_mut(cols.max(1)).enumerate() {
            let row = (2 * index + 1) * tensor.rows / (2 * rows);
            let decoded = source.decode(tensor, row..row + 1, values);
            decoded.map_err(|error| UnitError::of_decode(&tensor.name, error))?;
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
    pub fn stored(
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
            Some(feedback) => crate::codes::encode(
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
    pub fn part(&self, stored: &[f32], moment: Option<SecondMoment<'_>>) -> f64 {
        let weight = self.weight(&self.values);
        let energies = match moment {
            Some(moment) => weighted_dense_energies(weight, stored, moment),
            None => dense_energies(weight, stored),
        };
        energies.error().powi(2)
    }

    /// What the errors of all rows cost, judged by these.
    pub fn cost(&self, stored: &[f32], cost: &Cost) -> f64 {
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

    pub fn weight<'a>(&self, values: &'a [f32]) -> Weight<'a> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            values,
        }
    }
}

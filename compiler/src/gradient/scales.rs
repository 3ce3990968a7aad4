//! What of a model is tuned while its codes stay: the weights of norms, and a factor for each row of its slots.

use htc_formats::DType;
use htc_formats::model::{Form, MatrixId, Part, ProjectionKind, Role};
use htc_formats::source::ModelFile;

use super::GradientError;
use super::block::Block;
use super::weights::required;

/// A vector that is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// The weight of a norm: `[width]`, of queries and keys `[head]`.
    Norm(Role),
    /// What the rows of a slot's matrix are multiplied by, `[out]`.
    Rows {
        /// Index of the block.
        layer: usize,
        /// Which of its slots.
        slot: ProjectionKind,
    },
}

/// The vectors of a model that are tuned, in the order of execution.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scales {
    /// What each is.
    pub of: Vec<Scale>,
    /// Their numbers, or something that there is of each number.
    pub values: Vec<Vec<f32>>,
}

impl Scales {
    /// Those of a model that was made of `source`: every norm, and the rows of slots that are not stored as they are
    /// there. Factors are one.
    ///
    /// # Errors
    /// [`GradientError::Block`], [`GradientError::Missing`].
    pub fn of(file: &ModelFile, source: &ModelFile) -> Result<Scales, GradientError> {
        let (mut of, mut values) = (Vec::new(), Vec::new());
        for (layer, block) in file.spec().blocks.iter().enumerate() {
            for role in block.norms() {
                of.push(Scale::Norm(role));
                values.push(required(file, role)?);
            }
            for slot in block.projections().map(|projection| projection.kind) {
                let rows = rows_of(file, layer, slot).next();
                let Some(rows) = rows.filter(|_| is_coded([file, source], layer, slot)) else {
                    continue;
                };
                let rows = file.tensor(rows).map_or(0, |tensor| tensor.rows);
                of.push(Scale::Rows { layer, slot });
                values.push(vec![1.0; rows]);
            }
        }
        of.push(Scale::Norm(Role::OutputNorm));
        values.push(required(file, Role::OutputNorm)?);
        Ok(Scales { of, values })
    }

    /// Their numbers in all.
    pub fn count(&self) -> usize {
        self.values.iter().map(Vec::len).sum()
    }

    /// Which vector this is.
    pub fn index(&self, scale: Scale) -> Option<usize> {
        self.of.iter().position(|own| *own == scale)
    }

    /// A vector.
    ///
    /// # Errors
    /// [`GradientError::Missing`] for a norm that is none of them.
    pub fn norm(&self, role: Role) -> Result<&[f32], GradientError> {
        let values = self.get(Scale::Norm(role));
        values.ok_or(GradientError::Missing(role))
    }

    fn get(&self, scale: Scale) -> Option<&[f32]> {
        let found = self.index(scale).and_then(|index| self.values.get(index));
        found.map(Vec::as_slice)
    }

    /// Makes sums of `dy ∘ y` over positions gradients with respect to the factors of rows, which are in `y`.
    pub(super) fn divide_rows(&self, sums: &mut [Vec<f64>]) {
        let pairs = self.of.iter().zip(&self.values).zip(sums);
        for ((_, factors), sums) in pairs.filter(|((of, _), _)| matches!(of, Scale::Rows { .. })) {
            let pairs = sums.iter_mut().zip(factors);
            pairs.for_each(|(sum, &factor)| *sum /= f64::from(factor));
        }
    }

    /// Puts them in the place of those of a block.
    pub(super) fn put(&self, layer: usize, block: &mut Block<f32>) {
        for (role, weight) in block.norms_mut() {
            if let Some(own) = self.get(Scale::Norm(role)) {
                weight.copy_from_slice(own);
            }
        }
        for scale in &self.of {
            let &Scale::Rows { layer: own, slot } = scale else {
                continue;
            };
            let matrix = block.matrix_mut(slot).filter(|_| own == layer);
            if let (Some(matrix), Some(factors)) = (matrix, self.get(*scale)) {
                let rows = matrix.values.chunks_exact_mut(matrix.cols.max(1));
                for (row, factor) in rows.zip(factors) {
                    row.iter_mut().for_each(|weight| *weight *= factor);
                }
            }
        }
    }
}

/// The tensors of a slot that have a row for each of its outputs: of which all are multiplied where its rows are.
pub(crate) fn rows_of(
    file: &ModelFile,
    layer: usize,
    slot: ProjectionKind,
) -> impl Iterator<Item = Role> + '_ {
    let parts = [Part::Weight, Part::B, Part::Projected, Part::ResidualB];
    let roles = parts.map(|part| Role::Linear { layer, slot, part });
    let matrix = MatrixId::Projection {
        layer,
        projection: slot,
    };
    let refinement = Role::Refinement { matrix };
    let roles = roles.into_iter().chain([refinement]);
    roles.filter(|&role| file.tensor(role).is_some())
}

/// Whether a slot is not as it is in the source.
fn is_coded([file, source]: [&ModelFile; 2], layer: usize, slot: ProjectionKind) -> bool {
    let role = |part| Role::Linear { layer, slot, part };
    let has = |part| file.tensor(role(part)).is_some();
    let dtype = |of: &ModelFile| of.tensor(role(Part::Weight)).map(|tensor| tensor.dtype);
    Form::of(has) != Some(Form::Dense)
        || dtype(file) == Some(DType::Bands)
        || dtype(file) != dtype(source)
}

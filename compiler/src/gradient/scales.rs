//! Parameters tuned with fixed codes: norm weights and a factor for each row of projections.

use htc_formats::DType;
use htc_formats::model::{Form, MatrixId, Part, ProjectionKind, Role};
use htc_formats::source::ModelFile;

use super::block::Block;
use super::weights::required;
use crate::calibrate::PassError;

/// A tuned vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Weight of a norm, `[width]`, or `[head]` for queries and keys.
    Norm(Role),
    /// Row factors of a projection, `[out]`.
    Rows {
        /// Index of the block.
        layer: usize,
        /// Projection within the block.
        projection: ProjectionKind,
    },
}

/// Tuned vectors of a model, in the order of execution.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scales {
    /// Identity of each vector.
    pub of: Vec<Scale>,
    /// Values, or per-value data such as gradients.
    pub values: Vec<Vec<f32>>,
}

impl Scales {
    /// Returns the vectors of a model compiled from `source`: every norm, and row factors
    /// (initially 1) of projections stored differently from the source.
    ///
    /// # Errors
    /// [`PassError::Codec`], [`PassError::Missing`].
    pub fn from_models(file: &ModelFile, source: &ModelFile) -> Result<Scales, PassError> {
        let (mut of, mut values) = (Vec::new(), Vec::new());
        for (layer, block) in file.spec().blocks.iter().enumerate() {
            for role in block.norms() {
                of.push(Scale::Norm(role));
                values.push(required(file, role)?);
            }
            for projection in block.projections().map(|projection| projection.kind) {
                let rows = rows_of(file, layer, projection).next();
                let Some(rows) = rows.filter(|_| is_coded([file, source], layer, projection))
                else {
                    continue;
                };
                let rows = file.tensor(rows).map_or(0, |tensor| tensor.rows);
                of.push(Scale::Rows { layer, projection });
                values.push(vec![1.0; rows]);
            }
        }
        of.push(Scale::Norm(Role::OutputNorm));
        values.push(required(file, Role::OutputNorm)?);
        Ok(Scales { of, values })
    }

    /// Returns the total number of values.
    pub fn count(&self) -> usize {
        self.values.iter().map(Vec::len).sum()
    }

    /// Returns the index of a vector.
    pub fn index(&self, scale: Scale) -> Option<usize> {
        self.of.iter().position(|own| *own == scale)
    }

    /// Returns a norm's weight.
    ///
    /// # Errors
    /// [`PassError::Missing`] if it is not tuned.
    pub fn norm(&self, role: Role) -> Result<&[f32], PassError> {
        let values = self.get(Scale::Norm(role));
        values.ok_or(PassError::Missing(role))
    }

    fn get(&self, scale: Scale) -> Option<&[f32]> {
        let found = self.index(scale).and_then(|index| self.values.get(index));
        found.map(Vec::as_slice)
    }

    /// Converts sums of `dy ∘ y` to gradients of row factors, which `y` includes.
    pub(super) fn divide_rows(&self, sums: &mut [Vec<f64>]) {
        let pairs = self.of.iter().zip(&self.values).zip(sums);
        for ((_, factors), sums) in pairs.filter(|((of, _), _)| matches!(of, Scale::Rows { .. })) {
            let pairs = sums.iter_mut().zip(factors);
            pairs.for_each(|(sum, &factor)| *sum /= f64::from(factor));
        }
    }

    pub(super) fn put(&self, layer: usize, block: &mut Block<f32>) {
        for norm in block.norms_mut() {
            if let Some(own) = self.get(Scale::Norm(norm.role)) {
                norm.weight.copy_from_slice(own);
            }
        }
        for projection in block.projections_mut() {
            let rows = Scale::Rows {
                layer,
                projection: projection.kind,
            };
            if let Some(factors) = self.get(rows) {
                let matrix = &mut projection.matrix;
                let rows = matrix.values.chunks_exact_mut(matrix.cols.max(1));
                for (row, factor) in rows.zip(factors) {
                    row.iter_mut().for_each(|weight| *weight *= factor);
                }
            }
        }
    }
}

/// Returns the tensors that scale with the output rows of a projection.
pub(crate) fn rows_of(
    file: &ModelFile,
    layer: usize,
    projection: ProjectionKind,
) -> impl Iterator<Item = Role> + '_ {
    let parts = [Part::Weight, Part::B, Part::Projected, Part::ResidualB];
    let roles = parts.map(|part| Role::Linear {
        layer,
        projection,
        part,
    });
    let matrix = MatrixId::Projection { layer, projection };
    let refinement = Role::Refinement { matrix };
    let roles = roles.into_iter().chain([refinement]);
    roles.filter(|&role| file.tensor(role).is_some())
}

fn is_coded([file, source]: [&ModelFile; 2], layer: usize, projection: ProjectionKind) -> bool {
    let role = |part| Role::Linear {
        layer,
        projection,
        part,
    };
    let has = |part| file.tensor(role(part)).is_some();
    let dtype = |of: &ModelFile| of.tensor(role(Part::Weight)).map(|tensor| tensor.dtype);
    Form::from_parts(has) != Some(Form::Dense)
        || dtype(file) == Some(DType::Bands)
        || dtype(file) != dtype(source)
}

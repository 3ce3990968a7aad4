//! Element types of the source model.

use htc_formats::DType;
use htc_formats::model::{MatrixId, ProjectionKind};
use htc_formats::source::ModelFile;

/// Lookup of the types in which a source stores its matrices.
///
/// Implemented for functions of layer and projection, which describe a model without embedding and
/// head.
pub trait SourceTypes {
    /// Returns the type of a matrix; `None` if the model does not store it.
    fn dtype(&self, matrix: MatrixId) -> Option<DType>;
}

impl<F: Fn(usize, ProjectionKind) -> DType> SourceTypes for F {
    fn dtype(&self, matrix: MatrixId) -> Option<DType> {
        Some(self(matrix.layer()?, matrix.projection()?))
    }
}

/// Types of the tensors of a model file.
#[derive(Clone, Copy, Debug)]
pub struct ModelFileTypes<'a>(pub &'a ModelFile);

impl SourceTypes for ModelFileTypes<'_> {
    fn dtype(&self, matrix: MatrixId) -> Option<DType> {
        self.0.tensor(matrix.weight()).map(|tensor| tensor.dtype)
    }
}

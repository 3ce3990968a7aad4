//! How the model that is planned for stores its matrices.

use htc_formats::DType;
use htc_formats::model::{MatrixId, Slot};
use htc_formats::source::ModelFile;

/// Tells how a source stores a matrix.
///
/// A function of layer and slot does for a model whose embedding and head are as good as not there.
pub trait SourceTypes {
    /// The type of a matrix; `None` where the model has none of its own, as with a head that is tied to
    /// the embedding.
    fn of(&self, matrix: MatrixId) -> Option<DType>;
}

impl<F: Fn(usize, Slot) -> DType> SourceTypes for F {
    fn of(&self, matrix: MatrixId) -> Option<DType> {
        Some(self(matrix.layer()?, matrix.slot()?))
    }
}

/// The types of a model's tensors.
#[derive(Clone, Copy, Debug)]
pub struct OfSource<'a>(pub &'a ModelFile);

impl SourceTypes for OfSource<'_> {
    fn of(&self, matrix: MatrixId) -> Option<DType> {
        self.0.tensor(matrix.weight()).map(|tensor| tensor.dtype)
    }
}

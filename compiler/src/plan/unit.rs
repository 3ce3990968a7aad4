use htc_formats::DType;
use htc_formats::model::{HyperParameters, MatrixId, ModelSpec, ProjectionKind, StoredTensor};

use super::form::{MatrixForm, exact_type, factor_type_for};
use super::sources::SourceTypes;
use crate::calibrate::CalibratedInput;
use crate::math::Weight;
use crate::options::{PlanRequest, SinkProtection};

/// A projection, or projections that share a basis, before the decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Index of the block.
    pub layer: usize,
    /// One projection for [`Method::PerProjection`](crate::options::Method::PerProjection), the
    /// selected projections of a group for
    /// [`Method::SharedBasis`](crate::options::Method::SharedBasis).
    pub members: Vec<UnitMatrix>,
    /// Rows of all members together.
    pub outs: usize,
    /// Columns of every member.
    pub cols: usize,
    /// Largest valid rank.
    pub rank_limit: usize,
}

impl Unit {
    /// Returns the largest rank of its weights.
    pub fn full_rank(&self) -> usize {
        self.outs.min(self.cols)
    }

    /// Returns the number of elements of the dense matrices.
    pub fn parameters(&self) -> u64 {
        self.outs as u64 * self.cols as u64
    }

    /// Returns the bytes of the dense matrices in the source.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(UnitMatrix::bytes).sum()
    }

    /// Returns a display name such as `layer 3: q+k+v`.
    pub fn label(&self) -> String {
        label(&self.members)
    }

    /// Returns the factored form of a rank in the requested type, or in the types that it falls
    /// back to.
    pub(super) fn factored_form(&self, request: &PlanRequest, rank: usize) -> MatrixForm {
        let requested = request.factor_type;
        let (first, second) = match self.exact_type(request) {
            // Zeros and ones are exact in any floating-point type.
            Some(exact) if requested.block_len() > 1 => (DType::F16, exact),
            Some(exact) => (requested, exact),
            None => (
                factor_type_for(requested, self.cols),
                factor_type_for(requested, rank),
            ),
        };
        MatrixForm::factored(request.method, rank, first, second)
    }

    pub(super) fn exact_type(&self, request: &PlanRequest) -> Option<DType> {
        let channels = matches!(request.treatment.sink, Some(SinkProtection::Channels(_)));
        let types = self.members.iter().map(|member| member.source_type);
        let reads = reads_stream(&self.members);
        (channels && reads).then(|| exact_type(request.factor_type, types))
    }
}

fn reads_stream(members: &[UnitMatrix]) -> bool {
    let projection = members.first().and_then(UnitMatrix::projection);
    projection.is_some_and(|projection| projection.input().reads_stream())
}

/// Returns the activations that a matrix reads.
pub fn activation_point(matrix: MatrixId, tied: bool) -> Option<CalibratedInput> {
    match matrix {
        MatrixId::Projection { layer, projection } => Some(CalibratedInput::Site {
            layer,
            site: projection.input(),
        }),
        MatrixId::Head => Some(CalibratedInput::Head),
        MatrixId::Embedding => tied.then_some(CalibratedInput::Head),
    }
}

/// Returns true for routers of experts, which stay as in the source unless a plan file decides
/// otherwise: they are small, and an error sends rows to other experts.
pub fn is_router(matrix: MatrixId) -> bool {
    matrix.projection() == Some(ProjectionKind::Router)
}

/// Returns the projections of all blocks in the order of execution.
pub(super) fn projections(hyper: &HyperParameters) -> Vec<MatrixId> {
    ModelSpec::new(hyper, []).matrices().collect()
}

/// Returns a display name without the layer such as `q`, `expert_gate.17` or `embedding`.
pub(super) fn matrix_name(matrix: MatrixId) -> String {
    match matrix.projection() {
        Some(projection) => projection.to_string(),
        None => matrix.name().to_owned(),
    }
}

/// Returns a display name such as `layer 3: q+k+v` or `embedding`.
pub(crate) fn label(members: &[UnitMatrix]) -> String {
    let names: Vec<String> = members.iter().map(|m| matrix_name(m.matrix)).collect();
    let names = names.join("+");
    match members.first().and_then(|member| member.matrix.layer()) {
        Some(layer) => format!("layer {layer}: {names}"),
        None => names,
    }
}

/// Decision on one matrix, or on projections of a layer that share a basis.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitPlan {
    /// One matrix, or the selected projections of a group for
    /// [`Method::SharedBasis`](crate::options::Method::SharedBasis).
    pub members: Vec<UnitMatrix>,
    /// Form in which the unit is stored.
    pub form: MatrixForm,
    /// Deviations from the request, for display.
    pub notes: Vec<String>,
}

/// A matrix of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitMatrix {
    /// Name of the matrix.
    pub matrix: MatrixId,
    /// Rows of the dense matrix.
    pub rows: usize,
    /// Columns of the dense matrix.
    pub cols: usize,
    /// Type in the source.
    pub source_type: DType,
}

impl UnitMatrix {
    /// Returns the matrix of a model, if stored.
    pub fn new(
        matrix: MatrixId,
        hyper: &HyperParameters,
        source_type: &impl SourceTypes,
    ) -> Option<UnitMatrix> {
        let (rows, cols) = matrix.shape(hyper);
        Some(UnitMatrix {
            matrix,
            rows,
            cols,
            source_type: source_type.dtype(matrix)?,
        })
    }

    /// Returns the projection; `None` outside of blocks.
    pub const fn projection(&self) -> Option<ProjectionKind> {
        self.matrix.projection()
    }

    /// Returns the dense matrix with these values.
    pub(crate) const fn weight<'a>(&self, values: &'a [f32]) -> Weight<'a> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            values,
        }
    }

    /// Returns the number of elements of the dense matrix.
    pub fn parameters(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// Returns the bytes of the dense matrix in the source.
    pub fn bytes(&self) -> u64 {
        MatrixForm::Unchanged.bytes(std::slice::from_ref(self))
    }
}

impl UnitPlan {
    /// Returns the decision on these members, without notes.
    pub fn new(members: Vec<UnitMatrix>, form: MatrixForm) -> UnitPlan {
        UnitPlan {
            members,
            form,
            notes: Vec::new(),
        }
    }

    /// Returns the index of the block; `None` outside of blocks.
    pub fn layer(&self) -> Option<usize> {
        self.members.first()?.matrix.layer()
    }

    /// Returns the activations that its members read.
    pub fn activation_point(&self, tied: bool) -> Option<CalibratedInput> {
        activation_point(self.members.first()?.matrix, tied)
    }

    /// Returns the number of components kept; `None` without factors.
    pub fn rank(&self) -> Option<usize> {
        self.form.rank()
    }

    /// Returns the stored tensors; see [`MatrixForm::tensors`].
    pub fn tensors(&self) -> Vec<StoredTensor> {
        self.form.tensors(&self.members)
    }

    pub(super) fn reads_stream(&self) -> bool {
        reads_stream(&self.members)
    }

    /// `None` if both types are equal, or without factors.
    pub(super) fn rounded_source_type(&self) -> Option<(DType, DType)> {
        let types = self.members.iter().map(|member| member.source_type);
        let (stored, exact) = match self.form {
            MatrixForm::LowRank { b, .. } => (b, exact_type(b, types)),
            MatrixForm::SharedBasis { projected, .. } => (projected, exact_type(projected, types)),
            MatrixForm::Residual { b, .. } => (b, DType::F32),
            MatrixForm::Unchanged | MatrixForm::Dense { .. } | MatrixForm::ColumnGroups { .. } => {
                return None;
            }
        };
        (stored != exact).then_some((stored, exact))
    }

    /// Returns the number of elements of the dense matrices.
    pub fn parameters_before(&self) -> u64 {
        self.members.iter().map(UnitMatrix::parameters).sum()
    }

    /// Returns the number of elements of the stored form.
    pub fn parameters_after(&self) -> u64 {
        self.form.parameters(&self.members)
    }

    /// Returns the bytes of the dense matrices in the source.
    pub fn bytes_before(&self) -> u64 {
        self.members.iter().map(UnitMatrix::bytes).sum()
    }

    /// Returns the bytes of the stored form.
    pub fn bytes_after(&self) -> u64 {
        self.form.bytes(&self.members)
    }

    /// Returns a display name such as `layer 3: q+k+v` or `head`.
    pub fn label(&self) -> String {
        label(&self.members)
    }
}

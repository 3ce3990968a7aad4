//! What is decided about: a slot, or the slots that share a basis; and what was decided.

use htc_formats::DType;
use htc_formats::model::{HyperParameters, MatrixId, Slot, StoredTensor};

use super::form::{Form, exact_type, factor_type_for};
use super::sources::SourceTypes;
use crate::calibrate::Place;
use crate::request::{Request, SinkProtection};

/// A slot, or the slots that share a basis, before anything is decided about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Index of the block.
    pub layer: usize,
    /// One slot for [`Method::PerSlot`](crate::request::Method::PerSlot), the selected slots of a group for
    /// [`Method::SharedBasis`](crate::request::Method::SharedBasis).
    pub members: Vec<Member>,
    /// Rows of all members together.
    pub outs: usize,
    /// Columns of every member.
    pub cols: usize,
    /// The largest rank it can have.
    pub limit: usize,
}

impl Unit {
    /// The largest rank that its weights can have. A basis of the whole input may have more, which
    /// adds nothing.
    pub fn full_rank(&self) -> usize {
        self.outs.min(self.cols)
    }

    /// Numbers in the dense matrices.
    pub fn parameters(&self) -> u64 {
        self.outs as u64 * self.cols as u64
    }

    /// Bytes of the dense matrices in the source.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(Member::bytes).sum()
    }

    /// `layer 3: q+k+v`, for people.
    pub fn label(&self) -> String {
        label(&self.members)
    }

    /// The factored form of a rank, with the types its factors are stored in when that of the request was
    /// asked for.
    pub(super) fn factored(&self, request: &Request, rank: usize) -> Form {
        let asked = request.factor_type;
        let (first, second) = match self.exact_type(request) {
            // Zeros and ones are in any type of floating-point numbers; what passes through one is not
            // rounded to eight bits on its way, as it would be in front of blocks.
            Some(exact) if asked.block_len() > 1 => (DType::F16, exact),
            Some(exact) => (asked, exact),
            None => (
                factor_type_for(asked, self.cols),
                factor_type_for(asked, rank),
            ),
        };
        Form::factored(request.method, rank, first, second)
    }

    /// The type of factors in which exempt channels are exact, where the request has some here.
    pub(super) fn exact_type(&self, request: &Request) -> Option<DType> {
        let channels = matches!(request.treatment.sink, Some(SinkProtection::Channels(_)));
        let types = self.members.iter().map(|member| member.source_type);
        let reads = reads_stream(&self.members);
        (channels && reads).then(|| exact_type(request.factor_type, types))
    }
}

/// Whether slots read the residual stream, whose channels can be exempt.
fn reads_stream(members: &[Member]) -> bool {
    let slot = members.first().and_then(Member::slot);
    slot.is_some_and(|slot| slot.group().is_some())
}

/// Whose activations a matrix reads; see [`UnitPlan::place`].
pub fn place(matrix: MatrixId, tied: bool) -> Option<Place> {
    match matrix {
        MatrixId::Slot { layer, slot } => Some(Place::Site {
            layer,
            site: slot.site(),
        }),
        MatrixId::Head => Some(Place::Head),
        MatrixId::Embedding => tied.then_some(Place::Head),
    }
}

/// `layer 3: q+k+v`, `embedding`.
pub(crate) fn label(members: &[Member]) -> String {
    let names: Vec<_> = members.iter().map(|m| m.matrix.name()).collect();
    let names = names.join("+");
    match members.first().and_then(|member| member.matrix.layer()) {
        Some(layer) => format!("layer {layer}: {names}"),
        None => names,
    }
}

/// What becomes of one matrix, or of the slots of a layer that share a basis.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitPlan {
    /// One matrix, or the selected slots of a group for
    /// [`Method::SharedBasis`](crate::request::Method::SharedBasis).
    pub members: Vec<Member>,
    /// Form in which the unit is stored.
    pub form: Form,
    /// What differs from the request, for people.
    pub notes: Vec<String>,
}

/// A matrix of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Which one.
    pub matrix: MatrixId,
    /// Rows of the dense matrix.
    pub rows: usize,
    /// Columns of the dense matrix.
    pub cols: usize,
    /// How the source stores it.
    pub source_type: DType,
}

impl Member {
    /// A matrix as a model has it; `None` where it has none of its own.
    pub fn new(
        matrix: MatrixId,
        hyper: &HyperParameters,
        source_type: &impl SourceTypes,
    ) -> Option<Member> {
        let (rows, cols) = matrix.shape(hyper);
        Some(Member {
            matrix,
            rows,
            cols,
            source_type: source_type.of(matrix)?,
        })
    }

    /// Which of a block's slots it is; `None` outside of blocks.
    pub const fn slot(&self) -> Option<Slot> {
        self.matrix.slot()
    }

    /// Numbers in the dense matrix.
    pub fn parameters(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// Bytes of the dense matrix in the source.
    pub fn bytes(&self) -> u64 {
        Form::Kept.bytes(std::slice::from_ref(self))
    }
}

impl UnitPlan {
    /// The block it belongs to; `None` outside of blocks.
    pub fn layer(&self) -> Option<usize> {
        self.members.first()?.matrix.layer()
    }

    /// Whose activations its members read. `None` for an embedding, whose rows are looked up, unless the
    /// head is `tied` to it.
    pub fn place(&self, tied: bool) -> Option<Place> {
        place(self.members.first()?.matrix, tied)
    }

    /// Components kept; `None` where there are no factors.
    pub fn rank(&self) -> Option<usize> {
        self.form.rank()
    }

    /// What it stores, in the order of execution: see [`Form::tensors`].
    pub fn tensors(&self) -> Vec<StoredTensor> {
        self.form.tensors(&self.members)
    }

    /// Whether it reads the residual stream, whose channels can be exempt.
    pub(super) fn reads_stream(&self) -> bool {
        reads_stream(&self.members)
    }

    /// The type in which its factors are stored that hold numbers of the source, and the one in which such
    /// numbers are exact where that is another; `None` where it is the same, or there are no factors.
    pub(super) fn inexact(&self) -> Option<(DType, DType)> {
        let types = self.members.iter().map(|member| member.source_type);
        let (stored, exact) = match self.form {
            Form::LowRank { b, .. } => (b, exact_type(b, types)),
            Form::SharedBasis { projected, .. } => (projected, exact_type(projected, types)),
            // What a base lacks are no numbers of the source.
            Form::Residual { b, .. } => (b, DType::F32),
            Form::Kept | Form::Dense { .. } | Form::Bands { .. } => return None,
        };
        (stored != exact).then_some((stored, exact))
    }

    /// Numbers in the dense matrices.
    pub fn parameters_before(&self) -> u64 {
        self.members.iter().map(Member::parameters).sum()
    }

    /// Numbers in the stored form.
    pub fn parameters_after(&self) -> u64 {
        self.form.parameters(&self.members)
    }

    /// Bytes of the dense matrices in the source.
    pub fn bytes_before(&self) -> u64 {
        self.members.iter().map(Member::bytes).sum()
    }

    /// Bytes of the stored form.
    pub fn bytes_after(&self) -> u64 {
        self.form.bytes(&self.members)
    }

    /// `layer 3: q+k+v` or `head`, for people.
    pub fn label(&self) -> String {
        label(&self.members)
    }
}

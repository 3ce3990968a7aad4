//! What is decided about: a slot, or the slots that share a basis; and what was decided.

use htc_formats::DType;
use htc_formats::model::{HyperParameters, MatrixId, Site, Slot, StoredTensor};

use super::form::{Form, factor_type_for};
use super::sources::SourceTypes;
use crate::request::Method;

/// A slot, or the slots that share a basis, before anything is decided about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Index of the block.
    pub layer: usize,
    /// One slot for [`Method::PerSlot`], the selected slots of a group for
    /// [`Method::SharedBasis`].
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

    /// The factored form of a rank, with the types its factors are stored in when `asked` was
    /// asked for.
    pub(super) fn factored(&self, method: Method, rank: usize, asked: DType) -> Form {
        let (first, second) = (
            factor_type_for(asked, self.cols),
            factor_type_for(asked, rank),
        );
        Form::factored(method, rank, first, second)
    }
}

/// `layer 3: q+k+v`, `embedding`.
fn label(members: &[Member]) -> String {
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
    /// One matrix, or the selected slots of a group for [`Method::SharedBasis`].
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

    /// The block and the place in it whose activations its members read; `None` outside of blocks.
    pub fn site(&self) -> Option<(usize, Site)> {
        let matrix = self.members.first()?.matrix;
        Some((matrix.layer()?, matrix.slot()?.site()))
    }

    /// Components kept; `None` where there are no factors.
    pub fn rank(&self) -> Option<usize> {
        self.form.rank()
    }

    /// What it stores, in the order of execution: see [`Form::tensors`].
    pub fn tensors(&self) -> Vec<StoredTensor> {
        self.form.tensors(&self.members)
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

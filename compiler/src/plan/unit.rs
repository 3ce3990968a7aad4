//! What is decided about: a slot, or the slots that share a basis; and what was decided.

use htc_formats::DType;
use htc_formats::model::Slot;

use super::Method;

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
        label(self.layer, &self.members)
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

fn label(layer: usize, members: &[Member]) -> String {
    let names: Vec<_> = members.iter().map(|m| m.slot.name()).collect();
    format!("layer {layer}: {}", names.join("+"))
}

/// What becomes of one slot, or of one group of slots that share a basis.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitPlan {
    /// Index of the block.
    pub layer: usize,
    /// One slot for [`Method::PerSlot`], the selected slots of a group for
    /// [`Method::SharedBasis`].
    pub members: Vec<Member>,
    /// Form in which the unit is stored.
    pub form: Form,
    /// What differs from the request, for people.
    pub notes: Vec<String>,
}

/// A slot of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Which of the seven.
    pub slot: Slot,
    /// Rows of the dense matrix.
    pub rows: usize,
    /// Columns of the dense matrix.
    pub cols: usize,
    /// How the source stores it.
    pub source_type: DType,
}

impl Member {
    /// Numbers in the dense matrix.
    pub fn parameters(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// Bytes of the dense matrix in the source.
    pub fn bytes(&self) -> u64 {
        stored_bytes(self.source_type, self.rows, self.cols)
    }
}

/// The stored form of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// As in the source.
    Dense,
    /// `A [rank, in]` and `B [out, rank]`.
    LowRank {
        /// Components kept.
        rank: usize,
        /// Element type of `A`.
        a: DType,
        /// Element type of `B`.
        b: DType,
    },
    /// `Pᵀ [rank, in]` once, `W̃_i [out_i, rank]` per slot.
    SharedBasis {
        /// Components kept.
        rank: usize,
        /// Element type of the basis.
        basis: DType,
        /// Element type of the projected weights.
        projected: DType,
    },
}

impl Form {
    /// The factored form of a method, with the types of its two factors.
    pub(super) fn factored(method: Method, rank: usize, first: DType, second: DType) -> Form {
        match method {
            Method::PerSlot => Form::LowRank {
                rank,
                a: first,
                b: second,
            },
            Method::SharedBasis => Form::SharedBasis {
                rank,
                basis: first,
                projected: second,
            },
        }
    }

    /// Bytes of this form of slots that read the same input.
    pub(super) fn bytes(&self, members: &[Member]) -> u64 {
        let (rank, first, second) = match *self {
            Form::Dense => return members.iter().map(Member::bytes).sum(),
            Form::LowRank { rank, a, b } => (rank, a, b),
            Form::SharedBasis {
                rank,
                basis,
                projected,
            } => (rank, basis, projected),
        };
        let cols = members.first().map_or(0, |m| m.cols);
        let each = members.iter().map(|m| stored_bytes(second, m.rows, rank));
        stored_bytes(first, rank, cols) + each.sum::<u64>()
    }
}

/// Bytes of a stored matrix whose columns are a whole number of blocks.
fn stored_bytes(dtype: DType, rows: usize, cols: usize) -> u64 {
    (cols / dtype.block_len()) as u64 * dtype.block_bytes() as u64 * rows as u64
}

/// The type a factor with rows of `cols` numbers is stored in: the one asked for where its
/// blocks fit, else q8_0 where those do (and are shorter), else f16.
pub(super) fn factor_type_for(asked: DType, cols: usize) -> DType {
    let fits = |dtype: DType| cols.is_multiple_of(dtype.block_len());
    let shorter = DType::Q8_0.block_len() < asked.block_len();
    match asked {
        asked if fits(asked) => asked,
        _ if shorter && fits(DType::Q8_0) => DType::Q8_0,
        _ => DType::F16,
    }
}

impl UnitPlan {
    /// Components kept; `None` where the unit stays dense.
    pub fn rank(&self) -> Option<usize> {
        match self.form {
            Form::Dense => None,
            Form::LowRank { rank, .. } | Form::SharedBasis { rank, .. } => Some(rank),
        }
    }

    /// Numbers in the dense matrices.
    pub fn parameters_before(&self) -> u64 {
        self.members.iter().map(Member::parameters).sum()
    }

    /// Numbers in the stored form.
    pub fn parameters_after(&self) -> u64 {
        match self.rank() {
            None => self.parameters_before(),
            Some(rank) => {
                let outs: usize = self.members.iter().map(|m| m.rows).sum();
                rank as u64 * (outs + self.cols()) as u64
            }
        }
    }

    /// Bytes of the dense matrices in the source.
    pub fn bytes_before(&self) -> u64 {
        self.members.iter().map(Member::bytes).sum()
    }

    /// Bytes of the stored form.
    pub fn bytes_after(&self) -> u64 {
        self.form.bytes(&self.members)
    }

    /// `layer 3: q+k+v`, for people.
    pub fn label(&self) -> String {
        label(self.layer, &self.members)
    }

    fn cols(&self) -> usize {
        self.members.first().map_or(0, |m| m.cols)
    }
}

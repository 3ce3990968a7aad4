//! What becomes of a matrix, and what it then stores. Planning, sealing, forecasting and the memory's
//! estimate ask here; the loader and the check of a manifest ask [`StoredForm`], which this builds on.

use htc_formats::DType;
use htc_formats::bands::Layout;
pub use htc_formats::model::StoredForm;
use htc_formats::model::StoredTensor;

use super::unit::Member;
use crate::request::Method;

/// The form of a unit: of one matrix, or of the slots that share a basis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// As in the source, byte by byte.
    Kept,
    /// Dense, encoded anew in a type.
    Dense {
        /// The type.
        weight: DType,
    },
    /// Dense, encoded anew in bands of 32 columns, the last of them padded where columns do not fill it.
    Bands {
        /// The codes of its bands.
        codes: Layout,
    },
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
    /// A dense base `W₀ [out, in]` in a short type, and what it lacks as `A [rank, in]` and
    /// `B [out, rank]`: `W ≈ W₀ + B A`.
    Residual {
        /// Element type of the base.
        base: DType,
        /// Components kept of what the base lacks.
        rank: usize,
        /// Element type of `A`.
        a: DType,
        /// Element type of `B`.
        b: DType,
    },
}

impl Form {
    /// The factored form of a method, with the types of its two factors.
    pub(super) fn factored(method: Method, rank: usize, first: DType, second: DType) -> Form {
        match method {
            Method::PerSlot | Method::Quantise => Form::LowRank {
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

    /// Factors of a rank, of slots with inputs of so many numbers, in a type as far as rows are whole blocks of it: with
    /// a basis in common, or of one slot alone.
    pub fn of_factors(shared: bool, rank: usize, (asked, cols): (DType, usize)) -> Form {
        let method = match shared {
            true => Method::SharedBasis,
            false => Method::PerSlot,
        };
        let (first, second) = (factor_type_for(asked, cols), factor_type_for(asked, rank));
        Form::factored(method, rank, first, second)
    }

    /// The types of the factor that reads the input and of the one behind it; f32 where there are none.
    pub const fn factor_types(&self) -> [DType; 2] {
        match self {
            Form::LowRank { a, b, .. } | Form::Residual { a, b, .. } => [*a, *b],
            Form::SharedBasis {
                basis, projected, ..
            } => [*basis, *projected],
            Form::Kept | Form::Dense { .. } | Form::Bands { .. } => [DType::F32; 2],
        }
    }

    /// What is stored of a matrix that the source has in `source_type`.
    pub fn stored(&self, source_type: DType) -> StoredForm {
        match self.clone() {
            Form::Kept => StoredForm::Dense {
                weight: source_type,
            },
            Form::Dense { weight } => StoredForm::Dense { weight },
            Form::Bands { codes } => StoredForm::Bands { codes },
            Form::LowRank { rank, a, b } => StoredForm::LowRank { rank, a, b },
            Form::SharedBasis {
                rank,
                basis,
                projected,
            } => StoredForm::SharedBasis {
                rank,
                basis,
                projected,
            },
            Form::Residual { base, rank, a, b } => StoredForm::Residual { base, rank, a, b },
        }
    }

    /// Components of its factors; `None` where there are none.
    pub const fn rank(&self) -> Option<usize> {
        match self {
            Form::Kept | Form::Dense { .. } | Form::Bands { .. } => None,
            Form::LowRank { rank, .. }
            | Form::SharedBasis { rank, .. }
            | Form::Residual { rank, .. } => Some(*rank),
        }
    }

    /// The tensors of matrices that read the same input: their basis, where they share one, then those of
    /// each, in the order of execution.
    pub fn tensors(&self, members: &[Member]) -> Vec<StoredTensor> {
        let first = members.first();
        let basis = first.and_then(|member| {
            let (layer, slot) = member.matrix.layer().zip(member.matrix.slot())?;
            let stored = self.stored(member.source_type);
            stored.basis(layer, slot.group()?, member.cols)
        });
        let own = members.iter().flat_map(|member| {
            let stored = self.stored(member.source_type);
            stored.tensors(member.matrix, (member.rows, member.cols))
        });
        basis.into_iter().chain(own).collect()
    }

    /// Numbers of those tensors.
    pub fn parameters(&self, members: &[Member]) -> u64 {
        let tensors = self.tensors(members);
        tensors.iter().map(StoredTensor::parameters).sum()
    }

    /// Bytes of those tensors, without the alignment between them.
    pub fn bytes(&self, members: &[Member]) -> u64 {
        let tensors = self.tensors(members);
        tensors.iter().map(StoredTensor::bytes).sum()
    }

    /// The types of its tensors, each with its key in a plan's file.
    pub(super) fn types(&self) -> Vec<(&'static str, DType)> {
        match *self {
            Form::Kept | Form::Bands { .. } => Vec::new(),
            Form::Dense { weight } => vec![("weight", weight)],
            Form::LowRank { a, b, .. } => vec![("a", a), ("b", b)],
            Form::SharedBasis {
                basis, projected, ..
            } => vec![("basis", basis), ("projected", projected)],
            Form::Residual { base, a, b, .. } => vec![("base", base), ("a", a), ("b", b)],
        }
    }

    /// What a plan's file calls them: of bands that are not rotated the code that all have, or the list.
    pub(super) fn type_names(&self) -> Vec<(&'static str, String)> {
        if let Form::Bands { codes } = self {
            let named = codes.same().filter(|code| code.is_current());
            let named = named.filter(|_| !codes.is_rotated());
            let same = named.map(|code| code.to_string());
            return vec![("weight", same.unwrap_or_else(|| codes.to_string()))];
        }
        let types = self.types().into_iter();
        types.map(|(key, dtype)| (key, dtype.to_string())).collect()
    }
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

/// The type in which a factor holds numbers of sources in `source_types` as they are: the one asked for
/// where it does, else that of the sources, else f32.
pub(super) fn exact_type(asked: DType, source_types: impl Iterator<Item = DType> + Clone) -> DType {
    let holds = |dtype: DType| {
        let short = matches!(dtype, DType::F16 | DType::BF16);
        dtype == DType::F32 || short && source_types.clone().all(|source| source == dtype)
    };
    let first = source_types.clone().next();
    let mut candidates = [Some(asked), first].into_iter().flatten();
    candidates.find(|&dtype| holds(dtype)).unwrap_or(DType::F32)
}

//! Form of a matrix in the artifact and the tensors it stores. [`StoredForm`] is the counterpart
//! used by the loader and by the manifest.

use htc_formats::DType;
use htc_formats::bands::Layout;
pub use htc_formats::model::StoredForm;
use htc_formats::model::StoredTensor;

use super::unit::Member;
use crate::request::Method;

/// Form of a unit: one matrix, or projections that share a basis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// Bytes of the source, unchanged.
    Kept,
    /// Dense, encoded in another type.
    Dense {
        /// Type of the weights.
        weight: DType,
    },
    /// Dense, encoded in groups of 32 columns; the last is padded if incomplete.
    Bands {
        /// Codes of the column groups.
        codes: Layout,
    },
    /// `A [rank, in]` and `B [out, rank]`.
    LowRank {
        /// Number of components kept.
        rank: usize,
        /// Element type of `A`.
        a: DType,
        /// Element type of `B`.
        b: DType,
    },
    /// `Pᵀ [rank, in]` once, `W̃_i [out_i, rank]` for each projection.
    SharedBasis {
        /// Number of components kept.
        rank: usize,
        /// Element type of the basis.
        basis: DType,
        /// Element type of the projected weights.
        projected: DType,
    },
    /// A dense base `W₀ [out, in]` in a short type, with its error as `A [rank, in]` and `B [out,
    /// rank]`: `W ≈ W₀ + B A`.
    Residual {
        /// Element type of the base.
        base: DType,
        /// Number of components kept of the error.
        rank: usize,
        /// Element type of `A`.
        a: DType,
        /// Element type of `B`.
        b: DType,
    },
}

impl Form {
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

    /// Returns a factorisation of the given rank: a common basis if `shared`, else factors of one
    /// projection. The pair is the requested type and the input width; each factor falls back to
    /// another type if its rows are not whole blocks.
    pub fn of_factors(shared: bool, rank: usize, (asked, cols): (DType, usize)) -> Form {
        let method = if shared {
            Method::SharedBasis
        } else {
            Method::PerSlot
        };
        let (first, second) = (factor_type_for(asked, cols), factor_type_for(asked, rank));
        Form::factored(method, rank, first, second)
    }

    /// Returns the types of the first and the second factor; f32 without factors.
    pub const fn factor_types(&self) -> [DType; 2] {
        match self {
            Form::LowRank { a, b, .. } | Form::Residual { a, b, .. } => [*a, *b],
            Form::SharedBasis {
                basis, projected, ..
            } => [*basis, *projected],
            Form::Kept | Form::Dense { .. } | Form::Bands { .. } => [DType::F32; 2],
        }
    }

    /// Returns the stored form of a matrix whose source type is `source_type`.
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

    /// Returns the rank of the factors; `None` for dense forms.
    pub const fn rank(&self) -> Option<usize> {
        match self {
            Form::Kept | Form::Dense { .. } | Form::Bands { .. } => None,
            Form::LowRank { rank, .. }
            | Form::SharedBasis { rank, .. }
            | Form::Residual { rank, .. } => Some(*rank),
        }
    }

    /// Returns the tensors of matrices with the same input: their common basis, if any, then those
    /// of each member in the order of execution.
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

    /// Returns the number of elements of those tensors.
    pub fn parameters(&self, members: &[Member]) -> u64 {
        let tensors = self.tensors(members);
        tensors.iter().map(StoredTensor::parameters).sum()
    }

    /// Returns the bytes of those tensors without alignment.
    pub fn bytes(&self, members: &[Member]) -> u64 {
        let tensors = self.tensors(members);
        tensors.iter().map(StoredTensor::bytes).sum()
    }

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

    /// Returns the type names in a plan's file. Unrotated column groups with one code give its
    /// name, others the list.
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

/// Returns the type of a factor with rows of `cols` elements: the requested type if its blocks fit,
/// else q8_0 if that fits and has shorter blocks, else f16.
pub(super) fn factor_type_for(asked: DType, cols: usize) -> DType {
    let fits = |dtype: DType| cols.is_multiple_of(dtype.block_len());
    let shorter = DType::Q8_0.block_len() < asked.block_len();
    match asked {
        asked if fits(asked) => asked,
        _ if shorter && fits(DType::Q8_0) => DType::Q8_0,
        _ => DType::F16,
    }
}

/// Returns the type in which a factor holds elements of the sources exactly: the requested type if
/// it is exact, else that of the sources, else f32.
pub(super) fn exact_type(asked: DType, source_types: impl Iterator<Item = DType> + Clone) -> DType {
    let holds = |dtype: DType| {
        let short = matches!(dtype, DType::F16 | DType::BF16);
        dtype == DType::F32 || short && source_types.clone().all(|source| source == dtype)
    };
    let first = source_types.clone().next();
    let mut candidates = [Some(asked), first].into_iter().flatten();
    candidates.find(|&dtype| holds(dtype)).unwrap_or(DType::F32)
}

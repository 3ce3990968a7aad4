//! Form of a matrix in the artifact and the tensors it stores. [`StoredForm`] is the counterpart of
//! the loader and the manifest.

use htc_formats::DType;
use htc_formats::bands::CodeLayout;
pub use htc_formats::model::StoredForm;
use htc_formats::model::StoredTensor;

use super::unit::UnitMatrix;
use crate::options::Method;

/// Form of a unit: one matrix, or projections that share a basis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixForm {
    /// Bytes of the source, unchanged.
    Unchanged,
    /// Dense, encoded in another type.
    Dense {
        /// Type of the weights.
        weight: DType,
    },
    /// Dense, encoded in groups of 32 columns; the last is padded if incomplete.
    ColumnGroups {
        /// Codes of the column groups.
        codes: CodeLayout,
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

impl MatrixForm {
    pub(super) fn factored(method: Method, rank: usize, first: DType, second: DType) -> MatrixForm {
        match method {
            Method::PerProjection | Method::Quantise => MatrixForm::LowRank {
                rank,
                a: first,
                b: second,
            },
            Method::SharedBasis => MatrixForm::SharedBasis {
                rank,
                basis: first,
                projected: second,
            },
        }
    }

    /// Returns a factorisation of the given rank: a common basis if `shared`, else factors of one
    /// projection. Each factor has the type `requested`, or
    /// another if its rows are not whole blocks; those of the first have `cols` elements.
    pub fn with_factors(shared: bool, rank: usize, requested: DType, cols: usize) -> MatrixForm {
        let method = if shared {
            Method::SharedBasis
        } else {
            Method::PerProjection
        };
        let [first, second] = [cols, rank].map(|cols| factor_type_for(requested, cols));
        MatrixForm::factored(method, rank, first, second)
    }

    /// Returns the types of both factors; f32 without.
    pub const fn factor_types(&self) -> [DType; 2] {
        match self {
            MatrixForm::LowRank { a, b, .. } | MatrixForm::Residual { a, b, .. } => [*a, *b],
            MatrixForm::SharedBasis {
                basis, projected, ..
            } => [*basis, *projected],
            MatrixForm::Unchanged | MatrixForm::Dense { .. } | MatrixForm::ColumnGroups { .. } => {
                [DType::F32; 2]
            }
        }
    }

    /// Returns the stored form of a matrix whose source type is `source_type`.
    pub fn to_stored(&self, source_type: DType) -> StoredForm {
        match self.clone() {
            MatrixForm::Unchanged => StoredForm::Dense {
                weight: source_type,
            },
            MatrixForm::Dense { weight } => StoredForm::Dense { weight },
            MatrixForm::ColumnGroups { codes } => StoredForm::Bands { codes },
            MatrixForm::LowRank { rank, a, b } => StoredForm::LowRank { rank, a, b },
            MatrixForm::SharedBasis {
                rank,
                basis,
                projected,
            } => StoredForm::SharedBasis {
                rank,
                basis,
                projected,
            },
            MatrixForm::Residual { base, rank, a, b } => StoredForm::Residual { base, rank, a, b },
        }
    }

    /// Returns the rank of the factors; `None` for dense forms.
    pub const fn rank(&self) -> Option<usize> {
        match self {
            MatrixForm::Unchanged | MatrixForm::Dense { .. } | MatrixForm::ColumnGroups { .. } => {
                None
            }
            MatrixForm::LowRank { rank, .. }
            | MatrixForm::SharedBasis { rank, .. }
            | MatrixForm::Residual { rank, .. } => Some(*rank),
        }
    }

    /// Returns the tensors of matrices with the same input: their common basis, if any, then those
    /// of each member.
    pub fn tensors(&self, members: &[UnitMatrix]) -> Vec<StoredTensor> {
        let first = members.first();
        let basis = first.and_then(|member| {
            let (layer, projection) = member.matrix.layer().zip(member.matrix.projection())?;
            let stored = self.to_stored(member.source_type);
            stored.basis(layer, projection.group()?, member.cols)
        });
        let own = members.iter().flat_map(|member| {
            let stored = self.to_stored(member.source_type);
            stored.tensors(member.matrix, (member.rows, member.cols))
        });
        basis.into_iter().chain(own).collect()
    }

    /// Returns the number of elements of those tensors.
    pub fn parameters(&self, members: &[UnitMatrix]) -> u64 {
        let tensors = self.tensors(members);
        tensors.iter().map(StoredTensor::parameters).sum()
    }

    /// Returns the bytes of those tensors without alignment.
    pub fn bytes(&self, members: &[UnitMatrix]) -> u64 {
        let tensors = self.tensors(members);
        tensors.iter().map(StoredTensor::bytes).sum()
    }

    pub(super) fn types(&self) -> Vec<(&'static str, DType)> {
        match *self {
            MatrixForm::Unchanged | MatrixForm::ColumnGroups { .. } => Vec::new(),
            MatrixForm::Dense { weight } => vec![("weight", weight)],
            MatrixForm::LowRank { a, b, .. } => vec![("a", a), ("b", b)],
            MatrixForm::SharedBasis {
                basis, projected, ..
            } => vec![("basis", basis), ("projected", projected)],
            MatrixForm::Residual { base, a, b, .. } => vec![("base", base), ("a", a), ("b", b)],
        }
    }

    /// Unrotated column groups with one code give its name, others the list.
    pub(super) fn type_names(&self) -> Vec<(&'static str, String)> {
        if let MatrixForm::ColumnGroups { codes } = self {
            let named = codes.uniform_code().filter(|code| code.is_current());
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
pub(super) fn factor_type_for(requested: DType, cols: usize) -> DType {
    let fits = |dtype: DType| cols.is_multiple_of(dtype.block_len());
    let shorter = DType::Q8_0.block_len() < requested.block_len();
    match requested {
        requested if fits(requested) => requested,
        _ if shorter && fits(DType::Q8_0) => DType::Q8_0,
        _ => DType::F16,
    }
}

/// Returns the type in which a factor holds elements of the sources exactly: the requested type if
/// it is exact, else that of the sources, else f32.
pub(super) fn exact_type(
    requested: DType,
    source_types: impl Iterator<Item = DType> + Clone,
) -> DType {
    let holds = |dtype: DType| {
        let short = matches!(dtype, DType::F16 | DType::BF16);
        dtype == DType::F32 || short && source_types.clone().all(|source| source == dtype)
    };
    let first = source_types.clone().next();
    let mut candidates = [Some(requested), first].into_iter().flatten();
    candidates.find(|&dtype| holds(dtype)).unwrap_or(DType::F32)
}

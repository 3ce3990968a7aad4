//! Errors of planning.

use std::path::PathBuf;

use htc_formats::DType;
use htc_formats::htz::MAX_MANIFEST_BYTES;
use htc_formats::model::ProjectionKind;
use thiserror::Error;

use super::allocate::Allocator;
use super::json::{MAX_BYTES, PlanFileMismatches};
use crate::options::{Budget, Method};

fn type_names(types: &[DType]) -> String {
    let names: Vec<&str> = types.iter().map(|of| of.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

fn budget_as_builder_call(budget: Budget) -> String {
    let typed = budget.to_string();
    let mut words = typed.trim_start_matches('-').splitn(2, ' ');
    let name = words.next().unwrap_or_default().replace('-', "_");
    format!("`{name}` {}", words.next().unwrap_or_default())
}

/// Error returned when no plan satisfies a request.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PlanError {
    /// A rank above the limit of a projection.
    #[error(
        "`rank` {rank}: {projection} has a rank of at most {limit} ({rows} x {cols}); the largest rank that \
         all selected projections have is {largest}; give at most that, `full`, or fewer `projections`"
    )]
    RankTooLarge {
        /// Requested rank.
        rank: usize,
        /// First projection or group that cannot have it.
        projection: String,
        /// Largest rank of that projection.
        limit: usize,
        /// Rows of the projection.
        rows: usize,
        /// Columns of the projection.
        cols: usize,
        /// Smallest limit of all selected projections.
        largest: usize,
    },
    /// Rank zero.
    #[error("`rank` 0: a rank is at least 1")]
    RankZero,
    /// A ratio that no rank can reach.
    #[error(
        "`ratio` {ratio}: the smallest ratio possible for these projections is {smallest:.4}; give at \
         least that, or fewer `projections`"
    )]
    RatioTooSmall {
        /// Requested ratio.
        ratio: f64,
        /// Smallest ratio of any plan.
        smallest: f64,
    },
    /// A ratio that is reachable in another factor type.
    #[error(
        "`ratio` {ratio}: with factors in {factor_type} a plan comes to {reached:.4}, because they take no less than \
         projections do in the source; with `factor_type` {} it is met",
        type_names(types)
    )]
    RatioNeedsType {
        /// Requested ratio.
        ratio: f64,
        /// Ratio of the plan in that type.
        reached: f64,
        /// Requested type.
        factor_type: DType,
        /// Types that reach the ratio.
        types: Vec<DType>,
    },
    /// A ratio outside (0, 1].
    #[error("`ratio` {0}: a ratio is above 0 and at most 1")]
    RatioRange(f64),
    /// A projection that shares its input with no other.
    #[error(
        "`projections` {0}: the method shared-basis shares a basis among projections that read the same input, and {0} \
         stands alone; leave it out, or use `method` low-rank"
    )]
    NoSharedInput(ProjectionKind),
    /// A shared basis for the experts of a mixture.
    #[error(
        "cannot share a basis among the {0} projections of experts, each of which reads other \
         rows; leave {0} out of `projections`, or use `method` low-rank or quantise"
    )]
    ExpertsShareNoBasis(ProjectionKind),
    /// A shared basis that would be disproportionately large.
    #[error(
        "`method` shared-basis: {group} read {cols} inputs and have {outs} outputs together; a shared basis needs a \
         matrix of {cols} x {cols}, which is out of proportion; use `method` low-rank"
    )]
    InputTooWide {
        /// Projections that would share the basis.
        group: String,
        /// Width of their input.
        cols: usize,
        /// Total number of outputs.
        outs: usize,
    },
    /// No projection is selected.
    #[error("`projections`: no projection is selected; name some of q, k, v, o, gate, up, down")]
    NoProjections,
    /// A budget below the smallest plan.
    #[error(
        "{option} {asked}: the smallest possible for these projections is {smallest}; give at least that, \
         a lower `rank_floor`, or fewer `projections`"
    )]
    BudgetTooSmall {
        /// Option that sets the budget.
        option: &'static str,
        /// Requested value.
        asked: String,
        /// Smallest value for which a plan exists.
        smallest: String,
    },
    /// A budget that is not a positive finite number.
    #[error("{option} {found}: a positive finite number is needed")]
    BudgetRange {
        /// Option that sets the budget.
        option: &'static str,
        /// Requested value.
        found: String,
    },
    /// No budget is set.
    #[error(
        "no budget: only `allocator` diffplan decides on a total by itself; give a `ratio`, or another budget"
    )]
    NoBudget,
    /// A budget of ranks or parameters with the method `quantise`.
    #[error(
        "{}: the method quantise shares out bytes; give `file_size`, `bits` or `bytes`, or `method` low-rank or shared-basis",
        budget_as_builder_call(*budget)
    )]
    BudgetRequiresFactors {
        /// Requested budget.
        budget: Budget,
    },
    /// A budget of the whole file with a method that allocates ranks.
    #[error(
        "{}: the method {} shares out what its projections take; give `ratio`, `bytes` or another budget of projections, or `method` quantise",
        budget_as_builder_call(*budget), method.name()
    )]
    BudgetRequiresQuantise {
        /// Requested budget.
        budget: Budget,
        /// Requested method.
        method: Method,
    },
    /// A file size above that of the source.
    #[error(
        "{}: with every matrix as in the source the artifact has {source_bytes} bytes; give at most that",
        budget_as_builder_call(*budget)
    )]
    FileAboveSource {
        /// Requested budget.
        budget: Budget,
        /// Bytes of the source, or of an artifact that changes nothing if that is more.
        source_bytes: u64,
    },
    /// A file size below any artifact's, by the shapes of the matrices.
    #[error(
        "{}: by the shapes of its matrices no artifact of this model has less than {least} bytes; give more",
        budget_as_builder_call(*budget)
    )]
    FileBelowShapes {
        /// Requested budget.
        budget: Budget,
        /// Lower bound of the bytes.
        least: u64,
    },
    /// A file size below the sum of all matrices in their smallest types.
    #[error(
        "{}: the smallest possible is {smallest} bytes, with every matrix in its shortest type; give at least that",
        budget_as_builder_call(*budget)
    )]
    FileTooSmall {
        /// Requested budget.
        budget: Budget,
        /// Bytes of the smallest file, or of the smallest matrices.
        smallest: u64,
    },
    /// A measurement on the model is missing.
    #[error("`method` quantise: it needs {needs}; {remedy}")]
    NoMeasurement {
        /// Missing measurement.
        needs: &'static str,
        /// Remedy.
        remedy: &'static str,
    },
    /// A channel permutation would split blocks of a tensor.
    #[error(
        "`order` on: the source stores {tensor} as {dtype}, whose blocks of {block} columns would be torn apart; leave \
         `order` out, or compile the source that it was made from",
        block = dtype.block_len()
    )]
    OrderOfBlocks {
        /// Name of the tensor in the source.
        tensor: String,
        /// Type of the tensor.
        dtype: DType,
    },
    /// A channel permutation requires calibration.
    #[error(
        "`order` on: the order is found on text; calibrate with `calibration`, or leave `order` out"
    )]
    PermutationNeedsCalibration,
    /// KV cache bases require calibration.
    #[error(
        "`kv_bases` on: the bases are found on text; calibrate with `calibration`, or leave `kv_bases` out"
    )]
    KvBasesNeedCalibration,
    /// A fixed rank was combined with an allocation option.
    #[error(
        "{option}: `rank` gives every projection its rank, so that there is nothing to allocate; leave one of \
         them out, or give `ratio`"
    )]
    NothingToAllocate {
        /// Option that requests an allocation.
        option: String,
    },
    /// A rank floor out of range.
    #[error(
        "`rank_floor` {found}: a floor is a rank of at least 1, or a fraction of the model's width above 0 and at most 1"
    )]
    FloorRange {
        /// Requested floor.
        found: String,
    },
    /// A floor above the cap.
    #[error("`rank_floor` {floor}: it is above `rank_cap` {cap}; lower the one or raise the other")]
    FloorAboveCap {
        /// Floor as a rank.
        floor: usize,
        /// Requested cap.
        cap: usize,
    },
    /// A cap below the smallest rank that is stored.
    #[error(
        "`rank_cap` {cap}: {unit} takes ranks in steps of {step} from {least} on; give at least that"
    )]
    CapTooSmall {
        /// Requested cap.
        cap: usize,
        /// First unit without such a small rank.
        unit: String,
        /// Step between its ranks.
        step: usize,
        /// Smallest rank of the unit.
        least: usize,
    },
    /// Evidence that the allocator needs is missing.
    #[error("`allocator` {allocator}: it needs {needs}; {remedy}, or choose another allocator")]
    NoEvidence {
        /// Requested allocator.
        allocator: Allocator,
        /// Missing evidence.
        needs: &'static str,
        /// Remedy.
        remedy: &'static str,
    },
    /// Evidence that belongs to another model, or is not finite.
    #[error(
        "`allocator` {allocator}: {what}: expected {expected}, found {found}; measure this model anew"
    )]
    InvalidEvidence {
        /// Requested allocator.
        allocator: Allocator,
        /// Name of the quantity, with its unit or layer.
        what: String,
        /// Expected value.
        expected: String,
        /// Measured value.
        found: String,
    },
    /// The smallest factors exceed the cache.
    #[error(
        "`allocator` cachefit: the smallest factors of {unit} are {bytes} bytes, {limit} are the share of \
         the cache they may fill; use another allocator, a shorter `factor_type`, or fewer `projections`"
    )]
    CacheTooSmall {
        /// Projections that read the same input.
        unit: String,
        /// Bytes of their smallest factors.
        bytes: u64,
        /// Bytes of the cache that they may fill.
        limit: u64,
    },
    /// The model has too many matrices for one artifact.
    #[error(
        "the manifest would have {found} bytes, expected at most {MAX_MANIFEST_BYTES}: the model has too \
         many matrices for one artifact; choose a smaller model"
    )]
    ManifestTooLarge {
        /// Bytes needed.
        found: u64,
    },
    /// The computed plan does not fit the model: an internal error.
    #[error("the plan that was made does not fit the model: {}; report this, or give a plan with `plan`", .0.as_deref().unwrap_or("unknown"))]
    Inconsistent(Option<String>),
    /// The file cannot be read.
    #[error("{}: cannot be read: {message}; check `plan`", path.display())]
    ReadFile {
        /// Path of the file.
        path: PathBuf,
        /// Message of the system.
        message: String,
    },
    /// The file is too large.
    #[error("{}: a plan has at most {MAX_BYTES} bytes, the file has more; check `plan`", path.display())]
    FileTooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not JSON.
    #[error("{}: line {line}, column {column}: {message}; the file must be JSON as `htc plan` writes it", path.display())]
    FileSyntax {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Message of the parser.
        message: String,
    },
    /// The plan does not fit the model.
    #[error("{}: the plan does not fit the model in {} place{}; the first is {}; correct them, or make the plan anew with htc plan", path.display(), misfits.count, if misfits.count == 1 { "" } else { "s" }, misfits.first())]
    FileMisfits {
        /// Path of the file.
        path: PathBuf,
        /// List of mismatches.
        misfits: PlanFileMismatches,
    },
}

impl PlanError {
    pub(super) fn no_evidence(
        allocator: Allocator,
        needs: &'static str,
        remedy: &'static str,
    ) -> PlanError {
        PlanError::NoEvidence {
            allocator,
            needs,
            remedy,
        }
    }

    pub(super) fn invalid_evidence(
        allocator: Allocator,
        what: impl Into<String>,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> PlanError {
        PlanError::InvalidEvidence {
            allocator,
            what: what.into(),
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    pub(crate) fn is_too_small(&self) -> bool {
        matches!(
            self,
            PlanError::RatioTooSmall { .. }
                | PlanError::BudgetTooSmall { .. }
                | PlanError::FileTooSmall { .. }
        )
    }
}

//! Why a request has no plan.

use htc_formats::DType;
use htc_formats::model::Slot;
use thiserror::Error;

use super::allocate::Allocator;
use crate::request::{Budget, Method};

/// `q4_k or q4_0`.
fn names(types: &[DType]) -> String {
    let names: Vec<&str> = types.iter().map(|of| of.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// A budget by the builder's method.
fn asked(budget: Budget) -> String {
    let typed = budget.to_string();
    let mut words = typed.trim_start_matches('-').splitn(2, ' ');
    let name = words.next().unwrap_or_default().replace('-', "_");
    format!("`{name}` {}", words.next().unwrap_or_default())
}

/// Why no plan satisfies a request. Every message names the option, as the builder's
/// method, and a remedy.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PlanError {
    /// A rank above what a slot has.
    #[error(
        "`rank` {rank}: {slot} has a rank of at most {limit} ({rows} x {cols}); the largest rank that \
         all selected slots have is {largest}; give at most that, `full`, or fewer `slots`"
    )]
    RankTooLarge {
        /// The rank asked for.
        rank: usize,
        /// The first slot, or group of slots, that cannot have it.
        slot: String,
        /// What that slot can have.
        limit: usize,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
        /// The smallest limit of all selected slots.
        largest: usize,
    },
    /// Rank zero.
    #[error("`rank` 0: a rank is at least 1")]
    RankZero,
    /// A ratio that no rank can reach.
    #[error(
        "`ratio` {ratio}: the smallest ratio possible for these slots is {smallest:.4}; give at \
         least that, or fewer `slots`"
    )]
    RatioTooSmall {
        /// The ratio asked for.
        ratio: f64,
        /// The smallest ratio that some plan has.
        smallest: f64,
    },
    /// A ratio that factors of the type asked for cannot reach, and those of another can.
    #[error(
        "`ratio` {ratio}: with factors in {factor_type} a plan comes to {reached:.4}, because they take no less than \
         slots do in the source; with `factor_type` {} it is met",
        names(types)
    )]
    RatioNeedsType {
        /// The ratio asked for.
        ratio: f64,
        /// The ratio of the plan in that type.
        reached: f64,
        /// The type asked for.
        factor_type: DType,
        /// The types that meet it.
        types: Vec<DType>,
    },
    /// A ratio outside (0, 1].
    #[error("`ratio` {0}: a ratio is above 0 and at most 1")]
    RatioRange(f64),
    /// A slot that shares its input with nothing.
    #[error(
        "`slots` {0}: the method grc shares a basis among slots that read the same input, and {0} \
         stands alone; leave it out, or use `method` gp"
    )]
    NoSharedInput(Slot),
    /// A basis whose matrix would be out of proportion to the file.
    #[error(
        "`method` grc: {group} read {cols} inputs and have {outs} outputs together; a shared basis needs a \
         matrix of {cols} x {cols}, which is out of proportion; use `method` gp"
    )]
    InputTooWide {
        /// The slots that would share the basis.
        group: String,
        /// Width of their input.
        cols: usize,
        /// Their outputs together.
        outs: usize,
    },
    /// Nothing selected.
    #[error("`slots`: no slot is selected; name some of q, k, v, o, gate, up, down")]
    NoSlots,
    /// A total that no rank can reach.
    #[error(
        "{option} {asked}: the smallest possible for these slots is {smallest}; give at least that, \
         a lower `rank_floor`, or fewer `slots`"
    )]
    BudgetTooSmall {
        /// The option that sets the budget.
        option: &'static str,
        /// What it was set to.
        asked: String,
        /// The smallest value for which a plan exists.
        smallest: String,
    },
    /// A budget that is no quantity.
    #[error("{option} {found}: a positive finite number is needed")]
    BudgetRange {
        /// The option that sets the budget.
        option: &'static str,
        /// What it was set to.
        found: String,
    },
    /// Nothing says how much may be kept.
    #[error(
        "no budget: only `allocator` diffplan decides on a total by itself; give a `ratio`, or another budget"
    )]
    NoBudget,
    /// A budget of ranks or parameters, where types are chosen.
    #[error(
        "{}: the method quantise shares out bytes; give `file_size`, `bits` or `bytes`, or `method` gp or grc",
        asked(*budget)
    )]
    NotOfFiles {
        /// The budget.
        budget: Budget,
    },
    /// A budget of the whole file, where ranks are shared out.
    #[error(
        "{}: the method {} shares out what its slots take; give `ratio`, `bytes` or another budget of slots, or `method` quantise",
        asked(*budget), method.name()
    )]
    OnlyOfFiles {
        /// The budget.
        budget: Budget,
        /// The method.
        method: Method,
    },
    /// A file smaller than every matrix in its smallest type.
    #[error(
        "{}: the smallest possible is {smallest} bytes, with every matrix in its shortest type; give at least that, or `method` gp or grc",
        asked(*budget)
    )]
    FileTooSmall {
        /// The budget.
        budget: Budget,
        /// Bytes of the smallest file, or of the smallest matrices.
        smallest: u64,
    },
    /// Something that is measured on the model is missing.
    #[error("`method` quantise: it needs {needs}; {remedy}, or choose `method` gp or grc")]
    NoMeasurement {
        /// What it needs.
        needs: &'static str,
        /// How to get it.
        remedy: &'static str,
    },
    /// Another order would tear blocks apart.
    #[error(
        "`order` on: the source stores {tensor} as {dtype}, whose blocks of {block} columns would be torn apart; leave \
         `order` out, or compile the source that it was made from",
        block = dtype.block_len()
    )]
    OrderOfBlocks {
        /// The tensor in the source.
        tensor: String,
        /// Its type.
        dtype: DType,
    },
    /// The order is found in what calibration saw.
    #[error(
        "`order` on: the order is found on text; calibrate with `calibration`, or leave `order` out"
    )]
    OrderWithoutText,
    /// Bases for a KV cache are found in what calibration saw.
    #[error(
        "`kv_bases` on: the bases are found on text; calibrate with `calibration`, or leave `kv_bases` out"
    )]
    KvBasesWithoutText,
    /// A fixed rank leaves nothing to allocate.
    #[error(
        "{option}: `rank` gives every slot its rank, so that there is nothing to allocate; leave one of \
         them out, or give `ratio`"
    )]
    NothingToAllocate {
        /// The option that asks for an allocation.
        option: String,
    },
    /// A floor that is no rank.
    #[error(
        "`rank_floor` {found}: a floor is a rank of at least 1, or a fraction of the model's width above 0 and at most 1"
    )]
    FloorRange {
        /// The floor.
        found: String,
    },
    /// A floor above the cap.
    #[error("`rank_floor` {floor}: it is above `rank_cap` {cap}; lower the one or raise the other")]
    FloorAboveCap {
        /// The floor, as a rank.
        floor: usize,
        /// The cap.
        cap: usize,
    },
    /// A cap below the smallest rank that is stored.
    #[error(
        "`rank_cap` {cap}: {unit} takes ranks in steps of {step} from {least} on; give at least that"
    )]
    CapTooSmall {
        /// The cap.
        cap: usize,
        /// The first unit that has no rank so small.
        unit: String,
        /// The step of its ranks.
        step: usize,
        /// Its smallest rank.
        least: usize,
    },
    /// The allocator looks at something that was not measured.
    #[error("`allocator` {allocator}: it needs {needs}; {remedy}, or choose another allocator")]
    NoEvidence {
        /// The allocator.
        allocator: Allocator,
        /// What it needs.
        needs: &'static str,
        /// How to get it.
        remedy: &'static str,
    },
    /// What was measured does not belong to this model, or is no number.
    #[error(
        "`allocator` {allocator}: {what}: expected {expected}, found {found}; measure this model anew"
    )]
    Evidence {
        /// The allocator.
        allocator: Allocator,
        /// The quantity, and the unit or layer it is of.
        what: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Not even the smallest factors fit the cache.
    #[error(
        "`allocator` cachefit: the smallest factors of {unit} are {bytes} bytes, {limit} are the share of \
         the cache they may fill; use another allocator, a shorter `factor_type`, or fewer `slots`"
    )]
    CacheTooSmall {
        /// The slots that read the same input.
        unit: String,
        /// Their smallest factors.
        bytes: u64,
        /// The share of the cache.
        limit: u64,
    },
    /// What was decided does not fit the model; a fault of the program.
    #[error("the plan that was made does not fit the model: {}; report this, or give a plan with `plan`", .0.as_deref().unwrap_or("unknown"))]
    Inconsistent(Option<String>),
}

impl PlanError {
    /// Whether a larger budget is the remedy.
    pub(crate) fn is_too_small(&self) -> bool {
        matches!(
            self,
            PlanError::RatioTooSmall { .. }
                | PlanError::BudgetTooSmall { .. }
                | PlanError::FileTooSmall { .. }
        )
    }
}

//! Decides, before any arithmetic, what becomes of every slot: its method, its rank and the
//! element type of its factors.
//!
//! A [`Plan`] is made from the model's shapes and the caller's [`Budget`] alone. It never
//! changes what was asked without saying so: whatever differs from the request carries a note.

pub mod phases;
mod uniform;

use htc_formats::DType;
use htc_formats::model::{HyperParameters, InputGroup, Slot};
use thiserror::Error;

/// How slots are approximated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every slot alone: `W ≈ B A`.
    PerSlot,
    /// Slots that read the same input share a basis: `W_i ≈ W̃_i Pᵀ`.
    SharedBasis,
}

impl Method {
    /// The name used on the command line and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Method::PerSlot => "gp",
            Method::SharedBasis => "grc",
        }
    }

    /// The slots the method compresses unless told otherwise.
    pub const fn default_slots(self) -> &'static [Slot] {
        match self {
            Method::PerSlot => &Slot::ALL,
            Method::SharedBasis => InputGroup::Qkv.slots(),
        }
    }
}

/// How much may be kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// The same rank for every selected slot.
    Rank(usize),
    /// Every slot at its own full rank, stored as factors even where they are larger than the
    /// dense matrix: nothing is lost but rounding.
    FullRank,
    /// Parameters after over parameters before, counted on the selected slots.
    Ratio(f64),
}

/// What the caller asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// How slots are approximated.
    pub method: Method,
    /// How much may be kept.
    pub budget: Budget,
    /// The slots to compress, without repetition, in the order of execution.
    pub slots: Vec<Slot>,
    /// How factors are stored.
    pub factor_type: DType,
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

/// The whole decision, in the order of execution; slots that no unit names stay dense.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What was asked.
    pub request: Request,
    /// The selected slots.
    pub units: Vec<UnitPlan>,
}

/// Why no plan satisfies a request. Every message names the option and a remedy.
#[derive(Debug, Error, PartialEq)]
pub enum PlanError {
    /// A rank above what a slot has.
    #[error(
        "--rank {rank}: {slot} has a rank of at most {limit} ({rows} x {cols}); the largest rank that \
         all selected slots have is {largest}; give at most that, `full`, or fewer --slots"
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
    #[error("--rank 0: a rank is at least 1")]
    RankZero,
    /// A ratio that no rank can reach.
    #[error(
        "--ratio {ratio}: the smallest ratio possible for these slots is {smallest:.4}; give at \
         least that, or fewer --slots"
    )]
    RatioTooSmall {
        /// The ratio asked for.
        ratio: f64,
        /// The smallest ratio that some plan has.
        smallest: f64,
    },
    /// A ratio outside (0, 1].
    #[error("--ratio {0}: a ratio is above 0 and at most 1")]
    RatioRange(f64),
    /// A slot that shares its input with nothing.
    #[error(
        "--slots {0}: the method grc shares a basis among slots that read the same input, and {0} \
         stands alone; leave it out, or use --method gp"
    )]
    NoSharedInput(Slot),
    /// A basis whose matrix would be out of proportion to the file.
    #[error(
        "--method grc: {group} read {cols} inputs and have {outs} outputs together; a shared basis needs a \
         matrix of {cols} x {cols}, which is out of proportion; use --method gp"
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
    #[error("--slots: no slot is selected; name some of q, k, v, o, gate, up, down")]
    NoSlots,
}

/// Bytes of a stored matrix whose columns are a whole number of blocks.
fn stored_bytes(dtype: DType, rows: usize, cols: usize) -> u64 {
    (cols / dtype.block_len()) as u64 * dtype.block_bytes() as u64 * rows as u64
}

/// The type a factor with rows of `cols` numbers is stored in: the one asked for where its
/// blocks fit, else q8_0 where those do (and are shorter), else f16.
fn factor_type_for(asked: DType, cols: usize) -> DType {
    let fits = |dtype: DType| cols.is_multiple_of(dtype.block_len());
    let shorter = DType::Q8_0.block_len() < asked.block_len();
    match asked {
        asked if fits(asked) => asked,
        _ if shorter && fits(DType::Q8_0) => DType::Q8_0,
        _ => DType::F16,
    }
}

/// Slots that are decided together because they have the same shape in every layer.
#[derive(Clone, Debug)]
struct Kind {
    members: Vec<Slot>,
    outs: usize,
    cols: usize,
    limit: usize,
}

impl Kind {
    /// `q` or `q, k, v`.
    fn name(&self) -> String {
        let names: Vec<_> = self.members.iter().map(|s| s.name()).collect();
        names.join(", ")
    }

    /// Parameters of one unit at a rank.
    fn cost(&self, rank: usize) -> u64 {
        rank as u64 * (self.outs + self.cols) as u64
    }

    fn dense(&self) -> u64 {
        self.outs as u64 * self.cols as u64
    }
}

fn kinds(hyper: &HyperParameters, request: &Request) -> Result<Vec<Kind>, PlanError> {
    let shape = |slot: Slot| hyper.slot_shape(slot);
    match request.method {
        Method::PerSlot => Ok(request
            .slots
            .iter()
            .map(|&slot| {
                let (rows, cols) = shape(slot);
                Kind {
                    members: vec![slot],
                    outs: rows,
                    cols,
                    limit: rows.min(cols),
                }
            })
            .collect()),
        Method::SharedBasis => {
            if let Some(&slot) = request.slots.iter().find(|s| s.group().is_none()) {
                return Err(PlanError::NoSharedInput(slot));
            }
            let kinds: Vec<Kind> = InputGroup::ALL
                .into_iter()
                .filter_map(|group| {
                    let members: Vec<Slot> = group
                        .slots()
                        .iter()
                        .copied()
                        .filter(|s| request.slots.contains(s))
                        .collect();
                    let cols = shape(*members.first()?).1;
                    let outs = members.iter().map(|&s| shape(s).0).sum();
                    // A basis of the whole input is the identity, so the input's width is
                    // the limit even where the slots together have fewer rows.
                    let limit = cols;
                    Some(Kind {
                        members,
                        outs,
                        cols,
                        limit,
                    })
                })
                .collect();
            // The Gram matrix is as wide as the input whatever the file holds; real models
            // have more outputs than inputs here.
            match kinds.iter().find(|k| k.cols > MAX_ASPECT * k.outs) {
                None => Ok(kinds),
                Some(kind) => Err(PlanError::InputTooWide {
                    group: kind.name(),
                    cols: kind.cols,
                    outs: kind.outs,
                }),
            }
        }
    }
}

/// Inputs per output, over a group, beyond which no basis is shared.
const MAX_ASPECT: usize = 16;

/// Makes a plan. `source_type` tells how the source stores a slot of a layer.
///
/// # Errors
/// [`PlanError`] where no plan satisfies the request.
pub fn make(
    hyper: &HyperParameters,
    request: Request,
    source_type: impl Fn(usize, Slot) -> DType,
) -> Result<Plan, PlanError> {
    if request.slots.is_empty() {
        return Err(PlanError::NoSlots);
    }
    let kinds = kinds(hyper, &request)?;
    let ranks = match request.budget {
        Budget::Rank(0) => return Err(PlanError::RankZero),
        Budget::Rank(rank) => {
            let largest = kinds.iter().map(|k| k.limit).min().unwrap_or(0);
            if let Some(kind) = kinds.iter().find(|k| k.limit < rank) {
                return Err(PlanError::RankTooLarge {
                    rank,
                    slot: kind.name(),
                    limit: kind.limit,
                    rows: kind.outs,
                    cols: kind.cols,
                    largest,
                });
            }
            vec![rank; kinds.len()]
        }
        Budget::FullRank => kinds.iter().map(|k| k.limit).collect(),
        Budget::Ratio(ratio) => uniform::allocate(&kinds, ratio, request.factor_type)?,
    };
    let mut units = Vec::with_capacity(hyper.layers * kinds.len());
    for layer in 0..hyper.layers {
        for (kind, &rank) in kinds.iter().zip(&ranks) {
            let members: Vec<Member> = kind
                .members
                .iter()
                .map(|&slot| {
                    let (rows, cols) = hyper.slot_shape(slot);
                    Member {
                        slot,
                        rows,
                        cols,
                        source_type: source_type(layer, slot),
                    }
                })
                .collect();
            units.push(unit(layer, members, kind, rank, &request));
        }
    }
    Ok(Plan { request, units })
}

fn unit(
    layer: usize,
    members: Vec<Member>,
    kind: &Kind,
    rank: usize,
    request: &Request,
) -> UnitPlan {
    let asked = request.factor_type;
    let mut notes = Vec::new();
    let mut fit = |what: &str, cols: usize| {
        let dtype = factor_type_for(asked, cols);
        if dtype != asked {
            notes.push(format!(
                "{what} in {dtype} instead of {asked}: rows of {cols} numbers are not whole blocks of {}",
                asked.block_len()
            ));
        }
        dtype
    };
    let form = match request.method {
        Method::PerSlot => Form::LowRank {
            rank,
            a: fit("A", kind.cols),
            b: fit("B", rank),
        },
        Method::SharedBasis => Form::SharedBasis {
            rank,
            basis: fit("basis", kind.cols),
            projected: fit("projected weights", rank),
        },
    };
    let mut unit = UnitPlan {
        layer,
        members,
        form,
        notes,
    };
    let (before, after) = (unit.bytes_before(), unit.bytes_after());
    if after >= before {
        let growth = format!("rank {rank} needs {after} bytes, the dense form {before}");
        match request.budget {
            Budget::FullRank => unit.notes.push(format!("grows: {growth}")),
            Budget::Rank(_) | Budget::Ratio(_) => {
                unit.form = Form::Dense;
                unit.notes = vec![format!("kept dense: {growth}")];
            }
        }
    }
    unit
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
        match self.form {
            Form::Dense => self.bytes_before(),
            Form::LowRank { rank, a, b } => {
                stored_bytes(a, rank, self.cols())
                    + self
                        .members
                        .iter()
                        .map(|m| stored_bytes(b, m.rows, rank))
                        .sum::<u64>()
            }
            Form::SharedBasis {
                rank,
                basis,
                projected,
            } => {
                stored_bytes(basis, rank, self.cols())
                    + self
                        .members
                        .iter()
                        .map(|m| stored_bytes(projected, m.rows, rank))
                        .sum::<u64>()
            }
        }
    }

    /// `layer 3: q+k+v`, for people.
    pub fn label(&self) -> String {
        let names: Vec<_> = self.members.iter().map(|m| m.slot.name()).collect();
        format!("layer {}: {}", self.layer, names.join("+"))
    }

    fn cols(&self) -> usize {
        self.members.first().map_or(0, |m| m.cols)
    }
}

impl Plan {
    /// The unit that holds a slot of a layer.
    pub fn unit_of(&self, layer: usize, slot: Slot) -> Option<&UnitPlan> {
        // Units are in the order of the layers.
        let first = self.units.partition_point(|u| u.layer < layer);
        self.units[first..]
            .iter()
            .take_while(|u| u.layer == layer)
            .find(|u| u.members.iter().any(|m| m.slot == slot))
    }

    /// Parameters after over parameters before, on the selected slots.
    pub fn ratio(&self) -> f64 {
        let before: u64 = self.units.iter().map(UnitPlan::parameters_before).sum();
        let after: u64 = self.units.iter().map(UnitPlan::parameters_after).sum();
        after as f64 / before as f64
    }
}

#[cfg(test)]
mod tests;

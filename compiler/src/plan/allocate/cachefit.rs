//! `cachefit`: the largest rank whose factors stay in the second-level cache of the target GPU, and
//! what a roofline predicts of it.
//!
//! The working set is what slots that read the same input store together (Q, K and V; gate and up;
//! O; down): the bytes that one step of a block streams. It may fill [`CACHE_SHARE`] of the cache,
//! the rest is for the KV cache and the residual stream. The rank that fits is a cap on every unit
//! of the set; within these caps the budget is shared out evenly.

use std::fmt;

use htc_formats::model::MatrixId;

use super::Allocator;
use super::ladder::Ladder;
use crate::plan::form::Form;
use crate::plan::unit::{Member, Unit, UnitPlan};
use crate::plan::{Evidence, Plan, PlanError};

/// The part of the second-level cache that a working set may fill.
pub const CACHE_SHARE: f64 = 0.75;

/// How many times faster than memory the second-level cache delivers: the published model's figure,
/// not a measurement of the target.
pub const L2_SPEEDUP: f64 = 10.0;

/// Caps the ladders of slots that read the same input at the largest rank that fits the cache.
pub(super) fn cap(
    ladders: &mut [Ladder],
    units: &[Unit],
    evidence: &Evidence,
) -> Result<(), PlanError> {
    let Some(cache) = evidence.cache else {
        return Err(PlanError::NoEvidence {
            allocator: Allocator::CacheFit,
            needs: "the size of the target's L2 cache",
            remedy: "name the target with `gpu`",
        });
    };
    let limit = share_of(cache);
    let mut first = 0;
    for set in units.chunk_by(|a, b| same_input(&a.members, &b.members, (a.layer, b.layer))) {
        fit(&mut ladders[first..first + set.len()], set, limit)?;
        first += set.len();
    }
    Ok(())
}

fn share_of(cache: u64) -> u64 {
    (CACHE_SHARE * cache as f64) as u64
}

fn same_input<L: PartialEq>(a: &[Member], b: &[Member], (layer_a, layer_b): (L, L)) -> bool {
    let group = |members: &[Member]| members.first().and_then(|m| m.slot()?.group());
    layer_a == layer_b && group(a).is_some() && group(a) == group(b)
}

/// Caps the ladders of one working set.
fn fit(ladders: &mut [Ladder], set: &[Unit], limit: u64) -> Result<(), PlanError> {
    let mut levels: Vec<f64> = ladders
        .iter()
        .flat_map(|l| l.rungs.iter().map(|r| r.level))
        .collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    // The rung of a unit at a level: the highest that is not above it.
    let rung_at = |ladder: &Ladder, level: f64| -> usize {
        let above = ladder.rungs.partition_point(|r| r.level <= level);
        above.saturating_sub(1)
    };
    let bytes_at = |level: f64| -> u64 {
        let bytes = |l: &Ladder| l.rungs[rung_at(l, level)].bytes;
        ladders.iter().map(bytes).sum()
    };
    let name = || {
        let slots = set.iter().flat_map(|u| &u.members).map(|m| m.matrix.name());
        slots.collect::<Vec<_>>().join("+")
    };
    let Some(level) = levels.iter().copied().rev().find(|&l| bytes_at(l) <= limit) else {
        return Err(PlanError::CacheTooSmall {
            unit: set
                .first()
                .map_or_else(String::new, |u| format!("layer {}: {}", u.layer, name())),
            bytes: levels.first().map_or(0, |&l| bytes_at(l)),
            limit,
        });
    };
    let why = format!(
        "cachefit decided: the largest rank of {} whose bytes, {}, stay within {limit}",
        name(),
        bytes_at(level)
    );
    for ladder in ladders {
        ladder.truncate(rung_at(ladder, level), why.clone());
    }
    Ok(())
}

/// Predicted decode throughput over that of the source, one token at a time. Neither figure is
/// measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Every byte comes from memory: the ratio of the bytes streamed per token.
    pub streamed: f64,
    /// The published model: working sets that fit [`CACHE_SHARE`] of the cache come
    /// [`L2_SPEEDUP`] times faster than the rest. It holds only where they stay in the cache from
    /// one token to the next.
    pub cached: f64,
}

/// For people.
impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a prediction by bytes alone, not a measurement: decoding is {:.2} times as fast as with the source where \
             every byte comes from memory, {:.2} times where what fits stays in the cache and comes from there {L2_SPEEDUP} \
             times faster",
            self.streamed, self.cached
        )
    }
}

/// Predicts `T / T_base` of a plan by a roofline. At batch 1 a token does about two operations per
/// number streamed, far below what any GPU's arithmetic could do, so only bytes count.
/// `head` is the matrix that gives the logits: an embedding that is none is not streamed.
/// `other_bytes` is what is streamed beside the plan's units (the head, slots that were not selected);
/// `cache` the bytes of the second-level cache.
pub fn predict(plan: &Plan, head: MatrixId, other_bytes: u64, cache: u64) -> Prediction {
    let streams = |unit: &&UnitPlan| {
        let mut members = unit.members.iter();
        members.all(|member| member.slot().is_some() || member.matrix == head)
    };
    let units: Vec<&UnitPlan> = plan.units.iter().filter(streams).collect();
    let limit = share_of(cache);
    let same =
        |a: &&UnitPlan, b: &&UnitPlan| same_input(&a.members, &b.members, (a.layer(), b.layer()));
    let sets = || units.chunk_by(same);
    let total = |bytes: &dyn Fn(&UnitPlan) -> u64, cached: bool| -> f64 {
        let time = |set: &[&UnitPlan]| {
            let bytes: u64 = set.iter().map(|unit| bytes(unit)).sum();
            if cached && bytes <= limit {
                bytes as f64 / L2_SPEEDUP
            } else {
                bytes as f64
            }
        };
        other_bytes as f64 + sets().map(time).sum::<f64>()
    };
    let before = |u: &UnitPlan| Form::Kept.bytes(&u.members);
    let ratio = |cached| total(&before, cached) / total(&UnitPlan::bytes_after, cached);
    Prediction {
        streamed: ratio(false),
        cached: ratio(true),
    }
}

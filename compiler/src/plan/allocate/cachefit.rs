//! Allocator `cachefit`: the largest rank whose factors fit the L2 cache of the target GPU, and its
//! roofline prediction.
//!
//! A working set is the stored bytes of projections with the same input, which one step of a block
//! reads. It may fill [`CACHE_SHARE`] of the cache. The rank that fits caps every unit of the set,
//! and the budget is allocated evenly within these caps.

use std::fmt;

use htc_formats::model::MatrixId;

use super::Allocator;
use super::ladder::Ladder;
use crate::plan::form::MatrixForm;
use crate::plan::unit::{Unit, UnitMatrix, UnitPlan, matrix_name};
use crate::plan::{Evidence, Plan, PlanError};

/// Fraction of the L2 cache that a working set may fill.
pub const CACHE_SHARE: f64 = 0.75;

/// Speed of the L2 cache relative to memory, as published.
pub const L2_SPEEDUP: f64 = 10.0;

/// Caps the ladders of projections with the same input at the largest rank that fits the cache.
pub(super) fn cap_ladders(
    ladders: &mut [Ladder],
    units: &[Unit],
    evidence: &Evidence,
) -> Result<(), PlanError> {
    let Some(cache) = evidence.l2_bytes else {
        let needs = "the size of the target's L2 cache";
        let remedy = "name the target with `gpu`";
        return Err(PlanError::no_evidence(Allocator::CacheFit, needs, remedy));
    };
    let limit = cache_share_bytes(cache);
    let mut first = 0;
    for set in units.chunk_by(|a, b| a.layer == b.layer && same_group(&a.members, &b.members)) {
        cap_working_set(&mut ladders[first..first + set.len()], set, limit)?;
        first += set.len();
    }
    Ok(())
}

fn cache_share_bytes(cache: u64) -> u64 {
    (CACHE_SHARE * cache as f64) as u64
}

fn same_group(a: &[UnitMatrix], b: &[UnitMatrix]) -> bool {
    let group = |members: &[UnitMatrix]| members.first().and_then(|m| m.projection()?.group());
    group(a).is_some() && group(a) == group(b)
}

fn cap_working_set(ladders: &mut [Ladder], set: &[Unit], limit: u64) -> Result<(), PlanError> {
    let mut levels: Vec<f64> = ladders
        .iter()
        .flat_map(|l| l.rungs.iter().map(|r| r.level))
        .collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    let rung_at = |ladder: &Ladder, level: f64| -> usize {
        let above = ladder.rungs.partition_point(|r| r.level <= level);
        above.saturating_sub(1)
    };
    let bytes_at = |level: f64| -> u64 {
        let bytes = |l: &Ladder| l.rungs[rung_at(l, level)].bytes;
        ladders.iter().map(bytes).sum()
    };
    let name = || {
        let members = set.iter().flat_map(|u| &u.members);
        let names: Vec<String> = members.map(|m| matrix_name(m.matrix)).collect();
        names.join("+")
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

/// Predicted decode throughput relative to the source, at batch size 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedPrediction {
    /// Ratio of the bytes read per token, all from memory.
    pub streamed: f64,
    /// Published model: working sets within [`CACHE_SHARE`] of the cache are read [`L2_SPEEDUP`]
    /// times faster. Valid only if they stay in the cache between tokens.
    pub cached: f64,
}

impl fmt::Display for SpeedPrediction {
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

/// Returns the predicted `T / T_base` of a plan by a roofline, in which only bytes count. `head`
/// computes the logits; `other_bytes` are read in addition to the plan's units; `cache` is the L2
/// size in bytes.
pub fn predict_speed(plan: &Plan, head: MatrixId, other_bytes: u64, cache: u64) -> SpeedPrediction {
    let streams = |unit: &&UnitPlan| {
        let mut members = unit.members.iter();
        members.all(|member| member.projection().is_some() || member.matrix == head)
    };
    let units: Vec<&UnitPlan> = plan.units.iter().filter(streams).collect();
    let limit = cache_share_bytes(cache);
    let same =
        |a: &&UnitPlan, b: &&UnitPlan| a.layer() == b.layer() && same_group(&a.members, &b.members);
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
    let before = |u: &UnitPlan| MatrixForm::Unchanged.bytes(&u.members);
    let ratio = |cached| total(&before, cached) / total(&UnitPlan::bytes_after, cached);
    SpeedPrediction {
        streamed: ratio(false),
        cached: ratio(true),
    }
}

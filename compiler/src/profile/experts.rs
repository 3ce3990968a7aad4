//! Share of the positions of the calibration text that experts read.
//!
//! Relative errors of an expert cost in proportion to it. Other text uses the experts in other
//! shares, so that a part of it, as of the costs of output errors, is the mean share of all experts.

use std::sync::Arc;

use htc_formats::model::{ActivationPoint, BlockInput};

use crate::calibrate::StoredLayer;
use crate::gradient::shares::COMMON_SHARE;
use crate::plan::Unit;

/// Returns the share of the positions that a unit reads.
pub fn position_share(unit: &Unit, layers: &[Arc<StoredLayer>]) -> f64 {
    let projection = unit.members.first().and_then(|member| member.projection());
    let expert = projection.and_then(|projection| projection.expert());
    match (expert, layers.get(unit.layer)) {
        (Some(expert), Some(layer)) => share_of_expert(layer.counts(), expert),
        _ => 1.0,
    }
}

/// `counts` are the numbers of rows at the inputs of a layer.
fn share_of_expert(counts: impl Iterator<Item = (BlockInput, u64)>, expert: u16) -> f64 {
    let (mut positions, mut own, mut sum, mut experts) = (0, 0, 0, 0_u64);
    for (input, rows) in counts {
        match input.point {
            ActivationPoint::Ffn => positions = rows,
            ActivationPoint::ExpertInput(of) => {
                sum += rows;
                experts += 1;
                if of == expert {
                    own = rows;
                }
            }
            _ => {}
        }
    }
    if positions == 0 {
        return 1.0;
    }
    let share = |rows: f64| rows / positions as f64;
    let mean = share(sum as f64 / experts.max(1) as f64);
    (1.0 - COMMON_SHARE) * share(own as f64) + COMMON_SHARE * mean
}

#[cfg(test)]
mod tests;

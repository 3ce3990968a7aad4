//! Channel permutation of a plan.

use htc_formats::source::ModelFile;

use super::CompileError;
use crate::calibrate::Calibration;
use crate::event::{Event, Progress};
use crate::options::Switch;
use crate::order::ChannelPermutation;
use crate::plan::{Method, PlanError, PlanRequest};

/// Returns the permutation setting for a new plan: the requested one, else on with codes if the
/// source can be permuted.
pub(super) fn resolve_setting(
    source: &ModelFile,
    request: &PlanRequest,
    watch: Progress,
) -> Result<Option<Switch>, PlanError> {
    if request.layout.order.is_some() || request.method != Method::Quantise {
        check(source, request.layout.order)?;
        return Ok(request.layout.order);
    }
    match check(source, Some(Switch::On)) {
        Ok(()) => Ok(Some(Switch::On)),
        Err(_) => {
            watch.report(Event::Note(
                "the source stores its numbers in blocks, so that they stay in its order",
            ));
            Ok(None)
        }
    }
}

/// Checks that every tensor of the source can be permuted, if that is requested.
///
/// # Errors
/// [`PlanError::OrderOfBlocks`].
pub(super) fn check(source: &ModelFile, order: Option<Switch>) -> Result<(), PlanError> {
    let in_blocks = source.tensors.iter().find(|t| t.dtype.block_len() > 1);
    match in_blocks.filter(|_| order == Some(Switch::On)) {
        None => Ok(()),
        Some(tensor) => Err(PlanError::OrderOfBlocks {
            tensor: tensor.name.clone(),
            dtype: tensor.dtype,
        }),
    }
}

/// Computes the channel permutation of a request; `None` if channels stay in place.
pub(super) fn find_permutation(
    source: &ModelFile,
    request: &PlanRequest,
    calibration: Option<&Calibration>,
    threads: usize,
    watch: Progress,
) -> Result<Option<ChannelPermutation>, CompileError> {
    if request.layout.order != Some(Switch::On) {
        return Ok(None);
    }
    let calibration = calibration.ok_or(PlanError::PermutationNeedsCalibration)?;
    let order = ChannelPermutation::compute(source, calibration, threads, watch)?;
    Ok(Some(order))
}

//! Memory of matrix algebra on a device.

use htc_formats::model::{ActivationPoint, HyperParameters};
use htc_loader::exec::BATCH;

use crate::calibrate::block_inputs;
use crate::device::{self, AlgebraMemory};

const F64: u64 = 8;

fn square(width: u64) -> u64 {
    width.saturating_mul(width).saturating_mul(F64)
}

fn panel(width: usize) -> u64 {
    F64 * (device::panel_rows(width) * width) as u64
}

pub(crate) fn device_bytes(
    hyper: &HyperParameters,
    calibrated: bool,
    threads: usize,
) -> AlgebraMemory {
    // All layers have the same widths.
    let inputs = block_inputs(hyper, 0);
    let widths = inputs.iter().map(|input| input.width as u64);
    let widest = widths.clone().fold(0, u64::max);
    // One per activation point, one for the stream.
    let squares = widths.chain([hyper.width as u64]).map(square);
    let sums = squares.fold(0, u64::saturating_add);
    let vectors = (5 * F64 * BATCH as u64).saturating_mul(widest);
    // Without a second moment the hidden layer is only the wider side of a weight.
    let order = if calibrated {
        widest
    } else {
        let of_attention = [ActivationPoint::Attention, ActivationPoint::AttentionOutput];
        let inputs = inputs
            .iter()
            .filter(|input| of_attention.contains(&input.point));
        inputs.map(|input| input.width as u64).fold(0, u64::max)
    };
    // Each thread has at most two sums with a panel each.
    let decomposition = square(order).saturating_mul(4);
    let of_thread = square(hyper.width as u64).saturating_add(panel(hyper.width));
    let of_threads = of_thread.saturating_mul(2 * threads as u64);
    AlgebraMemory {
        sums: if calibrated {
            sums.saturating_add(vectors)
        } else {
            0
        },
        decomposition: decomposition.saturating_add(of_threads),
    }
}

/// Copies of a panel and of a square.
pub(super) fn host_copy_bytes(width: usize) -> u64 {
    (4 * panel(width)).saturating_add(square(width as u64).saturating_mul(2))
}

#[cfg(test)]
mod tests;

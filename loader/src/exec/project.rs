//! Linear slots that read the same input, each in its stored form at the rank in use.

use crate::backend::{Backend, Factor, Input, Slot};
use crate::error::ExecError;
use crate::linear::{Linear, Placed, RankFraction};

/// A slot and the buffer `[n, out]` it fills.
pub(super) struct Output<'a, B: Backend> {
    pub linear: &'a Linear<B::Weight>,
    pub y: &'a mut B::Buffer,
}

/// Applies every slot of `outputs` to `x [n, in]`, the group's basis once for all of them.
pub(super) fn project<B: Backend, const N: usize>(
    backend: &mut B,
    n: usize,
    x: &B::Buffer,
    basis: Option<&Placed<B::Weight>>,
    fraction: RankFraction,
    outputs: [Output<'_, B>; N],
) -> Result<(), ExecError> {
    let mut factors: Vec<Factor<'_, B::Weight>> = Vec::new();
    let block_of_shared = outputs
        .iter()
        .filter_map(|output| match output.linear {
            Linear::SharedBasis { projected } => Some(projected.dtype.block_len()),
            _ => None,
        })
        .max();
    if let (Some(basis), Some(block)) = (basis, block_of_shared) {
        factors.push(first_factor(basis, fraction, block));
    }
    let mut slots: Vec<Slot<'_, B>> = Vec::with_capacity(N);
    for Output { linear, y } in outputs {
        let (w, input) = match linear {
            Linear::Dense(w) => (w, Input::Vector),
            Linear::LowRank { a, b } => {
                factors.push(first_factor(a, fraction, b.dtype.block_len()));
                (b, Input::Inner(factors.len() - 1))
            }
            // The basis, which a bound model has where a slot needs it.
            Linear::SharedBasis { projected } => (projected, Input::Inner(0)),
        };
        let cols = match input {
            Input::Vector => w.cols,
            Input::Inner(index) => factors.get(index).map_or(w.cols, |factor| factor.rows),
        };
        slots.push(Slot {
            weight: &w.weight,
            rows: w.rows,
            cols,
            input,
            y,
        });
    }
    backend.project(n, x, &factors, &mut slots)
}

/// The first factor of a slot, cut to the rank in use.
///
/// The second factor's rows are whole blocks, so the inner vector is computed up to the next
/// block boundary; the components beyond the rank in use count as zero.
fn first_factor<W>(
    first: &Placed<W>,
    fraction: RankFraction,
    second_block: usize,
) -> Factor<'_, W> {
    let rank = fraction.of(first.rows);
    Factor {
        weight: &first.weight,
        rows: rank.next_multiple_of(second_block).min(first.rows),
        rank,
    }
}

//! Projections of one input, each in its stored form at the active rank.

use std::ops::Range;

use crate::backend::{Backend, Factor, Input, Product};
use crate::dial::ActiveSetting;
use crate::error::Result;
use crate::linear::{Linear, Placed, RankFraction};

pub(super) struct Output<'a, B: Backend> {
    pub linear: &'a Linear<B::Weight>,
    pub y: &'a mut B::Buffer,
}

/// Applies the projections `outputs` to `x [n, in]`, computing the group's basis once. `extra` is
/// scratch space for residuals.
pub(super) fn project<B: Backend>(
    backend: &mut B,
    n: usize,
    x: &B::Buffer,
    basis: Option<&Placed<B::Weight>>,
    setting: ActiveSetting,
    mut outputs: Vec<Output<'_, B>>,
    extra: &mut B::Buffer,
) -> Result<()> {
    let fraction = setting.rank;
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
    let mut products: Vec<Product<'_, B>> = Vec::with_capacity(outputs.len());
    for Output { linear, y } in &mut outputs {
        let (w, input) = match linear {
            Linear::Dense(w)
            | Linear::Residual { base: w, .. }
            | Linear::Refined { base: w, .. } => (w, Input::Vector),
            Linear::LowRank { a, b } => {
                factors.push(first_factor(a, fraction, b.dtype.block_len()));
                (b, Input::Inner(factors.len() - 1))
            }
            // Bound models have the basis if a projection needs it.
            Linear::SharedBasis { projected } => (projected, Input::Inner(0)),
        };
        let cols = match input {
            Input::Vector => w.cols,
            Input::Inner(index) => factors.get(index).map_or(w.cols, |factor| factor.rows),
        };
        products.push(w.product(cols, input, &mut **y));
    }
    backend.project(n, x, &factors, &mut products)?;
    let mut refined: Vec<Product<'_, B>> = Vec::new();
    for Output { linear, y } in outputs {
        if let Linear::Residual { a, b, .. } = linear {
            backend.resize(extra, n * b.rows)?;
            let factor = first_factor(a, fraction, b.dtype.block_len());
            let product = b.product(factor.rows, Input::Inner(0), &mut *extra);
            backend.project(n, x, &[factor], &mut [product])?;
            backend.add(n * b.rows, y, extra)?;
        }
        if let Linear::Refined {
            refinement, place, ..
        } = linear
            && setting.is_active(*place)
        {
            refined.push(refinement.product(refinement.cols, Input::Vector, y));
        }
    }
    if refined.is_empty() {
        Ok(())
    } else {
        backend.refine(n, x, &mut refined, extra)
    }
}

/// Soft cap and active parts of a head.
pub(super) struct LogitOptions {
    pub cap: Option<f32>,
    pub setting: ActiveSetting,
}

/// Computes logits of rows of `x [n, width]` with the head in any form, at its active rank and with
/// its active refinement. `inner` and `extra` are scratch space.
pub(super) fn logits<B: Backend>(
    backend: &mut B,
    head: &Linear<B::Weight>,
    rows: Range<usize>,
    x: &B::Buffer,
    options: LogitOptions,
    out: &mut B::Buffer,
    [inner, extra]: [&mut B::Buffer; 2],
) -> Result<()> {
    let (n, LogitOptions { cap, setting }) = (rows.len(), options);
    match head {
        Linear::Dense(w) => backend.logits(&w.weight, rows, x, cap, out),
        Linear::LowRank { a, b } => {
            backend.resize(inner, n * a.rows)?;
            backend.logits(&a.weight, rows, x, None, inner)?;
            backend.logits(&b.weight, 0..n, inner, cap, out)
        }
        Linear::Residual { base, a, b } => {
            backend.logits(&base.weight, rows.clone(), x, None, out)?;
            backend.resize(inner, n * a.rows)?;
            backend.logits(&a.weight, rows, x, None, inner)?;
            backend.resize(extra, n * b.rows)?;
            backend.logits(&b.weight, 0..n, inner, None, extra)?;
            backend.add(n * b.rows, out, extra)?;
            match cap {
                Some(cap) => backend.softcap(n * b.rows, out, cap),
                None => Ok(()),
            }
        }
        Linear::Refined {
            base,
            refinement,
            place,
        } if setting.is_active(*place) => {
            backend.logits(&base.weight, rows.clone(), x, None, out)?;
            let numbers = n * refinement.rows;
            backend.resize(extra, numbers)?;
            backend.logits(&refinement.weight, rows, x, None, extra)?;
            backend.add(numbers, out, extra)?;
            match cap {
                Some(cap) => backend.softcap(numbers, out, cap),
                None => Ok(()),
            }
        }
        Linear::Refined { base, .. } => backend.logits(&base.weight, rows, x, cap, out),
        // No model is bound with a shared basis for the head.
        Linear::SharedBasis { projected } => backend.logits(&projected.weight, rows, x, cap, out),
    }
}

/// Returns the first factor of a projection, truncated to the active rank.
///
/// The second factor's rows are whole blocks, so the inner vector is computed up to the next block
/// boundary; components beyond the active rank are zero.
fn first_factor<W>(
    first: &Placed<W>,
    fraction: RankFraction,
    second_block: usize,
) -> Factor<'_, W> {
    let rank = fraction.active_rank(first.rows);
    Factor {
        weight: &first.weight,
        rows: rank.next_multiple_of(second_block).min(first.rows),
        rank,
    }
}

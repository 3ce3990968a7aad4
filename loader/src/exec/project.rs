//! Linear slots that read the same input, each in its stored form.

use htc_kernels::cpu::{self, Factor, Input, Scratch, Slot};
use htc_kernels::{Matrix, Pool, ShapeError};

use crate::error::ExecError;
use crate::linear::{Linear, RankFraction, first_factor};
use crate::tensor::Tensor;

/// A slot and the buffer `[n, out]` it fills.
pub(super) struct Output<'a> {
    linear: &'a Linear,
    y: &'a mut [f32],
}

impl<'a> Output<'a> {
    pub(super) fn new(linear: &'a Linear, y: &'a mut [f32]) -> Self {
        Output { linear, y }
    }
}

/// Room for the kernels.
#[derive(Default)]
pub(super) struct Workspace {
    pub(super) scratch: Scratch,
}

impl Workspace {
    /// `Y = X Wᵀ` for `n` rows.
    pub(super) fn multiply(
        &mut self,
        pool: &Pool,
        w: Matrix,
        n: usize,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), ShapeError> {
        cpu::matmul(pool, w, n, x, y, &mut self.scratch)
    }
}

/// Applies every slot of `outputs` to `x [n, in]`, the group's basis once for all of them.
pub(super) fn project(
    pool: &Pool,
    n: usize,
    x: &[f32],
    basis: Option<&Tensor>,
    fraction: RankFraction,
    outputs: &mut [Output],
    workspace: &mut Workspace,
) -> Result<(), ExecError> {
    let mut factors: Vec<Factor> = Vec::with_capacity(outputs.len());
    let block_of_shared = outputs
        .iter()
        .filter_map(|o| match o.linear {
            Linear::SharedBasis { projected } => Some(projected.dtype().block_len()),
            _ => None,
        })
        .max();
    // Without a basis, which a validated model has, the kernel refuses the slots that need it.
    let mut shared = usize::MAX;
    if let (Some(basis), Some(block)) = (basis, block_of_shared) {
        factors.push(first_factor(basis, fraction, block)?);
        shared = 0;
    }
    let mut slots: Vec<Slot> = Vec::with_capacity(outputs.len());
    for output in outputs {
        let (second, input) = match output.linear {
            Linear::Dense(w) => (w, Input::Vector),
            Linear::LowRank { a, b } => {
                factors.push(first_factor(a, fraction, b.dtype().block_len())?);
                (b, Input::Inner(factors.len() - 1))
            }
            Linear::SharedBasis { projected } => (projected, Input::Inner(shared)),
        };
        let w = match input {
            Input::Vector => second.matrix()?,
            Input::Inner(index) => {
                let used = factors.get(index).map_or(second.cols(), |f| f.w.rows());
                second.matrix()?.first_cols(used)?
            }
        };
        let y = &mut *output.y;
        slots.push(Slot { w, input, y });
    }
    let scratch = &mut workspace.scratch;
    Ok(cpu::project(pool, n, x, &factors, &mut slots, scratch)?)
}

//! Replacements of parts of a draft model while it drafts.

use htc_formats::model::Register;

use super::{Runner, Session};
use crate::backend::{Backend, Factor, Input};
use crate::error::Result;
use crate::linear::{Linear, Placed};
use crate::tensor::Tensor;

/// Replacements for parts of a model.
pub(crate) struct Adapted<B: Backend> {
    /// Replacements by layer.
    pub layers: Vec<Option<AdaptedLayer<B>>>,
    pub correction: Option<Correction<B>>,
}

/// Shared basis of Q, K and V and their projections, each a [`Linear::SharedBasis`].
pub(crate) struct AdaptedLayer<B: Backend> {
    /// `Pᵀ [rank, width]`.
    pub basis: Placed<B::Weight>,
    /// `W P [out, rank]`.
    pub qkv: [Linear<B::Weight>; 3],
}

/// Low-rank correction of the head's input, `h + B A h`.
pub(crate) struct Correction<B: Backend> {
    /// `A [rank, width]`.
    pub a: Placed<B::Weight>,
    /// `B [width, rank]`.
    pub b: Placed<B::Weight>,
}

impl<B: Backend> Adapted<B> {
    /// Returns the replacement of a layer, if any.
    pub fn layer(&self, index: usize) -> Option<&AdaptedLayer<B>> {
        self.layers.get(index).and_then(Option::as_ref)
    }
}

impl<B: Backend> Session<B> {
    /// Sets the replacements; returns the previous ones.
    pub(crate) fn adapt(&mut self, to: Option<Box<Adapted<B>>>) -> Option<Box<Adapted<B>>> {
        std::mem::replace(&mut self.runner.adapted, to)
    }

    /// Loads a matrix that is in no file to the backend.
    pub(crate) fn load(&mut self, tensor: &Tensor) -> Result<Placed<B::Weight>> {
        Ok(Placed {
            weight: self.runner.backend.weight(tensor)?,
            dtype: tensor.dtype(),
            rows: tensor.rows(),
            cols: tensor.cols(),
        })
    }

    /// Computes the uncorrected head input `[width]` of the last row of the last batch.
    pub(crate) fn head_input_before(&mut self, out: &mut Vec<f32>) -> Result<()> {
        let width = self.runner.model.hyper().width;
        let numbers = self.rows * width;
        let x = self.runner.read(Register::Normed, numbers)?;
        out.clear();
        out.extend_from_slice(&x[numbers - width.min(numbers)..]);
        let adapted = self.runner.adapted.as_deref();
        if adapted.is_some_and(|a| a.correction.is_some()) {
            let delta = self.runner.read(Register::Delta, numbers)?;
            let added = &delta[numbers - width.min(numbers)..];
            for (out, added) in out.iter_mut().zip(added) {
                *out -= added;
            }
        }
        Ok(())
    }
}

impl<B: Backend> Runner<B> {
    /// Corrects the head input of the batch's `n` rows, if there is a correction.
    pub(super) fn correct(&mut self, n: usize) -> Result<()> {
        let Some(Correction { a, b }) = self.adapted.as_deref().and_then(|a| a.correction.as_ref())
        else {
            return Ok(());
        };
        let (backend, buffers) = (&mut self.backend, &mut self.buffers);
        backend.resize(&mut buffers[Register::Delta], n * b.rows)?;
        let [normed, delta] = buffers.pair(Register::Normed, Register::Delta);
        let factor = Factor {
            weight: &a.weight,
            rows: a.rows,
            rank: a.rows,
        };
        let product = b.product(a.rows, Input::Inner(0), &mut *delta);
        backend.project(n, normed, &[factor], &mut [product])?;
        backend.add(n * b.rows, normed, delta)
    }
}

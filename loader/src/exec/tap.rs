//! Observation of activations inside a block.

use htc_formats::model::ActivationPoint;

use crate::backend::Backend;
use crate::error::ExecError;

/// Activation that a [`Tap`] can observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Point {
    /// Input `[n, in]` of the projections of an activation point; of an expert only the rows that
    /// the router sends there, in the order of their positions.
    Input(ActivationPoint),
    /// Queries after the rotary embedding, `[n, heads, head_size]`.
    Queries,
    /// Keys after the rotary embedding, `[n, kv_heads, head_size]`.
    Keys,
    /// Values, `[n, kv_heads, head_size]`.
    Values,
    /// Attention output added to the residual stream, `[n, width]`.
    AttentionBranch,
    /// Feed-forward output added to the residual stream, `[n, width]`.
    FfnBranch,
}

/// Observer of a block's activations.
pub trait Tap {
    /// Returns true if the point is to be observed; others stay on the backend.
    fn observes(&self, point: Point) -> bool {
        let _ = point;
        true
    }

    /// Receives the rows `x` of the batch at this point.
    fn see(&mut self, layer: usize, point: Point, x: &[f32]);
}

/// Observes nothing.
impl Tap for () {
    fn observes(&self, _: Point) -> bool {
        false
    }

    fn see(&mut self, _: usize, _: Point, _: &[f32]) {}
}

pub(super) struct Observer<'a> {
    pub tap: &'a mut dyn Tap,
    pub layer: usize,
    pub n: usize,
    /// Host buffer for activations of a device.
    pub host_buffer: &'a mut Vec<f32>,
}

impl Observer<'_> {
    /// Passes `x [n, width]` to the tap if requested.
    pub fn at<B: Backend>(
        &mut self,
        backend: &mut B,
        point: Point,
        width: usize,
        x: &B::Buffer,
    ) -> Result<(), ExecError> {
        self.numbers(backend, point, self.n * width, x)
    }

    /// Passes the first `numbers` of `x` to the tap if requested.
    pub fn numbers<B: Backend>(
        &mut self,
        backend: &mut B,
        point: Point,
        numbers: usize,
        x: &B::Buffer,
    ) -> Result<(), ExecError> {
        if self.tap.observes(point) {
            let x = backend.read(x, numbers, self.host_buffer)?;
            self.tap.see(self.layer, point, x);
        }
        Ok(())
    }
}

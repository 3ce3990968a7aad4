//! A look at the activations inside a block.

use htc_formats::model::ActivationPoint;

use crate::backend::Backend;
use crate::error::ExecError;

/// Where a [`Tap`] looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Point {
    /// What the slots of a site read, `[n, in]`.
    Input(ActivationPoint),
    /// Queries after the rotary embedding, `[n, heads, head_size]`.
    Queries,
    /// Keys after the rotary embedding, `[n, kv_heads, head_size]`.
    Keys,
    /// Values, `[n, kv_heads, head_size]`.
    Values,
    /// What attention adds to the residual stream, `[n, width]`.
    AttentionBranch,
    /// What the feed-forward network adds to it, `[n, width]`.
    FfnBranch,
}

/// Sees the activations of a block as they are computed.
pub trait Tap {
    /// Whether this point is of interest: what is not stays on the backend.
    fn wants(&self, point: Point) -> bool {
        let _ = point;
        true
    }

    /// `x` are the rows of the batch at this point, one after the other.
    fn see(&mut self, layer: usize, point: Point, x: &[f32]);
}

/// Looks at nothing.
impl Tap for () {
    fn wants(&self, _: Point) -> bool {
        false
    }

    fn see(&mut self, _: usize, _: Point, _: &[f32]) {}
}

/// A tap on the activations of one block.
pub(super) struct Look<'a> {
    pub tap: &'a mut dyn Tap,
    pub layer: usize,
    /// Rows of the batch.
    pub n: usize,
    /// Where numbers of a device are copied to.
    pub room: &'a mut Vec<f32>,
}

impl Look<'_> {
    /// Shows `x [n, width]` to the tap, if it wants to see it.
    pub fn at<B: Backend>(
        &mut self,
        backend: &mut B,
        point: Point,
        width: usize,
        x: &B::Buffer,
    ) -> Result<(), ExecError> {
        if self.tap.wants(point) {
            let x = backend.read(x, self.n * width, self.room)?;
            self.tap.see(self.layer, point, x);
        }
        Ok(())
    }
}

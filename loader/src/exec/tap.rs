//! A look at the activations inside a block.

use htc_formats::model::Site;

/// Where a [`Tap`] looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// What the slots of a site read, `[n, in]`.
    Input(Site),
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
    /// `x` are the rows of the batch at this point, one after the other.
    fn see(&mut self, layer: usize, point: Point, x: &[f32]);
}

/// Looks at nothing.
impl Tap for () {
    fn see(&mut self, _: usize, _: Point, _: &[f32]) {}
}

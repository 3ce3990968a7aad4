//! Backends: devices that execute the operations of a forward pass.
//!
//! [`exec`](crate::exec) decides the operations and their order, a [`Backend`] executes them.
//! Activations stay in its [buffers](Backend::Buffer) from the tokens to the logits, unless a
//! [`Tap`](crate::exec::Tap) reads them. [`Backend::embed`] and [`Backend::upload`] write,
//! [`Backend::read`] reads.
//!
//! **Shapes** are checked by the callers: those of weights when a [`Model`](crate::Model) is bound,
//! those of activations by the session. A wrong shape must lead to an error or a panic, never to an
//! access outside of a buffer.
//!
//! **Asynchrony.** An operation may return before it is done, as GPU launches do, if later
//! operations see its result; [`Backend::read`] waits. Its error may be returned by a later
//! operation, at the latest by `read`.
//!
//! **Threads.** A backend belongs to one session or engine, which may move between threads.
//! Sessions share weights through [`Backend::Weight`].

mod cpu;
mod gpu;
mod reference;

use std::ops::Range;

use htc_formats::model::{Activation, RopePairs};

pub use cpu::{Cpu, CpuRotation};
pub use gpu::{Gpu, GpuBuffer, GpuKv, GpuMemoryEstimate, GpuRotation, GpuVector, PlannedSession};
pub use htc_kernels::cpu::{Attention, Input};
#[cfg(feature = "cuda")]
pub use htc_kernels::cuda::Cuda as CudaDevice;
#[cfg(feature = "emulated")]
pub use htc_kernels::cuda::EmulatedDevice;
pub use reference::{Reference, ReferenceKv, ReferenceRotation, ReferenceWeight};

use crate::error::Result;
use crate::kv::{Kv, KvPlan};
use crate::sampling::SamplingParameters;
use crate::tensor::Tensor;

/// Backend for an NVIDIA GPU.
#[cfg(feature = "cuda")]
pub type Cuda = Gpu<CudaDevice>;

/// Backend for an emulated GPU, for tests.
#[cfg(feature = "emulated")]
pub type Emulated = Gpu<EmulatedDevice>;

/// First factor of factorised projections; its product with the input is their inner vector.
#[derive(Debug)]
pub struct Factor<'a, W> {
    /// The matrix.
    pub weight: &'a W,
    /// Leading rows to compute: [`rank`](Factor::rank), rounded up to whole blocks of the second
    /// factor.
    pub rows: usize,
    /// Rank in use; components from here to [`rows`](Factor::rows) are zero.
    pub rank: usize,
}

/// A matrix product of a projection: `y = W x`, or `y = W A x` with the matrix `A` of a [`Factor`].
#[derive(Debug)]
pub struct Product<'a, B: Backend> {
    /// `W`.
    pub weight: &'a B::Weight,
    /// Rows of `W`, the length of a row of `y`.
    pub rows: usize,
    /// Leading columns in use: the length of a row of `x`, or the factor's [`rows`](Factor::rows).
    pub cols: usize,
    /// Input of the product.
    pub input: Input,
    /// `[n, rows]`.
    pub y: &'a mut B::Buffer,
}

/// Consecutive rows of a batch that belong to one sequence.
#[derive(Debug)]
pub struct SequenceRows<'a, K> {
    /// The rows.
    pub rows: Range<usize>,
    /// KV cache, to which keys and values of the rows were just appended, but not counted.
    pub kv: &'a K,
}

/// Shape of rows of heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadShape {
    /// Positions of the batch.
    pub rows: usize,
    /// Heads per row.
    pub heads: usize,
    /// Head size.
    pub size: usize,
}

/// Operations of a forward pass on one device.
///
/// `x [n, width]` means `n` contiguous rows of `width` numbers from the beginning of the buffer;
/// the rest of the buffer is unspecified.
pub trait Backend: Send + Sized {
    /// Activations on the device. The default is empty.
    type Buffer: Default + Send;
    /// A matrix of the model, shared by sessions.
    type Weight: Send + Sync;
    /// The weight of a norm, or a bias, shared by sessions.
    type Vector: Send + Sync;
    /// Cosines and sines of the positions of a batch. The default has no positions.
    type Rotation: Default + Send;
    /// KV cache.
    type Kv: Kv<Backend = Self>;

    /// Loads a matrix to the device.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) if it does not decode or memory runs out.
    fn weight(&mut self, tensor: &Tensor) -> Result<Self::Weight>;

    /// Loads the weight of a norm, or a bias, to the device.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) if memory runs out.
    fn vector(&mut self, numbers: Vec<f32>) -> Result<Self::Vector>;

    /// Returns an empty KV cache.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) if memory runs out.
    fn kv(&mut self, plan: &KvPlan) -> Result<Self::Kv>;

    /// Resizes `buffer` to at least `numbers` numbers of unspecified value, reusing its memory.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) if memory runs out.
    fn resize(&mut self, buffer: &mut Self::Buffer, numbers: usize) -> Result<()>;

    /// Copies numbers of the host to the beginning of a buffer.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn upload(&mut self, from: &[f32], to: &mut Self::Buffer) -> Result<()>;

    /// Waits for all operations and returns the first `numbers` numbers of a buffer: in place if
    /// they are in host memory, else copied to `host_buffer`.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device or of earlier operations.
    fn read<'a>(
        &mut self,
        from: &'a Self::Buffer,
        numbers: usize,
        host_buffer: &'a mut Vec<f32>,
    ) -> Result<&'a [f32]>;

    /// Returns pending errors of operations that depend on values, waiting if necessary. The
    /// default has none.
    ///
    /// # Errors
    /// As [`Kv::append`].
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Begins to select the `most` largest of the first `numbers` numbers, so that not all of them
    /// need be [read](Backend::read). Returns false (the default) if unsupported.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn begin_top_k(&mut self, of: &Self::Buffer, numbers: usize, most: usize) -> Result<bool> {
        let _ = (of, numbers, most);
        Ok(false)
    }

    /// Returns the [selected](Backend::begin_top_k) numbers with their indices, in descending
    /// order, ties by lower index; `None` if a number is not finite.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn take_top_k(&mut self) -> Result<Option<Vec<(u32, f32)>>> {
        Ok(None)
    }

    /// Begins to draw a token from the first `numbers` logits, so that they need not be
    /// [read](Backend::read). Returns false (the default) if unsupported.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn begin_draw(
        &mut self,
        of: &Self::Buffer,
        numbers: usize,
        draw: &SamplingParameters,
    ) -> Result<bool> {
        let _ = (of, numbers, draw);
        Ok(false)
    }

    /// Returns the [drawn](Backend::begin_draw) token; `None` if a number is not finite.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn drawn(&mut self) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Copies `rows` of `x [n, width]` to the rows of `out` from `first` on.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn copy_rows(
        &mut self,
        width: usize,
        x: &Self::Buffer,
        rows: Range<usize>,
        out: &mut Self::Buffer,
        first: usize,
    ) -> Result<()>;

    /// Looks up the embeddings of `tokens`, times `scale`: `out [n, width]`.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn embed(
        &mut self,
        embedding: &Self::Weight,
        tokens: &[u32],
        scale: Option<f32>,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Computes `out = x / sqrt(mean(x²) + epsilon) * weight` for each row of `x [n, width]`;
    /// `width` is the length of `weight`.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn rms_norm(
        &mut self,
        n: usize,
        x: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Computes [`Backend::rms_norm`] in place.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn rms_norm_in_place(
        &mut self,
        n: usize,
        x: &mut Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
    ) -> Result<()>;

    /// Computes every product of `products` with every row of `x [n, in]`: dense ones with the
    /// row itself, others with the inner vector of their factor.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn project(
        &mut self,
        n: usize,
        x: &Self::Buffer,
        factors: &[Factor<'_, Self::Weight>],
        products: &mut [Product<'_, Self>],
    ) -> Result<()>;

    /// As [`Backend::project`] without factors, adding the products to each `y`. `extra` is scratch
    /// space.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn refine(
        &mut self,
        n: usize,
        x: &Self::Buffer,
        products: &mut [Product<'_, Self>],
        extra: &mut Self::Buffer,
    ) -> Result<()> {
        refine_one_by_one(self, n, x, products, extra)
    }

    /// Computes `x += bias` for each row of `x [n, width]`.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn add_bias(&mut self, n: usize, x: &mut Self::Buffer, bias: &Self::Vector) -> Result<()>;

    /// Sets `rotation` to the positions of the rows, given as ranges in order: cosine and sine of
    /// position times frequency (radians per position), both times `factor`. Frequencies and factor
    /// are always the same for the same `rotation`. Angles need float64: at position 100,000 a
    /// float32 angle is off by 0.004 radians.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn rotate_to(
        &mut self,
        rotation: &mut Self::Rotation,
        positions: &[Range<usize>],
        frequencies: &[f64],
        factor: f32,
    ) -> Result<()>;

    /// Applies the rotary embedding to every head. With `p` frequencies, pair `i < p` is `(2i, 2i +
    /// 1)` or `(i, i + p)`; other numbers are unchanged.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn rope(
        &mut self,
        pairs: RopePairs,
        rotation: &Self::Rotation,
        shape: HeadShape,
        x: &mut Self::Buffer,
    ) -> Result<()>;

    /// If true, every row of the following batches is bitwise identical to that of a batch with one
    /// row; else sums may be in another order. Used to verify draft tokens, and for batches of
    /// several sequences.
    fn set_batch_invariant(&mut self, batch_invariant: bool);

    /// Computes causal attention of queries `[n, heads, head_size]`, the rows of each sequence over
    /// a layer of its KV cache; `out` has the shape of `q`. Query head `h` reads kv head
    /// `h / (heads / kv_heads)`. Low-rank rows are read as `U k̃` and `U ṽ`. One row is a decoding
    /// step, several are a prefill.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn attention(
        &mut self,
        shape: HeadShape,
        q: &Self::Buffer,
        batch: &[SequenceRows<'_, Self::Kv>],
        layer: usize,
        attention: &Attention,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Applies the normalised Walsh–Hadamard transform, its own inverse, to every head of `x` in
    /// place, in blocks of [`hadamard_block`](htc_kernels::cpu::hadamard_block) numbers.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) for odd head sizes, and of the device.
    fn hadamard(&mut self, shape: HeadShape, x: &mut Self::Buffer) -> Result<()>;

    /// Returns the attention weights of the last `window` queries of a sequence on every position
    /// of a layer, including the appended, uncounted rows: sums over the queries and the heads of a
    /// kv head, `[kv_heads, held + rows]`. `q` and `shape` are those of the batch.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn importance(
        &mut self,
        shape: HeadShape,
        q: &Self::Buffer,
        sequence: SequenceRows<'_, Self::Kv>,
        layer: usize,
        attention: &Attention,
        window: usize,
    ) -> Result<Vec<f32>>;

    /// Computes `gate = activation(gate) * up` elementwise.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn activate(
        &mut self,
        activation: Activation,
        numbers: usize,
        gate: &mut Self::Buffer,
        up: &Self::Buffer,
    ) -> Result<()>;

    /// Computes `x += y` elementwise.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn add(&mut self, numbers: usize, x: &mut Self::Buffer, y: &Self::Buffer) -> Result<()>;

    /// Computes `x = cap * tanh(x / cap)` elementwise.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn softcap(&mut self, numbers: usize, x: &mut Self::Buffer, cap: f32) -> Result<()>;

    /// Computes logits: the product of `output [vocabulary, width]`, or of a factor of it, with
    /// rows of `x [n, width]`: `out [rows.len(), vocabulary]`, soft-capped if `cap` is given.
    ///
    /// # Errors
    /// [`ExecError`](crate::ExecError) of the device.
    fn logits(
        &mut self,
        output: &Self::Weight,
        rows: Range<usize>,
        x: &Self::Buffer,
        cap: Option<f32>,
        out: &mut Self::Buffer,
    ) -> Result<()>;
}

/// Implements [`Backend::refine`] by a product and a sum per projection.
fn refine_one_by_one<B: Backend>(
    backend: &mut B,
    n: usize,
    x: &B::Buffer,
    products: &mut [Product<'_, B>],
    extra: &mut B::Buffer,
) -> Result<()> {
    for product in products {
        let numbers = n * product.rows;
        backend.resize(extra, numbers)?;
        let separate = Product {
            weight: product.weight,
            rows: product.rows,
            cols: product.cols,
            input: product.input,
            y: &mut *extra,
        };
        backend.project(n, x, &[], &mut [separate])?;
        backend.add(numbers, product.y, extra)?;
    }
    Ok(())
}

//! What executes a forward pass: the operations of a block, on buffers of their own.
//!
//! [`exec`](crate::exec) decides what is computed and in which order, and a [`Backend`] how and
//! where. Activations are [buffers](Backend::Buffer) of the backend from the tokens to the logits:
//! nothing in between asks for them on the host, unless a [`Tap`](crate::exec::Tap) wants to see
//! one. Numbers go in by [`Backend::embed`] and [`Backend::upload`] and come out by
//! [`Backend::read`].
//!
//! **Shapes** are checked above: those of the weights when a [`Model`](crate::Model) is bound, those
//! of activations by the session that makes the buffers. A backend may rely on them, but not for
//! memory safety: what it is given wrong must end in an error or a panic, never outside of a buffer.
//!
//! **Time.** An operation may return before it is done, as launches on a GPU do, if whatever comes
//! later sees its result; [`Backend::read`] waits. An error of an operation may be returned by a
//! later one, by `read` at the latest.
//!
//! **Threads.** A backend belongs to one session, which may move between threads. What sessions
//! share, weights above all, is behind [`Backend::Weight`].

mod cpu;
mod gpu;
mod reference;

use std::ops::Range;
use std::sync::Arc;

use htc_formats::model::{Activation, RopePairs};

pub use cpu::{Cpu, CpuRotation};
pub use gpu::{Gpu, GpuBuffer, GpuKv, GpuRotation, GpuVector, Need, Planned};
pub use htc_kernels::cpu::{Attention, Input};
#[cfg(feature = "cuda")]
pub use htc_kernels::cuda::Cuda as CudaDevice;
#[cfg(feature = "emulated")]
pub use htc_kernels::cuda::EmulatedDevice;
pub use reference::{Reference, ReferenceKv, ReferenceRotation, ReferenceWeight};

use crate::error::ExecError;
use crate::kv::{CompressionEnergies, KeptRows, Kv, KvError, KvPlan, LayerBases};
use crate::sampling::SamplingParameters;
use crate::tensor::Tensor;

/// Executes on an NVIDIA GPU.
#[cfg(feature = "cuda")]
pub type Cuda = Gpu<CudaDevice>;

/// Executes on a GPU that the processor emulates, for tests.
#[cfg(feature = "emulated")]
pub type Emulated = Gpu<EmulatedDevice>;

/// A matrix whose product with the input is an inner vector of factorised slots.
#[derive(Debug)]
pub struct Factor<'a, W> {
    /// The matrix.
    pub weight: &'a W,
    /// Leading rows of it that are computed: [`rank`](Factor::rank), up to the next whole block of
    /// whatever is multiplied with the result.
    pub rows: usize,
    /// Components of the inner vector that count; those from here to [`rows`](Factor::rows) are
    /// zero.
    pub rank: usize,
}

/// A linear slot, `y = W x`, or `y = W A x` with the matrix `A` of a [`Factor`].
#[derive(Debug)]
pub struct Slot<'a, B: Backend> {
    /// `W`.
    pub weight: &'a B::Weight,
    /// Its rows: numbers in a row of `y`.
    pub rows: usize,
    /// Leading columns of it in use: the numbers in a row of `x`, or the factor's
    /// [`rows`](Factor::rows).
    pub cols: usize,
    /// What it is multiplied with.
    pub input: Input,
    /// `[n, rows]`.
    pub y: &'a mut B::Buffer,
}

/// Rows of heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadShape {
    /// Rows: positions of the batch.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Numbers of a head.
    pub size: usize,
}

/// The operations of a forward pass, on one device.
///
/// `x [n, width]` means `n` rows of so many numbers, one after the other from the beginning of the
/// buffer; what a buffer holds beyond is of no meaning.
pub trait Backend: Send + Sized {
    /// Activations, where the operations need them. The default is empty.
    type Buffer: Default + Send;
    /// A matrix of the model; sessions share it.
    type Weight: Send + Sync;
    /// The weight of a norm, or a bias; sessions share it.
    type Vector: Send + Sync;
    /// Cosines and sines of the positions of a batch. The default is that of no position.
    type Rotation: Default + Send;
    /// Keys and values of the positions read.
    type Kv: Kv;

    /// Brings a matrix to where operations read it.
    ///
    /// # Errors
    /// [`ExecError`] where it does not decode or there is no room for it.
    fn weight(&mut self, tensor: &Tensor) -> Result<Self::Weight, ExecError>;

    /// Brings the weight of a norm, or a bias, to where operations read it.
    ///
    /// # Errors
    /// [`ExecError`] where there is no room for it.
    fn vector(&mut self, numbers: Vec<f32>) -> Result<Self::Vector, ExecError>;

    /// An empty store of keys and values.
    ///
    /// # Errors
    /// [`ExecError`] where the backend has none of this kind.
    fn kv(&mut self, plan: &KvPlan) -> Result<Self::Kv, ExecError>;

    /// Makes room for `n` positions behind those that `kv` holds, in every layer; may give back room
    /// that compression and eviction have left.
    ///
    /// # Errors
    /// [`ExecError`] where there is no memory for them.
    fn reserve(&mut self, kv: &mut Self::Kv, n: usize) -> Result<(), ExecError>;

    /// Gives `buffer` room for so many numbers, of unspecified value; memory that it has is kept.
    ///
    /// # Errors
    /// [`ExecError`] where there is no memory for them.
    fn resize(&mut self, buffer: &mut Self::Buffer, numbers: usize) -> Result<(), ExecError>;

    /// Copies numbers of the host to the beginning of a buffer that has room for them.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn upload(&mut self, from: &[f32], to: &mut Self::Buffer) -> Result<(), ExecError>;

    /// The first `numbers` numbers of a buffer, after everything that was begun is done: where they
    /// lie, if that is memory of the host, else in `room`.
    ///
    /// # Errors
    /// [`ExecError`] of the device, and of every operation before that has not returned its own.
    fn read<'a>(
        &mut self,
        from: &'a Self::Buffer,
        numbers: usize,
        room: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], ExecError>;

    /// Returns the error of an operation that has not returned its own, of those that numbers can cause; waits for
    /// them where that needs it. The default has none: its operations return their own.
    ///
    /// # Errors
    /// As [`Backend::append`].
    fn settle(&mut self) -> Result<(), ExecError> {
        Ok(())
    }

    /// Begins to look for the `most` largest of the first `numbers` numbers, so that not all of them need be
    /// [read](Backend::read); whether it does. The default does not: where the host has the numbers there is nothing to gain.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn seek_largest(
        &mut self,
        of: &Self::Buffer,
        numbers: usize,
        most: usize,
    ) -> Result<bool, ExecError> {
        let _ = (of, numbers, most);
        Ok(false)
    }

    /// What was [looked for](Backend::seek_largest), with its places, the largest first and of equal ones that of the lower place;
    /// nothing where a number is not finite.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn found_largest(&mut self) -> Result<Option<Vec<(u32, f32)>>, ExecError> {
        Ok(None)
    }

    /// Begins to draw a token from the first `numbers` numbers, so that they need not be [read](Backend::read); whether it does. The
    /// default does not.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn begin_draw(
        &mut self,
        of: &Self::Buffer,
        numbers: usize,
        draw: &SamplingParameters,
    ) -> Result<bool, ExecError> {
        let _ = (of, numbers, draw);
        Ok(false)
    }

    /// The token that was [drawn](Backend::begin_draw); nothing where a number is not finite.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn drawn(&mut self) -> Result<Option<u32>, ExecError> {
        Ok(None)
    }

    /// The rows of the embedding that `tokens` name, times `scale`: `out [n, width]`.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn embed(
        &mut self,
        embedding: &Self::Weight,
        tokens: &[u32],
        scale: Option<f32>,
        out: &mut Self::Buffer,
    ) -> Result<(), ExecError>;

    /// `out = x / sqrt(mean(x²) + epsilon) * weight` for each row of `x [n, width]`, where `width`
    /// is the length of `weight`.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn rms_norm(
        &mut self,
        n: usize,
        x: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), ExecError>;

    /// [`Backend::rms_norm`] with `x` as its own result.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn rms_norm_in_place(
        &mut self,
        n: usize,
        x: &mut Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
    ) -> Result<(), ExecError>;

    /// Every slot of `slots`, applied to every row of `x [n, in]`: dense ones to the row itself,
    /// others to the inner vector of their factor.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn project(
        &mut self,
        n: usize,
        x: &Self::Buffer,
        factors: &[Factor<'_, Self::Weight>],
        slots: &mut [Slot<'_, Self>],
    ) -> Result<(), ExecError>;

    /// As [`Backend::project`] without factors, and adds what it gives to what is at each slot's `y`, number by number. `extra` holds
    /// what is added where a backend has no better way.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn refine(
        &mut self,
        n: usize,
        x: &Self::Buffer,
        slots: &mut [Slot<'_, Self>],
        extra: &mut Self::Buffer,
    ) -> Result<(), ExecError> {
        refine_one_by_one(self, n, x, slots, extra)
    }

    /// `x += bias` for each row of `x [n, width]`.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn add_bias(
        &mut self,
        n: usize,
        x: &mut Self::Buffer,
        bias: &Self::Vector,
    ) -> Result<(), ExecError>;

    /// Makes `rotation` that of the positions `start .. start + n`: cosine and sine, both times
    /// `factor`, of the position times each of `frequencies` (radians per position). Always called
    /// with the same frequencies and factor for the same `rotation`. Angles need float64: at
    /// position 100,000 a float32 angle is off by 0.004 radians.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn rotate_to(
        &mut self,
        rotation: &mut Self::Rotation,
        start: usize,
        n: usize,
        frequencies: &[f64],
        factor: f32,
    ) -> Result<(), ExecError>;

    /// The rotary embedding: turns the pairs of numbers of every head of a row by the angles of its
    /// position; what belongs to no pair stays. With `p` frequencies pair `i < p` is `(2i, 2i + 1)` or
    /// `(i, i + p)`.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn rope(
        &mut self,
        pairs: RopePairs,
        rotation: &Self::Rotation,
        shape: HeadShape,
        x: &mut Self::Buffer,
    ) -> Result<(), ExecError>;

    /// Whether every row of the batches to come has the bits that it has in a batch of its own, to the last one;
    /// else rows of a batch may be added up in another order than one alone. A batch that checks what was foreseen
    /// needs them, and has few rows.
    fn keep_apart(&mut self, apart: bool);

    /// Writes keys and values `[n, kv_heads, head_size]` of one layer behind the positions held, for
    /// which room was [reserved](Backend::reserve); [`Kv::advance`] counts them once all layers have
    /// theirs.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a number that the store does not hold; the positions held are as
    /// before.
    fn append(
        &mut self,
        kv: &mut Self::Kv,
        layer: usize,
        n: usize,
        keys: &Self::Buffer,
        values: &Self::Buffer,
    ) -> Result<(), ExecError>;

    /// Causal attention of queries `[n, heads, head_size]`, whose keys and values were appended last,
    /// over what `kv` holds of a layer; `out` has the shape of `q`. Query head `h` reads kv head
    /// `h / (heads / kv_heads)`. What a layer holds in low rank is read as `U k̃` and `U ṽ`. One row is a step of decoding, several are a prefill.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn attention(
        &mut self,
        shape: HeadShape,
        q: &Self::Buffer,
        kv: &Self::Kv,
        layer: usize,
        attention: &Attention,
        out: &mut Self::Buffer,
    ) -> Result<(), ExecError>;

    /// The normalised Walsh–Hadamard transform of every head of `x`, in place, in blocks of
    /// [`hadamard_block`](htc_kernels::cpu::hadamard_block) numbers. Its own inverse.
    ///
    /// # Errors
    /// [`ExecError`] for heads of an odd size, and of the device. That of a backend that has none, which
    /// is what a backend says that does not implement it, is [`KvError::Unsupported`]; so do the
    /// operations below.
    fn hadamard(&mut self, shape: HeadShape, x: &mut Self::Buffer) -> Result<(), ExecError> {
        let _ = (shape, x);
        Err(unsupported("heads that are turned"))
    }

    /// The bases that a layer is compressed with from now on. What it holds in low rank is multiplied
    /// with `turns [kv_heads, rank, rank]`, of keys and of values; `None` where it holds nothing.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a coordinate that float16 does not hold; nothing has changed then.
    fn set_bases(
        &mut self,
        kv: &mut Self::Kv,
        layer: usize,
        bases: &Arc<LayerBases>,
        turns: Option<&[Vec<f32>; 2]>,
    ) -> Result<(), ExecError> {
        let _ = (kv, layer, bases, turns);
        Err(unsupported("bases"))
    }

    /// Appends the coordinates of `count` rows in full, those behind the first `front`, to what a layer
    /// holds in low rank, and closes the gap among the rows in full. The caller then counts them with
    /// [`KvLayout::compress`](crate::kv::KvLayout::compress).
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a coordinate that float16 does not hold; nothing has changed then.
    fn compress(
        &mut self,
        kv: &mut Self::Kv,
        layer: usize,
        front: usize,
        count: usize,
    ) -> Result<CompressionEnergies, ExecError> {
        let _ = (kv, layer, front, count);
        Err(unsupported("bases"))
    }

    /// Keys and values of some rows that a layer holds in full, `[kv_heads, rows, head_size]` each.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn full_rows(
        &mut self,
        kv: &Self::Kv,
        layer: usize,
        rows: Range<usize>,
    ) -> Result<[Vec<f32>; 2], ExecError> {
        let _ = (kv, layer, rows);
        Err(unsupported("bases that follow the text"))
    }

    /// The weights that the last `window` rows of queries `[n, heads, head_size]` give every position
    /// that a layer holds, the batch's included, which were appended and not counted: sums over the
    /// queries and over the heads that read a kv head, `[kv_heads, held + n]`.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn importance(
        &mut self,
        shape: HeadShape,
        q: &Self::Buffer,
        kv: &Self::Kv,
        layer: usize,
        attention: &Attention,
        window: usize,
    ) -> Result<Vec<f32>, ExecError> {
        let _ = (shape, q, kv, layer, attention, window);
        Err(unsupported("positions that are evicted"))
    }

    /// Drops the rows of a layer that `kept` does not name. The caller then counts them with
    /// [`KvLayout::evict`](crate::kv::KvLayout::evict).
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn keep(&mut self, kv: &mut Self::Kv, layer: usize, kept: &KeptRows) -> Result<(), ExecError> {
        let _ = (kv, layer, kept);
        Err(unsupported("positions that are evicted"))
    }

    /// `gate = activation(gate) * up`, number by number.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn activate(
        &mut self,
        activation: Activation,
        numbers: usize,
        gate: &mut Self::Buffer,
        up: &Self::Buffer,
    ) -> Result<(), ExecError>;

    /// `x += y`, number by number.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn add(
        &mut self,
        numbers: usize,
        x: &mut Self::Buffer,
        y: &Self::Buffer,
    ) -> Result<(), ExecError>;

    /// A number `l` becomes `cap * tanh(l / cap)`.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn softcap(&mut self, numbers: usize, x: &mut Self::Buffer, cap: f32) -> Result<(), ExecError>;

    /// The product of `output [vocabulary, width]`, or of a factor of it, with some rows of
    /// `x [n, width]`: `out [rows.len(), vocabulary]`. With a `cap` a logit `l` becomes `cap * tanh(l / cap)`.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn logits(
        &mut self,
        output: &Self::Weight,
        rows: Range<usize>,
        x: &Self::Buffer,
        cap: Option<f32>,
        out: &mut Self::Buffer,
    ) -> Result<(), ExecError>;
}

/// [`Backend::refine`] by a product and a sum for each slot.
fn refine_one_by_one<B: Backend>(
    backend: &mut B,
    n: usize,
    x: &B::Buffer,
    slots: &mut [Slot<'_, B>],
    extra: &mut B::Buffer,
) -> Result<(), ExecError> {
    for slot in slots {
        let numbers = n * slot.rows;
        backend.resize(extra, numbers)?;
        let product = Slot {
            weight: slot.weight,
            rows: slot.rows,
            cols: slot.cols,
            input: slot.input,
            y: &mut *extra,
        };
        backend.project(n, x, &[], &mut [product])?;
        backend.add(numbers, slot.y, extra)?;
    }
    Ok(())
}

fn unsupported(what: &'static str) -> ExecError {
    KvError::Unsupported { what }.into()
}

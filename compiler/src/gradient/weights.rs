//! The weights of a block as numbers, one block at a time.

use std::ops::Range;

use htc_formats::block;
use htc_formats::model::{MatrixId, Part, Role, Slot};
use htc_formats::source::{ModelFile, ModelTensor};
use htc_kernels::Pool;
use htc_loader::Model;

use super::GradientError;
use super::block::Block;
use super::head::Rows;
use super::heads::Rotation;
use super::number::{Matrix, Number};

/// A tensor where it lies in the source.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    file: &'a ModelFile,
    tensor: &'a ModelTensor,
}

impl<'a> Stored<'a> {
    /// The tensor of a role.
    pub fn new(file: &'a ModelFile, role: Role) -> Result<Self, GradientError> {
        let tensor = file.tensor(role).ok_or(GradientError::Missing(role))?;
        Ok(Stored { file, tensor })
    }

    /// The matrix of a model's head: its own, or the embedding that it is tied to.
    pub fn head(file: &'a ModelFile) -> Result<Self, GradientError> {
        Stored::new(file, MatrixId::Head.weight())
            .or_else(|_| Stored::new(file, MatrixId::Embedding.weight()))
    }

    /// All of its numbers, decoded on all threads.
    fn matrix<T: Number>(&self, pool: &Pool) -> Result<Matrix<T>, GradientError> {
        let (rows, cols) = (self.tensor.rows, self.tensor.cols);
        let mut values = vec![T::default(); rows * cols];
        self.on_all_threads(pool, 0..rows, &mut values)?;
        Ok(Matrix { rows, cols, values })
    }
}

impl<T: Number> Rows<T> for Stored<'_> {
    type Error = GradientError;

    fn rows(&self, rows: Range<usize>, out: &mut [T]) -> Result<(), GradientError> {
        let (tensor, bytes) = (self.tensor, self.file.bytes(self.tensor));
        let row_bytes = bytes.len() / tensor.rows.max(1);
        let bytes = &bytes[rows.start * row_bytes..rows.end * row_bytes];
        let mut numbers = vec![0.0; out.len()];
        block::decode(tensor.dtype, bytes, &mut numbers).map_err(|source| {
            let tensor = tensor.name.clone();
            GradientError::Block { tensor, source }
        })?;
        for (out, number) in out.iter_mut().zip(numbers) {
            *out = T::from(number);
        }
        Ok(())
    }
}

/// A vector of the model; `None` where it has none of that role.
pub(super) fn vector<T: Number>(
    file: &ModelFile,
    role: Role,
) -> Result<Option<Vec<T>>, GradientError> {
    if file.tensor(role).is_none() {
        return Ok(None);
    }
    let stored = Stored::new(file, role)?;
    let mut values = vec![T::default(); stored.tensor.rows * stored.tensor.cols];
    stored.rows(0..stored.tensor.rows, &mut values)?;
    Ok(Some(values))
}

/// A vector that every model has.
pub(super) fn required<T: Number>(file: &ModelFile, role: Role) -> Result<Vec<T>, GradientError> {
    vector(file, role)?.ok_or(GradientError::Missing(role))
}

/// A block of the model, for windows of `context` tokens.
pub(super) fn block<T: Number>(
    model: &Model,
    layer: usize,
    context: usize,
    pool: &Pool,
) -> Result<Block<T>, GradientError> {
    let (file, hyper) = (model.file(), model.hyper());
    let role = |slot, part| Role::Linear { layer, slot, part };
    let mut slots = Vec::new();
    let mut biases = Vec::new();
    for slot in Slot::ALL {
        slots.push(Stored::new(file, role(slot, Part::Weight))?.matrix(pool)?);
        biases.push(vector(file, role(slot, Part::Bias))?);
    }
    let (frequencies, factor) = model.rotation(layer, context);
    Ok(Block {
        width: hyper.width,
        heads: hyper.heads,
        kv_heads: hyper.kv_heads,
        head_size: hyper.head_size,
        epsilon: hyper.norm_epsilon.into(),
        activation: hyper.forward.activation,
        context,
        attention: *model
            .attention(layer)
            .ok_or(GradientError::Missing(Role::AttentionNorm { layer }))?,
        rotation: Rotation::new(hyper.forward.rope_pairs, context, frequencies, factor),
        slots,
        biases,
        attention_norm: required(file, Role::AttentionNorm { layer })?,
        query_norm: vector(file, Role::QueryNorm { layer })?,
        key_norm: vector(file, Role::KeyNorm { layer })?,
        post_attention_norm: vector(file, Role::PostAttentionNorm { layer })?,
        ffn_norm: required(file, Role::FfnNorm { layer })?,
        post_ffn_norm: vector(file, Role::PostFfnNorm { layer })?,
    })
}

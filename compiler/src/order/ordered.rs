//! Permuted tensors of a source.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use htc_formats::CodecError;
use htc_formats::model::{ActivationPoint, MatrixId, Part, Role};
use htc_formats::source::{ModelFile, ModelTensor};

use super::{AxisPermutations, ChannelPermutation, MakeError};

/// Source with permuted tensors.
#[derive(Clone, Copy, Debug)]
pub struct PermutedSource<'a> {
    file: &'a ModelFile,
    order: Option<&'a ChannelPermutation>,
    base: Option<&'a ModelFile>,
}

fn norm_before(role: Role, file: &ModelFile) -> Option<Role> {
    let (matrix, Part::Weight) = MatrixId::from_role(role)? else {
        return None;
    };
    match matrix {
        MatrixId::Projection { layer, projection } => match projection.input() {
            ActivationPoint::Attention => Some(Role::AttentionNorm { layer }),
            ActivationPoint::Ffn | ActivationPoint::ExpertInput(_) => Some(Role::FfnNorm { layer }),
            ActivationPoint::AttentionOutput
            | ActivationPoint::FfnHidden
            | ActivationPoint::ExpertHidden(_) => None,
        },
        MatrixId::Head => Some(Role::OutputNorm),
        // A tied embedding is also the head.
        MatrixId::Embedding => file
            .tensor(Role::Output)
            .is_none()
            .then_some(Role::OutputNorm),
    }
}

impl Deref for PermutedSource<'_> {
    type Target = ModelFile;

    fn deref(&self) -> &ModelFile {
        self.file
    }
}

impl<'a> PermutedSource<'a> {
    /// Wraps a source with an optional permutation.
    pub fn new(file: &'a ModelFile, order: Option<&'a ChannelPermutation>) -> Self {
        PermutedSource {
            file,
            order,
            base: None,
        }
    }

    /// Returns the difference of the source to a permuted artifact.
    pub fn minus(self, base: &'a ModelFile) -> Self {
        PermutedSource {
            base: Some(base),
            ..self
        }
    }

    /// Returns true if tensors are differences to an artifact.
    pub fn is_difference(&self) -> bool {
        self.base.is_some()
    }

    /// Returns the unpermuted source.
    pub fn file(&self) -> &'a ModelFile {
        self.file
    }

    /// Returns the permutation, if any.
    pub fn order(&self) -> Option<&'a ChannelPermutation> {
        self.order
    }

    fn axes(&self, tensor: &ModelTensor) -> AxisPermutations<'a> {
        self.order
            .map_or_else(AxisPermutations::default, |order| order.axes(tensor.role))
    }

    /// Decodes some rows of a tensor, minus the base if any.
    pub fn decode(
        &self,
        tensor: &ModelTensor,
        rows: Range<usize>,
        values: &mut [f32],
    ) -> Result<(), CodecError> {
        self.decode_whole(tensor, rows.clone(), values)?;
        let Some(base) = self.base else {
            return Ok(());
        };
        let Some(stored) = base.tensor(tensor.role) else {
            return Ok(());
        };
        if let Some(scales) = self.scales(base, tensor.role)? {
            for values in values.chunks_exact_mut(tensor.cols.max(1)) {
                values
                    .iter_mut()
                    .zip(&scales)
                    .for_each(|(w, scale)| *w *= scale);
            }
        }
        let mut numbers = vec![0.0; values.len()];
        base.decode_rows(stored, rows, &mut numbers)?;
        values.iter_mut().zip(&numbers).for_each(|(w, b)| *w -= b);
        Ok(())
    }

    /// Column scales that compensate a tuned norm before the matrix.
    fn scales(&self, base: &ModelFile, role: Role) -> Result<Option<Vec<f32>>, CodecError> {
        let Some(norm) = norm_before(role, base) else {
            return Ok(None);
        };
        let (Some(own), Some(tuned)) = (self.file.tensor(norm), base.tensor(norm)) else {
            return Ok(None);
        };
        let mut scales = vec![0.0; own.cols];
        self.decode_whole(own, 0..1, &mut scales)?;
        let mut numbers = vec![0.0; tuned.cols];
        base.decode_rows(tuned, 0..1, &mut numbers)?;
        for (scale, number) in scales.iter_mut().zip(numbers) {
            *scale = if number == 0.0 { 1.0 } else { *scale / number };
        }
        Ok(Some(scales))
    }

    fn decode_whole(
        &self,
        tensor: &ModelTensor,
        rows: Range<usize>,
        values: &mut [f32],
    ) -> Result<(), CodecError> {
        let axes = self.axes(tensor);
        let (of_rows, of_cols) = (axes.rows, axes.cols);
        if of_rows.is_none() && of_cols.is_none() {
            return self.file.decode_rows(tensor, rows, values);
        }
        let mut as_in_source = vec![0.0; tensor.cols];
        for (row, values) in rows.zip(values.chunks_exact_mut(tensor.cols.max(1))) {
            let from = of_rows.map_or(row, |order| order[row] as usize);
            let row = from..from + 1;
            match of_cols {
                None => self.file.decode_rows(tensor, row, values)?,
                Some(order) => {
                    self.file.decode_rows(tensor, row, &mut as_in_source)?;
                    let places = values.iter_mut().zip(order);
                    places.for_each(|(to, &from)| *to = as_in_source[from as usize]);
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes of a tensor in its source type.
    pub fn bytes(&self, tensor: &'a ModelTensor) -> Result<Cow<'a, [u8]>, MakeError> {
        let (bytes, axes) = (self.file.bytes(tensor), self.axes(tensor));
        if axes == AxisPermutations::default() {
            return Ok(Cow::Borrowed(bytes));
        }
        let dtype = tensor.dtype;
        if axes.cols.is_some() && dtype.block_len() > 1 {
            let tensor = tensor.name.clone();
            return Err(MakeError::Permutation { tensor, dtype });
        }
        let (row_bytes, size) = (
            dtype.row_bytes(tensor.cols).unwrap_or(0),
            dtype.block_bytes(),
        );
        let mut stored = Vec::with_capacity(bytes.len());
        for row in 0..tensor.rows {
            let from = axes.rows.map_or(row, |order| order[row] as usize);
            let row = &bytes[from * row_bytes..][..row_bytes];
            match axes.cols {
                None => stored.extend_from_slice(row),
                Some(order) => {
                    for &from in order {
                        stored.extend_from_slice(&row[from as usize * size..][..size]);
                    }
                }
            }
        }
        Ok(Cow::Owned(stored))
    }

    /// Returns the row and column in the source of a stored number.
    pub fn source_position(&self, tensor: &ModelTensor, row: usize, col: usize) -> (usize, usize) {
        let axes = self.axes(tensor);
        let of = |order: Option<&[u32]>, place: usize| {
            order.map_or(place, |order| {
                order.get(place).map_or(place, |&at| at as usize)
            })
        };
        (of(axes.rows, row), of(axes.cols, col))
    }
}

//! Tensors in a mapped file or in memory.

use std::ops::Range;
use std::sync::Arc;

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::bands::{CodeLayout, ColumnGroupMatrix};
use htc_formats::block;
use htc_formats::map::MappedFile;
use htc_formats::source::{ModelFile, ModelTensor, Place};
use htc_kernels::Matrix;

use crate::error::{ExecError, Result};

/// Matrix `[rows, cols]`, used in place; clones share the mapping.
#[derive(Clone)]
pub struct Tensor {
    data: Data,
    name: String,
    dtype: DType,
    rows: usize,
    cols: usize,
    codes: Option<CodeLayout>,
}

#[derive(Clone)]
enum Data {
    Mapped(Arc<MappedFile>, Range<usize>),
    Computed(Arc<[u8]>),
}

impl Tensor {
    pub(crate) fn new(file: &ModelFile, tensor: &ModelTensor) -> Self {
        let data = match &tensor.place {
            Place::File { index, range } => {
                Data::Mapped(Arc::clone(&file.files[*index]), range.clone())
            }
            Place::Computed(bytes) => Data::Computed(Arc::clone(bytes)),
        };
        Tensor {
            data,
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            rows: tensor.rows,
            cols: tensor.cols,
            codes: tensor.codes.clone(),
        }
    }

    /// Creates a matrix from bytes in memory.
    ///
    /// # Errors
    /// [`ExecError::Shape`] if the bytes do not match the shape.
    pub fn computed(
        name: impl Into<String>,
        dtype: DType,
        [rows, cols]: [usize; 2],
        bytes: impl Into<Arc<[u8]>>,
    ) -> Result<Self> {
        let tensor = Tensor {
            data: Data::Computed(bytes.into()),
            name: name.into(),
            dtype,
            rows,
            cols,
            codes: None,
        };
        tensor.matrix()?;
        Ok(tensor)
    }

    /// Validates the tensor for use on the CPU.
    ///
    /// # Errors
    /// [`ExecError::Codec`] for an invalid scale or map of classes.
    pub(crate) fn validated(&self) -> Result<Self> {
        if let Some(bands) = self.column_groups()? {
            bands.check()?;
        }
        Ok(self.clone())
    }

    /// Adds the name to an error of this tensor.
    pub(crate) fn error(&self, error: ExecError) -> ExecError {
        ExecError::Tensor {
            tensor: self.name.clone(),
            source: Box::new(error),
        }
    }

    /// Returns the name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of rows: outputs of a linear map.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns: inputs of a linear map.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the stored bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Mapped(map, range) => &map[range.clone()],
            Data::Computed(bytes) => bytes,
        }
    }

    /// Returns the kernel view of a column-group tensor, if it is one.
    ///
    /// # Errors
    /// Never: shapes were validated on creation.
    pub fn column_groups(&self) -> Result<Option<ColumnGroupMatrix<'_>>, CodecError> {
        let codes = self.codes.as_ref();
        codes
            .map(|codes| codes.view(self.rows, self.bytes()))
            .transpose()
    }

    /// Returns the kernel view of a tensor without column groups.
    ///
    /// # Errors
    /// [`ExecError::Shape`] for column groups.
    pub fn matrix(&self) -> Result<Matrix<'_>> {
        Ok(Matrix::new(self.dtype, self.rows, self.cols, self.bytes())?)
    }

    /// Returns the numbers as float32, row by row.
    ///
    /// # Errors
    /// [`ExecError::Tensor`] if the bytes do not decode.
    pub fn to_f32(&self) -> Result<Vec<f32>, ExecError> {
        let mut values = vec![0.0; self.rows * self.cols];
        let decoded = match self.column_groups() {
            Ok(Some(groups)) => values
                .chunks_exact_mut(self.cols)
                .enumerate()
                .try_for_each(|(row, values)| groups.decode_row(row, values)),
            Ok(None) => block::decode(self.dtype, self.bytes(), &mut values),
            Err(error) => Err(error),
        };
        decoded.map_err(|error| self.error(error.into()))?;
        Ok(values)
    }
}

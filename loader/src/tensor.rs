//! A tensor that lies in a mapped file, or was computed when the file was opened.

use std::ops::Range;
use std::sync::Arc;

use htc_formats::DType;
use htc_formats::bands::{Banded, BandsError, Layout};
use htc_formats::block;
use htc_formats::map::MappedFile;
use htc_formats::source::{ModelFile, ModelTensor, Place};
use htc_kernels::Matrix;

use crate::error::{ExecError, LoadError};

/// A matrix `[rows, cols]` used where it lies; cloning shares the mapping.
#[derive(Clone)]
pub struct Tensor {
    data: Data,
    name: String,
    dtype: DType,
    rows: usize,
    cols: usize,
    codes: Option<Layout>,
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

    /// A matrix that lies in no file.
    ///
    /// # Errors
    /// [`ExecError::Shape`] where the bytes are not those of so many rows and columns.
    pub fn computed(
        name: impl Into<String>,
        dtype: DType,
        [rows, cols]: [usize; 2],
        bytes: impl Into<Arc<[u8]>>,
    ) -> Result<Self, ExecError> {
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

    /// A matrix in bands that lies in no file.
    ///
    /// # Errors
    /// [`ExecError::Bands`] where the bytes are not those of so many rows with these codes.
    pub fn computed_bands(
        name: impl Into<String>,
        codes: Layout,
        rows: usize,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Result<Self, ExecError> {
        let bytes = bytes.into();
        codes.view(rows, &bytes)?.check()?;
        Ok(Tensor {
            data: Data::Computed(bytes),
            name: name.into(),
            dtype: DType::Bands,
            rows,
            cols: codes.cols(),
            codes: Some(codes),
        })
    }

    /// The tensor as a processor uses it, where it lies.
    ///
    /// # Errors
    /// [`ExecError::Bands`] for a scale in bands that is not finite, and a map of classes that contradicts itself.
    pub(crate) fn used(&self) -> Result<Self, ExecError> {
        if let Some(bands) = self.bands()? {
            bands.check()?;
        }
        Ok(self.clone())
    }

    /// Name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows: outputs of a linear map.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs of a linear map.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes as they are stored.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Mapped(map, range) => &map[range.clone()],
            Data::Computed(bytes) => bytes,
        }
    }

    /// The view that kernels work on where it is in bands; `None` where it is not.
    ///
    /// # Errors
    /// Never: shapes were validated when the tensor was made.
    pub fn bands(&self) -> Result<Option<Banded<'_>>, BandsError> {
        let codes = self.codes.as_ref();
        codes
            .map(|codes| codes.view(self.rows, self.bytes()))
            .transpose()
    }

    /// The view that kernels work on where it is not in bands.
    ///
    /// # Errors
    /// [`ExecError::Shape`] for one in bands; shapes were validated when the tensor was made.
    pub fn matrix(&self) -> Result<Matrix<'_>, ExecError> {
        Ok(Matrix::new(self.dtype, self.rows, self.cols, self.bytes())?)
    }

    /// The numbers as float32, row by row.
    ///
    /// # Errors
    /// [`LoadError::Block`] where the bytes do not decode.
    pub fn to_f32(&self) -> Result<Vec<f32>, LoadError> {
        let mut values = vec![0.0; self.rows * self.cols];
        if let Some(bands) = self.bands()? {
            for (row, values) in values.chunks_exact_mut(self.cols).enumerate() {
                bands.row(row, values)?;
            }
            return Ok(values);
        }
        block::decode(self.dtype, self.bytes(), &mut values).map_err(|source| {
            LoadError::Block {
                tensor: self.name.clone(),
                source,
            }
        })?;
        Ok(values)
    }
}

//! Decodes rows of a matrix in any stored form.

use std::ops::Range;

use faer::{Mat, MatRef};
use htc_formats::DType;
use htc_formats::block;
use htc_formats::model::{Form, MatrixId, Part, ProjectionKind, Role};
use htc_formats::source::{ModelFile, ModelTensor};

use super::ExportError;

#[derive(Clone, Copy, Debug)]
pub(super) struct StoredTensor<'a> {
    pub tensor: &'a ModelTensor,
    pub bytes: &'a [u8],
}

impl<'a> StoredTensor<'a> {
    pub fn find(file: &'a ModelFile, role: Role) -> Option<StoredTensor<'a>> {
        let tensor = file.tensor(role)?;
        let bytes = file.bytes(tensor);
        Some(StoredTensor { tensor, bytes })
    }

    pub fn get(file: &'a ModelFile, role: Role) -> Result<StoredTensor<'a>, ExportError> {
        StoredTensor::find(file, role).ok_or(ExportError::Missing(role))
    }

    /// Returns the bytes of some rows; `None` for types without separate rows.
    pub fn row_bytes(&self, rows: Range<usize>) -> Option<&'a [u8]> {
        let row = self.tensor.dtype.row_bytes(self.tensor.cols)?;
        self.bytes.get(rows.start * row..rows.end * row)
    }

    pub fn decode(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), ExportError> {
        let role = self.tensor.role;
        let failed = |error| ExportError::Block {
            tensor: role.to_string(),
            error,
        };
        if let Some(codes) = &self.tensor.codes {
            let bands = codes.view(self.tensor.rows, self.bytes).map_err(failed)?;
            for (row, out) in rows.zip(out.chunks_exact_mut(self.tensor.cols.max(1))) {
                bands.decode_row(row, out).map_err(failed)?;
            }
            return Ok(());
        }
        let bytes = self.row_bytes(rows).ok_or(ExportError::Missing(role))?;
        block::decode(self.tensor.dtype, bytes, out).map_err(failed)
    }

    fn matrix(&self) -> Result<Mat<f64>, ExportError> {
        let (rows, cols) = (self.tensor.rows, self.tensor.cols);
        let mut matrix = Mat::zeros(rows, cols);
        let mut values = vec![0.0; cols];
        for row in 0..rows {
            self.decode(row..row + 1, &mut values)?;
            for (col, &value) in values.iter().enumerate() {
                matrix[(row, col)] = f64::from(value);
            }
        }
        Ok(matrix)
    }
}

#[derive(Debug)]
pub(super) struct Matrix<'a> {
    pub id: MatrixId,
    pub form: Form,
    pub rows: usize,
    pub cols: usize,
    file: &'a ModelFile,
}

impl<'a> Matrix<'a> {
    /// Returns a matrix in its stored form; `None` if it is not stored.
    pub fn find(file: &'a ModelFile, id: MatrixId) -> Option<Matrix<'a>> {
        let has = |part| id.role(part).and_then(|role| file.tensor(role)).is_some();
        let (rows, cols) = id.shape(&file.hyper);
        Some(Matrix {
            id,
            form: Form::from_parts(has)?,
            rows,
            cols,
            file,
        })
    }

    pub fn part(&self, part: Part) -> Result<StoredTensor<'a>, ExportError> {
        let missing = ExportError::Missing(self.id.weight());
        let role = self.id.role(part).ok_or(missing)?;
        StoredTensor::get(self.file, role)
    }

    /// Returns the factors `(B, A)` of `B A`, if any, also those of a residual.
    pub fn factors(&self) -> Result<Option<(StoredTensor<'a>, StoredTensor<'a>)>, ExportError> {
        Ok(match self.form {
            Form::Dense => None,
            Form::LowRank => Some((self.part(Part::B)?, self.part(Part::A)?)),
            Form::Residual => Some((self.part(Part::ResidualB)?, self.part(Part::ResidualA)?)),
            Form::SharedBasis => {
                let group = self.id.projection().and_then(ProjectionKind::group);
                let Some((layer, group)) = self.id.layer().zip(group) else {
                    return Err(ExportError::Missing(self.id.weight()));
                };
                let basis = StoredTensor::get(self.file, Role::Basis { layer, group })?;
                Some((self.part(Part::Projected)?, basis))
            }
        })
    }

    /// Returns the dense tensor: the whole matrix, or the base of a residual.
    pub fn dense(&self) -> Result<Option<StoredTensor<'a>>, ExportError> {
        match self.form {
            Form::Dense | Form::Residual => self.part(Part::Weight).map(Some),
            Form::LowRank | Form::SharedBasis => Ok(None),
        }
    }

    /// Returns the coded residual of a dense matrix, if any.
    pub fn refinement(&self) -> Option<StoredTensor<'a>> {
        StoredTensor::find(self.file, Role::Refinement { matrix: self.id })
    }

    /// Returns the type of a matrix that is a single dense tensor.
    pub fn stored_type(&self) -> Result<Option<DType>, ExportError> {
        Ok(match self.form {
            Form::Dense if self.refinement().is_some() => None,
            Form::Dense => Some(self.part(Part::Weight)?.tensor.dtype),
            _ => None,
        })
    }

    /// Returns all tensors of the matrix, including a shared basis.
    pub fn tensors(&self) -> Result<Vec<StoredTensor<'a>>, ExportError> {
        let factors = self.factors()?.into_iter().flat_map(|(b, a)| [b, a]);
        let dense = self.dense()?.into_iter().chain(self.refinement());
        Ok(dense.chain(factors).collect())
    }

    /// Returns a decoder of the rows.
    pub fn rows(&self) -> Result<RowDecoder<'a>, ExportError> {
        let product = match self.factors()? {
            None => None,
            Some((b, a)) => Some((b, a.matrix()?)),
        };
        Ok(RowDecoder {
            dense: self.dense()?,
            refinement: self.refinement(),
            product,
            cols: self.cols,
        })
    }
}

#[derive(Debug)]
pub(super) struct RowDecoder<'a> {
    dense: Option<StoredTensor<'a>>,
    refinement: Option<StoredTensor<'a>>,
    product: Option<(StoredTensor<'a>, Mat<f64>)>,
    cols: usize,
}

impl<'a> RowDecoder<'a> {
    pub fn from_tensor(stored: StoredTensor<'a>) -> RowDecoder<'a> {
        RowDecoder {
            dense: Some(stored),
            refinement: None,
            product: None,
            cols: stored.tensor.cols,
        }
    }

    /// Decodes some rows; products are rounded once.
    pub fn decode(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), ExportError> {
        if let Some(dense) = &self.dense {
            dense.decode(rows.clone(), out)?;
        }
        if let Some(refinement) = &self.refinement {
            let mut lacking = vec![0.0; out.len()];
            refinement.decode(rows.clone(), &mut lacking)?;
            out.iter_mut().zip(lacking).for_each(|(out, l)| *out += l);
        }
        let Some((b, a)) = &self.product else {
            return Ok(());
        };
        let (n, rank) = (rows.len(), a.nrows());
        let mut left = vec![0.0; n * rank];
        b.decode(rows, &mut left)?;
        let left: Vec<f64> = left.into_iter().map(f64::from).collect();
        let left = MatRef::from_row_major_slice(&left, n, rank);
        let product = left * a;
        for (row, out) in out.chunks_exact_mut(self.cols).enumerate() {
            for (col, out) in out.iter_mut().enumerate() {
                let base = self.dense.map_or(0.0, |_| f64::from(*out));
                *out = (base + product[(row, col)]) as f32;
            }
        }
        Ok(())
    }
}

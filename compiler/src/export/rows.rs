//! Rows of a matrix as numbers, in whatever form an artifact stores it.

use std::ops::Range;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par};
use htc_formats::DType;
use htc_formats::block;
use htc_formats::model::{Form, MatrixId, Part, Role};
use htc_formats::source::{ModelFile, ModelTensor};

use super::ExportError;

/// A tensor where it lies in the artifact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'a> {
    pub tensor: &'a ModelTensor,
    pub bytes: &'a [u8],
}

impl<'a> Stored<'a> {
    /// The tensor of a role.
    pub fn find(file: &'a ModelFile, role: Role) -> Option<Stored<'a>> {
        let tensor = file.tensor(role)?;
        let bytes = file.bytes(tensor);
        Some(Stored { tensor, bytes })
    }

    /// As [`find`](Stored::find), of a tensor that must be there.
    pub fn get(file: &'a ModelFile, role: Role) -> Result<Stored<'a>, ExportError> {
        Stored::find(file, role).ok_or(ExportError::Missing(role))
    }

    /// The bytes of some rows; `None` where a row has none of its own.
    pub fn row_bytes(&self, rows: Range<usize>) -> Option<&'a [u8]> {
        let row = self.tensor.dtype.row_bytes(self.tensor.cols)?;
        self.bytes.get(rows.start * row..rows.end * row)
    }

    /// Decodes some rows.
    pub fn decode(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), ExportError> {
        let role = self.tensor.role;
        if let Some(codes) = &self.tensor.codes {
            let failed = |error| ExportError::Bands { role, error };
            let bands = codes.view(self.tensor.rows, self.bytes).map_err(failed)?;
            for (row, out) in rows.zip(out.chunks_exact_mut(self.tensor.cols.max(1))) {
                bands.row(row, out).map_err(failed)?;
            }
            return Ok(());
        }
        let bytes = self.row_bytes(rows).ok_or(ExportError::Missing(role))?;
        let decoded = block::decode(self.tensor.dtype, bytes, out);
        decoded.map_err(ExportError::of_block(&role.to_string()))
    }

    /// All of it as float64.
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

/// A matrix of the model.
#[derive(Debug)]
pub(super) struct Matrix<'a> {
    pub id: MatrixId,
    pub form: Form,
    pub rows: usize,
    pub cols: usize,
    file: &'a ModelFile,
}

impl<'a> Matrix<'a> {
    /// The matrix in the form that it is stored in; `None` where nothing of it is there.
    pub fn find(file: &'a ModelFile, id: MatrixId) -> Option<Matrix<'a>> {
        let has = |part| {
            id.role(part)
                .is_some_and(|role| file.tensor(role).is_some())
        };
        let (rows, cols) = id.shape(&file.hyper);
        Some(Matrix {
            id,
            form: Form::of(has)?,
            rows,
            cols,
            file,
        })
    }

    /// A tensor of its own.
    pub fn part(&self, part: Part) -> Result<Stored<'a>, ExportError> {
        let missing = ExportError::Missing(self.id.weight());
        let role = self.id.role(part).ok_or(missing)?;
        Stored::get(self.file, role)
    }

    /// Its factors `(B, A)` of `B A`; `None` of a dense matrix. Those of a base with a residual are what
    /// the base lacks.
    pub fn factors(&self) -> Result<Option<(Stored<'a>, Stored<'a>)>, ExportError> {
        Ok(match self.form {
            Form::Dense => None,
            Form::LowRank => Some((self.part(Part::B)?, self.part(Part::A)?)),
            Form::Residual => Some((self.part(Part::ResidualB)?, self.part(Part::ResidualA)?)),
            Form::SharedBasis => {
                let layer = self.id.layer();
                let group = self.id.slot().and_then(|slot| slot.group());
                let Some((layer, group)) = layer.zip(group) else {
                    return Err(ExportError::Missing(self.id.weight()));
                };
                let basis = Stored::get(self.file, Role::Basis { layer, group })?;
                Some((self.part(Part::Projected)?, basis))
            }
        })
    }

    /// What is stored as a dense matrix: all of it, or the base of a residual.
    pub fn dense(&self) -> Result<Option<Stored<'a>>, ExportError> {
        match self.form {
            Form::Dense | Form::Residual => self.part(Part::Weight).map(Some),
            Form::LowRank | Form::SharedBasis => Ok(None),
        }
    }

    /// What a dense matrix lacks, where that is stored.
    pub fn refinement(&self) -> Option<Stored<'a>> {
        Stored::find(self.file, Role::Refinement { matrix: self.id })
    }

    /// The type of a matrix that is stored dense and as nothing else.
    pub fn stored_type(&self) -> Result<Option<DType>, ExportError> {
        Ok(match self.form {
            Form::Dense if self.refinement().is_some() => None,
            Form::Dense => Some(self.part(Part::Weight)?.tensor.dtype),
            _ => None,
        })
    }

    /// The tensors that it is made of, a basis that it shares among them.
    pub fn tensors(&self) -> Result<Vec<Stored<'a>>, ExportError> {
        let factors = self.factors()?;
        let factors = factors.into_iter().flat_map(|(b, a)| [b, a]);
        let refinement = self.refinement().into_iter();
        Ok(self
            .dense()?
            .into_iter()
            .chain(refinement)
            .chain(factors)
            .collect())
    }

    /// What gives its rows; decodes the factor that all of them need.
    pub fn rows(&self) -> Result<Rows<'a>, ExportError> {
        let product = match self.factors()? {
            None => None,
            Some((b, a)) => Some((b, a.matrix()?)),
        };
        Ok(Rows {
            dense: self.dense()?,
            refinement: self.refinement(),
            product,
            cols: self.cols,
        })
    }
}

/// Gives rows of a matrix.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    dense: Option<Stored<'a>>,
    /// What that lacks.
    refinement: Option<Stored<'a>>,
    /// `B` where it lies, and `A`.
    product: Option<(Stored<'a>, Mat<f64>)>,
    cols: usize,
}

impl<'a> Rows<'a> {
    /// What gives the rows of a tensor.
    pub fn of_tensor(stored: Stored<'a>) -> Rows<'a> {
        Rows {
            dense: Some(stored),
            refinement: None,
            product: None,
            cols: stored.tensor.cols,
        }
    }

    /// Some rows: what is dense, and the product of the factors in float64, rounded once.
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
        let mut product = Mat::<f64>::zeros(n, self.cols);
        matmul(product.as_mut(), Accum::Replace, left, a, 1.0, Par::Seq);
        for (row, out) in out.chunks_exact_mut(self.cols).enumerate() {
            for (col, out) in out.iter_mut().enumerate() {
                let base = match self.dense {
                    Some(_) => f64::from(*out),
                    None => 0.0,
                };
                *out = (base + product[(row, col)]) as f32;
            }
        }
        Ok(())
    }
}

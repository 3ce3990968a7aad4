//! Tensors of an output and the stored tensors they are made from.

use htc_formats::DType;
use htc_formats::architecture::{NamedTensor, Naming, tensor_names};
use htc_formats::model::{Form, MatrixId, Part, ProjectionKind, Role, RopePairs};
use htc_formats::source::ModelFile;

use super::ExportError;
use super::order::HeadPermutation;
use super::rows::{Matrix, RowDecoder, StoredTensor};
use super::types;

#[derive(Debug)]
pub(super) struct OutputTensor<'a> {
    pub name: String,
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
    /// Concatenated along the rows.
    pub pieces: Vec<Piece<'a>>,
    /// Whether each piece is the matrix of an expert, so that the tensor has three dimensions.
    pub is_stack: bool,
}

#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub rows: usize,
    pub content: Content<'a>,
    /// Permutation of its rows, or of the entries of a vector.
    pub order: Option<HeadPermutation>,
}

#[derive(Debug)]
pub(super) enum Content<'a> {
    /// Tensor that has the type of the output already.
    Stored(StoredTensor<'a>),
    Matrix(Matrix<'a>),
    Tensor(StoredTensor<'a>),
    Vector(StoredTensor<'a>, f32),
    Zeros,
}

impl<'a> Content<'a> {
    /// Returns the tensors of the artifact that it reads.
    pub fn tensors(&self) -> Result<Vec<StoredTensor<'a>>, ExportError> {
        Ok(match self {
            Content::Stored(stored) | Content::Tensor(stored) | Content::Vector(stored, _) => {
                vec![*stored]
            }
            Content::Matrix(matrix) => matrix.tensors()?,
            Content::Zeros => Vec::new(),
        })
    }
}

impl<'a> OutputTensor<'a> {
    fn from_piece(name: String, cols: usize, dtype: DType, piece: Piece<'a>) -> OutputTensor<'a> {
        OutputTensor {
            name,
            rows: piece.rows,
            cols,
            dtype,
            pieces: vec![piece],
            is_stack: false,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.dtype.matrix_bytes(self.rows, self.cols).unwrap_or(0) as u64
    }

    /// Returns true for a vector, which has one dimension.
    pub fn is_vector(&self) -> bool {
        let first = self.pieces.first().map(|piece| &piece.content);
        matches!(first, Some(Content::Vector(..))) || (self.rows == 1 && self.is_zero())
    }

    /// Returns true if all of it is zeros.
    pub fn is_zero(&self) -> bool {
        matches!(&self.pieces[..], [piece] if matches!(piece.content, Content::Zeros))
    }

    /// Returns true if all of it is copied from the artifact.
    pub fn is_stored(&self) -> bool {
        let stored = |piece: &Piece| matches!(piece.content, Content::Stored(_));
        self.pieces.iter().all(stored)
    }
}

#[derive(Debug)]
pub(super) struct ContainerRequirements {
    pub naming: Naming,
    /// Name of the container in messages.
    pub container: &'static str,
    /// Rotary layout of queries and keys.
    pub pairs: RopePairs,
    /// Set if norms are stored minus one.
    pub norms_less_one: bool,
    /// Projections with a bias in every layer.
    pub biases: Vec<ProjectionKind>,
    /// Type of encoded matrices.
    pub dtype: DType,
    pub lora: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outputs<'a> {
    /// The model, in the order of execution.
    pub model: Vec<OutputTensor<'a>>,
    /// The pairs `A`, `B` of an adapter.
    pub adapter: Vec<OutputTensor<'a>>,
}

pub(super) fn outputs<'a>(
    file: &'a ModelFile,
    wanted: &ContainerRequirements,
) -> Result<Outputs<'a>, ExportError> {
    let hyper = &file.hyper;
    let names = tensor_names(hyper, wanted.naming)?;
    check_supported(file, wanted, &names)?;
    let planner = Planner { file, wanted };
    let mut outputs = Outputs::default();
    for named in &names {
        let Some(&role) = named.roles.first() else {
            continue;
        };
        match MatrixId::from_role(role) {
            Some((_, Part::Weight)) => planner.matrix(named, &mut outputs)?,
            _ => outputs.model.extend(planner.vector(named, role)?),
        }
    }
    Ok(outputs)
}

fn check_supported(
    file: &ModelFile,
    wanted: &ContainerRequirements,
    names: &[NamedTensor],
) -> Result<(), ExportError> {
    let named = |role: Role| names.iter().any(|tensor| tensor.roles.contains(&role));
    for tensor in &file.tensors {
        let place = match tensor.role {
            Role::Basis { .. } | Role::KvBasis { .. } | Role::KvEnergies { .. } => continue,
            Role::Refinement { matrix } => matrix.weight(),
            // Part of the configuration.
            Role::RopeFactors | Role::LongRopeFactors if wanted.naming == Naming::HuggingFace => {
                continue;
            }
            role => match MatrixId::from_role(role) {
                Some((matrix, part)) if part != Part::Bias => matrix.weight(),
                _ => role,
            },
        };
        if !named(place) {
            return Err(ExportError::UnsupportedTensor {
                role: tensor.role,
                container: wanted.container,
                architecture: file.hyper.architecture.clone(),
            });
        }
    }
    Ok(())
}

struct Planner<'a, 'b> {
    file: &'a ModelFile,
    wanted: &'b ContainerRequirements,
}

impl<'a> Planner<'a, '_> {
    fn order(&self, role: Role) -> Option<HeadPermutation> {
        HeadPermutation::for_role(role, &self.file.hyper, self.wanted.pairs)
    }

    fn vector(
        &self,
        named: &NamedTensor,
        role: Role,
    ) -> Result<Option<OutputTensor<'a>>, ExportError> {
        let vector = |cols, dtype, content, order| {
            let piece = Piece {
                rows: 1,
                content,
                order,
            };
            OutputTensor::from_piece(named.name.clone(), cols, dtype, piece)
        };
        let Some(stored) = StoredTensor::find(self.file, role) else {
            return match role {
                Role::Linear { projection, .. } if self.wanted.biases.contains(&projection) => {
                    let cols = self.file.hyper.projection_shape(projection).0;
                    Ok(Some(vector(cols, DType::F32, Content::Zeros, None)))
                }
                _ if named.required => Err(ExportError::Missing(role)),
                _ => Ok(None),
            };
        };
        let bias = matches!(role, Role::Linear { .. });
        let rope = matches!(role, Role::RopeFactors | Role::LongRopeFactors);
        let less_one = self.wanted.norms_less_one && !bias && !rope;
        let dtype = match (self.wanted.naming, stored.tensor.dtype) {
            (Naming::HuggingFace, dtype @ (DType::F16 | DType::BF16)) if !less_one => dtype,
            // llama.cpp supports only f32 vectors.
            _ => DType::F32,
        };
        let add = if less_one { -1.0 } else { 0.0 };
        let (cols, content) = (stored.tensor.cols, Content::Vector(stored, add));
        Ok(Some(vector(cols, dtype, content, self.order(role))))
    }

    fn matrix(&self, named: &NamedTensor, outputs: &mut Outputs<'a>) -> Result<(), ExportError> {
        let mut matrices = Vec::with_capacity(named.roles.len());
        for &role in &named.roles {
            let id = MatrixId::from_role(role).map(|(id, _)| id);
            match id.and_then(|id| Matrix::find(self.file, id)) {
                Some(matrix) => matrices.push(matrix),
                None if !named.required => return Ok(()),
                None => return Err(ExportError::Missing(role)),
            }
        }
        let cols = matrices.first().map_or(0, |matrix| matrix.cols);
        let rows = matrices.iter().map(|matrix| matrix.rows).sum();
        if let ([matrix], true) = (&matrices[..], self.wanted.lora)
            && let Some(base) = self.adapter_base(matrix)?
        {
            self.adapter(named, matrix, outputs)?;
            let output = OutputTensor::from_piece(named.name.clone(), cols, base.0, base.1);
            outputs.model.push(output);
            return Ok(());
        }
        let stored = self.common_type(&matrices)?;
        let dtype = stored.unwrap_or_else(|| types::fitting_type(self.wanted.dtype, cols));
        let mut pieces = Vec::with_capacity(matrices.len());
        let expert = |matrix: &Matrix| matrix.id.projection().and_then(ProjectionKind::expert);
        let is_stack = matrices.len() > 1 && matrices.iter().all(|of| expert(of).is_some());
        for matrix in matrices {
            pieces.push(Piece {
                rows: matrix.rows,
                order: self.order(matrix.id.weight()),
                content: match stored {
                    Some(_) => Content::Stored(matrix.part(Part::Weight)?),
                    None => Content::Matrix(matrix),
                },
            });
        }
        outputs.model.push(OutputTensor {
            name: named.name.clone(),
            rows,
            cols,
            dtype,
            pieces,
            is_stack,
        });
        Ok(())
    }

    fn common_type(&self, matrices: &[Matrix<'a>]) -> Result<Option<DType>, ExportError> {
        let mut common = None;
        for matrix in matrices {
            let stays = |dtype: &DType| match self.wanted.naming {
                Naming::Gguf => types::is_executed(*dtype),
                Naming::HuggingFace => matches!(dtype, DType::F32 | DType::F16 | DType::BF16),
            };
            let stored = matrix.stored_type()?.filter(stays);
            match (stored, common) {
                (None, _) => return Ok(None),
                (Some(dtype), Some(other)) if dtype != other => return Ok(None),
                _ => common = stored,
            }
        }
        Ok(common)
    }

    /// Returns the model's part of a matrix whose factors go into an adapter; `None` without
    /// factors.
    fn adapter_base(&self, matrix: &Matrix<'a>) -> Result<Option<(DType, Piece<'a>)>, ExportError> {
        let (dtype, content) = match matrix.form {
            Form::Dense => return Ok(None),
            Form::LowRank | Form::SharedBasis => (types::zeros_type(matrix.cols), Content::Zeros),
            Form::Residual => self.executed(matrix.part(Part::Weight)?),
        };
        let piece = Piece {
            rows: matrix.rows,
            content,
            order: self.order(matrix.id.weight()),
        };
        Ok(Some((dtype, piece)))
    }

    /// Copies a tensor if llama.cpp multiplies with its type, or else encodes it.
    fn executed(&self, stored: StoredTensor<'a>) -> (DType, Content<'a>) {
        let (dtype, cols) = (stored.tensor.dtype, stored.tensor.cols);
        if types::is_executed(dtype) {
            return (dtype, Content::Stored(stored));
        }
        let dtype = types::fitting_type(self.wanted.dtype, cols);
        (dtype, Content::Tensor(stored))
    }

    fn adapter(
        &self,
        named: &NamedTensor,
        matrix: &Matrix<'a>,
        outputs: &mut Outputs<'a>,
    ) -> Result<(), ExportError> {
        let Some((b, a)) = matrix.factors()? else {
            return Ok(());
        };
        let order = self.order(matrix.id.weight());
        for (suffix, factor, order) in [("lora_a", a, None), ("lora_b", b, order)] {
            let (rows, cols) = (factor.tensor.rows, factor.tensor.cols);
            let (dtype, content) = self.executed(factor);
            let piece = Piece {
                rows,
                content,
                order,
            };
            let name = format!("{}.{suffix}", named.name);
            let output = OutputTensor::from_piece(name, cols, dtype, piece);
            outputs.adapter.push(output);
        }
        Ok(())
    }
}

impl<'a> Content<'a> {
    /// Returns the decoder of its rows, if they are encoded.
    pub fn rows(&self) -> Result<Option<RowDecoder<'a>>, ExportError> {
        Ok(match self {
            Content::Matrix(matrix) => Some(matrix.rows()?),
            Content::Tensor(stored) => Some(RowDecoder::from_tensor(*stored)),
            Content::Stored(_) | Content::Vector(..) | Content::Zeros => None,
        })
    }
}

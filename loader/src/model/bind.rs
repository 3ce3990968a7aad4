//! Binds tensors to the steps of the forward pass and checks their shapes, once for all backends.

use htc_formats::model::spec;
use htc_formats::model::{BlockSpec, Form, InputGroup, MatrixId, Part, ProjectionKind, Role};
use htc_formats::source::ModelFile;
use htc_kernels::cpu::Attention;

use super::{AttentionStep, Block, Expert, Experts, Project, Projection, Refinement, Step};
use crate::backend::{Backend, Cpu};
use crate::dial;
use crate::error::{ExecError, Result};
use crate::linear::{Linear, Placed};
use crate::tensor::Tensor;

pub(super) fn find(file: &ModelFile, role: Role) -> Option<Tensor> {
    file.tensor(role).map(|tensor| Tensor::new(file, tensor))
}

pub(super) fn require(file: &ModelFile, role: Role) -> Result<Tensor, ExecError> {
    find(file, role).ok_or(ExecError::Missing(role))
}

/// Loads tensors of a file to a backend.
pub(super) trait WeightLoader<B: Backend> {
    fn weight(&mut self, tensor: &Tensor) -> Result<B::Weight>;
    fn vector(&mut self, numbers: Vec<f32>) -> Result<B::Vector>;
}

impl<B: Backend> WeightLoader<B> for B {
    fn weight(&mut self, tensor: &Tensor) -> Result<B::Weight> {
        Backend::weight(self, tensor)
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<B::Vector> {
        Backend::vector(self, numbers)
    }
}

/// Uses tensors where they are in the mapped file.
pub(super) struct InPlace;

impl WeightLoader<Cpu> for InPlace {
    fn weight(&mut self, tensor: &Tensor) -> Result<Tensor> {
        tensor.validated()
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<Vec<f32>> {
        Ok(numbers)
    }
}

/// Binds tensors and checks their shapes, once for all backends.
pub(super) struct Binder<'a, B: Backend> {
    pub file: &'a ModelFile,
    pub place: &'a mut dyn WeightLoader<B>,
}

impl<B: Backend> Binder<'_, B> {
    pub fn load(
        &mut self,
        tensor: &Tensor,
        expected: [usize; 2],
    ) -> Result<Placed<B::Weight>, ExecError> {
        let [rows, cols] = check(tensor, expected)?;
        let weight = self.place.weight(tensor);
        let weight = weight.map_err(|error| tensor.error(error))?;
        Ok(Placed {
            weight,
            dtype: tensor.dtype(),
            rows,
            cols,
        })
    }

    fn vector(&mut self, role: Role, length: usize) -> Result<Option<B::Vector>, ExecError> {
        let Some(tensor) = find(self.file, role) else {
            return Ok(None);
        };
        check(&tensor, [1, length])?;
        let vector = self.place.vector(tensor.to_f32()?);
        vector.map(Some).map_err(|error| tensor.error(error))
    }

    pub fn required_vector(&mut self, role: Role, length: usize) -> Result<B::Vector, ExecError> {
        self.vector(role, length)?.ok_or(ExecError::Missing(role))
    }

    /// Returns the storage form of a matrix; `None` if it has no tensors.
    pub fn form(&self, matrix: MatrixId) -> Option<Form> {
        Form::from_parts(|part| {
            let role = matrix.role(part);
            role.is_some_and(|role| self.file.tensor(role).is_some())
        })
    }

    pub fn linear(
        &mut self,
        matrix: MatrixId,
        form: Form,
        basis: Option<&Placed<B::Weight>>,
    ) -> Result<Linear<B::Weight>, ExecError> {
        let (rows, cols) = matrix.shape(&self.file.hyper);
        let file = self.file;
        let part = |part: Part| {
            let missing = ExecError::Missing(matrix.weight());
            require(file, matrix.role(part).ok_or(missing)?)
        };
        Ok(match form {
            Form::Dense => {
                let base = self.load(&part(Part::Weight)?, [rows, cols])?;
                self.refined(matrix, base)?
            }
            Form::LowRank => {
                let (a, b) = (part(Part::A)?, part(Part::B)?);
                Linear::LowRank {
                    b: self.load(&b, [rows, a.rows()])?,
                    a: self.load(&a, [a.rows(), cols])?,
                }
            }
            Form::SharedBasis => {
                let group = matrix
                    .layer()
                    .zip(matrix.projection().and_then(ProjectionKind::group));
                let missing = group.map_or(matrix.weight(), |(layer, group)| Role::Basis {
                    layer,
                    group,
                });
                let basis = basis.ok_or(ExecError::Missing(missing))?;
                let projected = self.load(&part(Part::Projected)?, [rows, basis.rows])?;
                Linear::SharedBasis { projected }
            }
            Form::Residual => {
                let base = part(Part::Weight)?;
                let (a, b) = (part(Part::ResidualA)?, part(Part::ResidualB)?);
                Linear::Residual {
                    base: self.load(&base, [rows, cols])?,
                    b: self.load(&b, [rows, a.rows()])?,
                    a: self.load(&a, [a.rows(), cols])?,
                }
            }
        })
    }

    /// Binds the refinement of a dense matrix, if any, with its index.
    pub fn refinement(
        &mut self,
        matrix: MatrixId,
        shape: [usize; 2],
    ) -> Result<Option<Refinement<B::Weight>>, ExecError> {
        let file = self.file;
        let Some((index, tensor)) = dial::find_refinement(file, matrix) else {
            return Ok(None);
        };
        let placed = self.load(&Tensor::new(file, tensor), shape)?;
        Ok(Some((placed, index)))
    }

    pub fn refined(
        &mut self,
        matrix: MatrixId,
        base: Placed<B::Weight>,
    ) -> Result<Linear<B::Weight>, ExecError> {
        let found = self.refinement(matrix, [base.rows, base.cols])?;
        Ok(match found {
            None => Linear::Dense(base),
            Some((refinement, place)) => Linear::Refined {
                base,
                refinement,
                place,
            },
        })
    }

    fn projection(
        &mut self,
        layer: usize,
        projection: &spec::Projection,
        basis: Option<&Placed<B::Weight>>,
    ) -> Result<Projection<B>, ExecError> {
        let matrix = MatrixId::Projection {
            layer,
            projection: projection.kind,
        };
        let form = self.form(matrix);
        let form = form.ok_or(ExecError::Missing(matrix.weight()))?;
        let bias = Role::Linear {
            layer,
            projection: projection.kind,
            part: Part::Bias,
        };
        Ok(Projection {
            linear: self.linear(matrix, form, basis)?,
            bias: self.vector(bias, projection.rows)?,
            cols: projection.cols,
            output: projection.output,
        })
    }

    fn basis(
        &mut self,
        layer: usize,
        group: InputGroup,
    ) -> Result<Option<Placed<B::Weight>>, ExecError> {
        let width = self.file.hyper.width;
        let tensor = find(self.file, Role::Basis { layer, group });
        let place = tensor.map(|basis| self.load(&basis, [basis.rows(), width]));
        place.transpose()
    }

    pub fn block(&mut self, layer: usize, block: &BlockSpec) -> Result<Block<B>, ExecError> {
        let steps = block.steps.iter().map(|step| self.step(layer, step));
        Ok(Block {
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    fn step(&mut self, layer: usize, step: &spec::Step) -> Result<Step<B>, ExecError> {
        let hyper = &self.file.hyper;
        Ok(match *step {
            spec::Step::Norm {
                weight,
                input,
                output,
            } => Step::Norm {
                weight: self.required_vector(weight, hyper.width)?,
                input,
                output,
            },
            spec::Step::Project(ref step) => Step::Project(self.project(layer, step)?),
            spec::Step::HeadNorm { weight, heads } => Step::HeadNorm {
                weight: self.required_vector(weight, heads.size)?,
                heads,
            },
            spec::Step::Rope { heads, local } => Step::Rope {
                heads,
                pairs: hyper.forward.rope_pairs,
                local,
            },
            spec::Step::Attention(step) => Step::Attention(AttentionStep {
                q: step.queries,
                kv: step.keys,
                attention: Attention {
                    scale: step.scale,
                    softcap: step.softcap,
                    window: step.window,
                },
            }),
            spec::Step::Activate { activation, width } => Step::Activate { activation, width },
            spec::Step::Experts(ref step) => Step::Experts(self.experts(layer, step)?),
            spec::Step::Add { branch } => Step::Add { branch },
        })
    }

    fn project(&mut self, layer: usize, step: &spec::Project) -> Result<Project<B>, ExecError> {
        let basis = match step.group {
            Some(group) => self.basis(layer, group)?,
            None => None,
        };
        let projections = step.projections.iter();
        let projections = projections.map(|p| self.projection(layer, p, basis.as_ref()));
        let projections = projections.collect::<Result<_, _>>()?;
        Ok(Project {
            input: step.input,
            point: step.point,
            group: step.group,
            basis,
            projections,
        })
    }

    fn experts(&mut self, layer: usize, step: &spec::ExpertsStep) -> Result<Experts<B>, ExecError> {
        let experts = step.experts.iter().map(|expert| {
            Ok(Expert {
                gate_up: [
                    self.projection(layer, &expert.gate, None)?,
                    self.projection(layer, &expert.up, None)?,
                ],
                down: self.projection(layer, &expert.down, None)?,
            })
        });
        let experts = experts.collect::<Result<_, ExecError>>()?;
        Ok(Experts {
            router: self.projection(layer, &step.router, None)?,
            experts,
            used: step.used,
            normalised: step.normalised,
            activation: step.activation,
            hidden: step.hidden,
        })
    }
}

pub(super) fn check(tensor: &Tensor, expected: [usize; 2]) -> Result<[usize; 2], ExecError> {
    let found = [tensor.rows(), tensor.cols()];
    if found == expected {
        return Ok(found);
    }
    Err(ExecError::TensorShape {
        tensor: tensor.name().to_owned(),
        expected,
        found,
    })
}

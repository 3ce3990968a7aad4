//! Decoded weights, one block at a time.

use std::ops::Range;

use faer::{Accum, MatMut, MatRef};
use htc_formats::model::spec::{self, AttentionStep};
use htc_formats::model::{Activation, Form, MatrixId, Part, ProjectionKind, Register, Role};
use htc_formats::source::{ModelFile, ModelTensor};
use htc_kernels::{Pool, cpu};
use htc_loader::Model;

use super::block::Block;
use super::experts::{Expert, Experts};
use super::head::Rows;
use super::heads::{HeadRows, Rotation};
use super::number::{Matrix, Number, TASK_ROWS, product};
use super::steps::{Activate, Add, Attention, Norm, Project, Projection, Rope, Step};
use super::values::Value;
use crate::calibrate::PassError;

#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    file: &'a ModelFile,
    tensor: &'a ModelTensor,
    refinement: Option<&'a ModelTensor>,
}

impl<'a> Stored<'a> {
    pub fn new(file: &'a ModelFile, role: Role) -> Result<Self, PassError> {
        let tensor = file.tensor(role).ok_or(PassError::Missing(role))?;
        let of_it = |of: &&ModelTensor| matches!(of.role, Role::Refinement { matrix } if matrix.weight() == role);
        Ok(Stored {
            file,
            tensor,
            refinement: file.tensors.iter().find(of_it),
        })
    }

    /// Returns the head's matrix, or the embedding if tied.
    pub fn head(file: &'a ModelFile) -> Result<Self, PassError> {
        Stored::new(file, MatrixId::Head.weight())
            .or_else(|_| Stored::new(file, MatrixId::Embedding.weight()))
    }

    /// Writes the scaled rows of an embedding that tokens look up to `x [tokens, width]`.
    pub fn look_up(&self, tokens: &[u32], x: &mut [f32]) -> Result<(), PassError> {
        let hyper = &self.file.hyper;
        let scale = hyper.forward.embedding_scale.unwrap_or(1.0);
        for (x, &token) in x.chunks_exact_mut(hyper.width.max(1)).zip(tokens) {
            let token = token as usize;
            self.rows(token..token + 1, x)?;
            x.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(())
    }

    fn matrix<T: Number>(&self, pool: &Pool) -> Result<Matrix<T>, PassError> {
        let (rows, cols) = (self.tensor.rows, self.tensor.cols);
        let mut values = vec![T::default(); rows * cols];
        self.on_all_threads(pool, 0..rows, &mut values)?;
        Ok(Matrix { rows, cols, values })
    }
}

impl<T: Number> Rows<T> for Stored<'_> {
    fn rows(&self, rows: Range<usize>, out: &mut [T]) -> Result<(), PassError> {
        self.numbers(self.tensor, rows.clone(), |of, number| *of = number, out)?;
        match self.refinement {
            Some(refinement) => {
                let add = |of: &mut T, number: T| *of += number;
                self.numbers(refinement, rows, add, out)
            }
            None => Ok(()),
        }
    }
}

impl Stored<'_> {
    fn numbers<T: Number>(
        &self,
        tensor: &ModelTensor,
        rows: Range<usize>,
        put: impl Fn(&mut T, T),
        out: &mut [T],
    ) -> Result<(), PassError> {
        let mut numbers = vec![0.0; out.len()];
        let decoded = self.file.decode_rows(tensor, rows, &mut numbers);
        decoded.map_err(|source| PassError::Codec {
            tensor: tensor.name.clone(),
            source,
        })?;
        for (out, number) in out.iter_mut().zip(numbers) {
            put(out, T::from(number));
        }
        Ok(())
    }
}

/// Output head in any form; rows are decoded on demand.
pub(super) enum AnyHead<'a, T> {
    Dense(Stored<'a>),
    /// `W = B A`, or `W₀ + B A` with a base; `A` is decoded.
    Factors {
        base: Option<Stored<'a>>,
        a: Matrix<T>,
        b: Stored<'a>,
    },
}

impl<'a, T: Number> AnyHead<'a, T> {
    pub fn decode(file: &'a ModelFile, pool: &Pool) -> Result<Self, PassError> {
        let part = |part| MatrixId::Head.role(part);
        let has = |of| part(of).is_some_and(|role| file.tensor(role).is_some());
        let stored = |of| match part(of) {
            Some(role) => Stored::new(file, role),
            None => Err(PassError::Missing(Role::Output)),
        };
        let factors = |base, a, b| -> Result<Self, PassError> {
            let (a, b) = (stored(a)?.matrix(pool)?, stored(b)?);
            Ok(AnyHead::Factors { base, a, b })
        };
        match Form::from_parts(has) {
            Some(Form::LowRank) => factors(None, Part::A, Part::B),
            Some(Form::Residual) => {
                let base = Some(stored(Part::Weight)?);
                factors(base, Part::ResidualA, Part::ResidualB)
            }
            _ => Stored::head(file).map(AnyHead::Dense),
        }
    }
}

impl<T: Number> Rows<T> for AnyHead<'_, T> {
    fn rows(&self, rows: Range<usize>, out: &mut [T]) -> Result<(), PassError> {
        let (base, a, b) = match self {
            AnyHead::Dense(matrix) => return matrix.rows(rows, out),
            AnyHead::Factors { base, a, b } => (base, a, b),
        };
        let count = rows.len();
        let mut left = vec![T::default(); count * a.rows];
        b.rows(rows.clone(), &mut left)?;
        let accumulate = match base {
            Some(base) => {
                base.rows(rows, out)?;
                Accum::Add
            }
            None => Accum::Replace,
        };
        let left = MatRef::from_row_major_slice(&left, count, a.rows);
        let to = MatMut::from_row_major_slice_mut(out, count, a.cols);
        product(to, accumulate, left, a.view(), T::from(1.0));
        Ok(())
    }
}

fn projection_matrix<T: Number>(
    file: &ModelFile,
    layer: usize,
    projection: ProjectionKind,
    pool: &Pool,
) -> Result<Matrix<T>, PassError> {
    let role = |part| Role::Linear {
        layer,
        projection,
        part,
    };
    let matrix = |role| Stored::new(file, role)?.matrix(pool);
    let (base, b, a) = match Form::from_parts(|part| file.tensor(role(part)).is_some()) {
        Some(Form::LowRank) => (None, Part::B, role(Part::A)),
        Some(Form::Residual) => {
            let base = matrix(role(Part::Weight))?;
            (Some(base), Part::ResidualB, role(Part::ResidualA))
        }
        Some(Form::SharedBasis) => {
            let group = projection.group();
            let group = group.ok_or(PassError::Missing(role(Part::Weight)))?;
            (None, Part::Projected, Role::Basis { layer, group })
        }
        Some(Form::Dense) | None => return matrix(role(Part::Weight)),
    };
    let (a, b): (Matrix<T>, Matrix<T>) = (matrix(a)?, matrix(role(b))?);
    let (rows, cols) = (b.rows, a.cols);
    let (mut values, accumulate) = match base {
        Some(base) => (base.values, Accum::Add),
        None => (vec![T::default(); rows * cols], Accum::Replace),
    };
    pool.chunks_mut(&mut values, TASK_ROWS * cols, |task, to| {
        let count = to.len() / cols.max(1);
        let b = b.view().subrows(task * TASK_ROWS, count);
        let to = MatMut::from_row_major_slice_mut(to, count, cols);
        product(to, accumulate, b, a.view(), T::from(1.0));
    });
    Ok(Matrix { rows, cols, values })
}

/// Returns a vector; `None` if the model has none.
pub(super) fn vector<T: Number>(file: &ModelFile, role: Role) -> Result<Option<Vec<T>>, PassError> {
    if file.tensor(role).is_none() {
        return Ok(None);
    }
    let stored = Stored::new(file, role)?;
    let mut values = vec![T::default(); stored.tensor.rows * stored.tensor.cols];
    stored.rows(0..stored.tensor.rows, &mut values)?;
    Ok(Some(values))
}

pub(super) fn required<T: Number>(file: &ModelFile, role: Role) -> Result<Vec<T>, PassError> {
    vector(file, role)?.ok_or(PassError::Missing(role))
}

/// The blocks of a model, decoded one at a time for windows of `context` tokens.
pub(super) struct Blocks<'a, T> {
    pub model: &'a Model,
    context: usize,
    /// Rotary embeddings of layers without and with a window.
    rotations: [Option<Rotation<T>>; 2],
}

impl<'a, T: Number> Blocks<'a, T> {
    pub fn new(model: &'a Model, context: usize) -> Self {
        let mut blocks = Blocks {
            model,
            context,
            rotations: [None, None],
        };
        for (layer, block) in model.spec().blocks.iter().enumerate() {
            for step in &block.steps {
                if let spec::Step::Rope { local, .. } = *step {
                    let rotation = blocks.rotation(layer, local);
                    blocks.rotations[usize::from(local)] = Some(rotation);
                }
            }
        }
        blocks
    }

    fn rotation(&self, layer: usize, local: bool) -> Rotation<T> {
        let known = self.rotations[usize::from(local)].clone();
        known.unwrap_or_else(|| {
            let (frequencies, factor) = self.model.rotation(layer, self.context);
            let pairs = self.model.hyper().forward.rope_pairs;
            Rotation::new(pairs, self.context, frequencies, factor)
        })
    }

    /// Decodes a block.
    pub fn load(&self, layer: usize, pool: &Pool) -> Result<Block<T>, PassError> {
        let missing = PassError::Missing(Role::AttentionNorm { layer });
        let spec = self.model.spec().blocks.get(layer).ok_or(missing)?;
        let mut program = Program {
            blocks: self,
            layer,
            pool,
            current: [0; Register::ALL.len()],
            values: 1,
            steps: Vec::with_capacity(spec.steps.len()),
        };
        for step in &spec.steps {
            program.step(step)?;
        }
        Ok(Block {
            values: program.values,
            out: program.current(Register::Residual),
            steps: program.steps,
        })
    }
}

/// Converts the steps of a block to single-assignment form: a register is its last written value.
struct Program<'a, T> {
    blocks: &'a Blocks<'a, T>,
    layer: usize,
    pool: &'a Pool,
    /// Present value of each [`Register`].
    current: [Value; Register::ALL.len()],
    values: usize,
    steps: Vec<Step<T>>,
}

impl<T: Number> Program<'_, T> {
    fn current(&self, register: Register) -> Value {
        self.current[register as usize]
    }

    fn value(&mut self) -> Value {
        self.values += 1;
        self.values - 1
    }

    fn write(&mut self, register: Register) -> Value {
        self.current[register as usize] = self.value();
        self.current(register)
    }

    fn step(&mut self, step: &spec::Step) -> Result<(), PassError> {
        let step = match *step {
            spec::Step::Norm {
                weight,
                input,
                output,
            } => self.norm(weight, 1, [input, output])?,
            spec::Step::HeadNorm { weight, heads } => {
                self.norm(weight, heads.count, [heads.register; 2])?
            }
            spec::Step::Project(ref step) => {
                let x = self.current(step.input);
                Step::Project(self.project(x, &step.projections)?)
            }
            spec::Step::Rope { heads, local } => {
                for heads in heads {
                    let rope = Rope {
                        heads: heads.into(),
                        rotation: self.blocks.rotation(self.layer, local),
                        x: self.current(heads.register),
                        y: self.write(heads.register),
                    };
                    self.steps.push(Step::Rope(rope));
                }
                return Ok(());
            }
            spec::Step::Attention(ref step) => self.attention(step),
            spec::Step::Activate { activation, .. } => Step::Activate(self.activate(activation)),
            spec::Step::Experts(ref step) => self.experts(step)?,
            spec::Step::Add { .. } => Step::Add(Add {
                stream: self.current(Register::Residual),
                delta: self.current(Register::Delta),
                y: self.write(Register::Residual),
            }),
        };
        self.steps.push(step);
        Ok(())
    }

    fn norm(
        &mut self,
        role: Role,
        per_position: usize,
        [input, output]: [Register; 2],
    ) -> Result<Step<T>, PassError> {
        let model = self.blocks.model;
        Ok(Step::Norm(Norm {
            role,
            weight: required(model.file(), role)?,
            epsilon: model.hyper().norm_epsilon.into(),
            per_position,
            x: self.current(input),
            inverse: self.value(),
            y: self.write(output),
        }))
    }

    fn project(&mut self, x: Value, shapes: &[spec::Projection]) -> Result<Project<T>, PassError> {
        let (file, layer) = (self.blocks.model.file(), self.layer);
        let mut projections = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let (projection, part) = (shape.kind, Part::Bias);
            projections.push(Projection {
                kind: projection,
                matrix: projection_matrix(file, layer, projection, self.pool)?,
                bias: vector(
                    file,
                    Role::Linear {
                        layer,
                        projection,
                        part,
                    },
                )?,
                y: self.write(shape.output),
            });
        }
        Ok(Project { x, projections })
    }

    fn experts(&mut self, step: &spec::ExpertsStep) -> Result<Step<T>, PassError> {
        let x = self.current(Register::Normed);
        let router = self.project(x, std::slice::from_ref(&step.router))?;
        let scores = self.current(Register::Router);
        let mut experts = Vec::with_capacity(step.experts.len());
        for expert in &step.experts {
            let x = self.write(Register::ExpertInput);
            let gate_up = self.project(x, &[expert.gate, expert.up])?;
            let activate = self.activate(step.activation);
            let down = self.project(activate.y, std::slice::from_ref(&expert.down))?;
            experts.push(Expert {
                x,
                gate_up,
                activate,
                down,
                y: self.current(Register::ExpertOutput),
            });
        }
        Ok(Step::Experts(Experts {
            x,
            router,
            scores,
            experts,
            used: step.used,
            normalised: step.normalised,
            width: self.blocks.model.spec().width,
            y: self.write(Register::Delta),
        }))
    }

    fn activate(&mut self, activation: Activation) -> Activate {
        Activate {
            activation,
            gate: self.current(Register::Gate),
            up: self.current(Register::Up),
            y: self.write(Register::Gate),
        }
    }

    fn attention(&mut self, step: &AttentionStep) -> Step<T> {
        let registers = [step.queries.register, step.keys.register, Register::Value];
        Step::Attention(Attention {
            attention: cpu::Attention {
                scale: step.scale,
                softcap: step.softcap,
                window: step.window,
            },
            context: self.blocks.context,
            heads: [step.queries, step.keys, step.keys].map(HeadRows::from),
            rows: registers.map(|register| self.current(register)),
            qkv: [(); 3].map(|()| self.value()),
            attended: self.value(),
            sums: self.value(),
            y: self.write(Register::Attended),
        })
    }
}

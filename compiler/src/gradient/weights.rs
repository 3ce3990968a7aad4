//! Decoded weights, one block at a time.

use std::ops::Range;

use faer::{Accum, MatMut, MatRef};
use htc_formats::block;
use htc_formats::model::spec;
use htc_formats::model::{Form, MatrixId, Part, ProjectionKind, Register, Role};
use htc_formats::source::{ModelFile, ModelTensor};
use htc_kernels::Pool;
use htc_kernels::cpu::Attention;
use htc_loader::Model;

use super::GradientError;
use super::block::{Block, Norm, Projection, Step, Value};
use super::head::Rows;
use super::heads::{HeadRows, Rotation};
use super::number::{Matrix, Number, TASK_ROWS, product};

#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    file: &'a ModelFile,
    tensor: &'a ModelTensor,
    refinement: Option<&'a ModelTensor>,
}

impl<'a> Stored<'a> {
    pub fn new(file: &'a ModelFile, role: Role) -> Result<Self, GradientError> {
        let tensor = file.tensor(role).ok_or(GradientError::Missing(role))?;
        let of_it = |of: &&ModelTensor| matches!(of.role, Role::Refinement { matrix } if matrix.weight() == role);
        Ok(Stored {
            file,
            tensor,
            refinement: file.tensors.iter().find(of_it),
        })
    }

    /// Returns the head's matrix, or the embedding if tied.
    pub fn head(file: &'a ModelFile) -> Result<Self, GradientError> {
        Stored::new(file, MatrixId::Head.weight())
            .or_else(|_| Stored::new(file, MatrixId::Embedding.weight()))
    }

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
    ) -> Result<(), GradientError> {
        let bytes = self.file.bytes(tensor);
        if let Some(codes) = &tensor.codes {
            let refused = |source| GradientError::Block {
                tensor: tensor.name.clone(),
                source,
            };
            let bands = codes.view(tensor.rows, bytes).map_err(refused)?;
            let mut numbers = vec![0.0; tensor.cols];
            for (row, out) in rows.zip(out.chunks_exact_mut(tensor.cols.max(1))) {
                bands.decode_row(row, &mut numbers).map_err(refused)?;
                for (out, &number) in out.iter_mut().zip(&numbers) {
                    put(out, T::from(number));
                }
            }
            return Ok(());
        }
        let row_bytes = bytes.len() / tensor.rows.max(1);
        let bytes = &bytes[rows.start * row_bytes..rows.end * row_bytes];
        let mut numbers = vec![0.0; out.len()];
        block::decode(tensor.dtype, bytes, &mut numbers).map_err(|source| {
            let tensor = tensor.name.clone();
            GradientError::Block { tensor, source }
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
    pub fn of(file: &'a ModelFile, pool: &Pool) -> Result<Self, GradientError> {
        let part = |part| MatrixId::Head.role(part);
        let has = |of| part(of).is_some_and(|role| file.tensor(role).is_some());
        let stored = |of| match part(of) {
            Some(role) => Stored::new(file, role),
            None => Err(GradientError::Missing(Role::Output)),
        };
        let factors = |base, a, b| -> Result<Self, GradientError> {
            let (a, b) = (stored(a)?.matrix(pool)?, stored(b)?);
            Ok(AnyHead::Factors { base, a, b })
        };
        match Form::of(has) {
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
    type Error = GradientError;

    fn rows(&self, rows: Range<usize>, out: &mut [T]) -> Result<(), GradientError> {
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

fn slot_matrix<T: Number>(
    file: &ModelFile,
    layer: usize,
    slot: ProjectionKind,
    pool: &Pool,
) -> Result<Matrix<T>, GradientError> {
    let role = |part| Role::Linear { layer, slot, part };
    let matrix = |role| Stored::new(file, role)?.matrix(pool);
    let (base, b, a) = match Form::of(|part| file.tensor(role(part)).is_some()) {
        Some(Form::LowRank) => (None, Part::B, role(Part::A)),
        Some(Form::Residual) => {
            let base = matrix(role(Part::Weight))?;
            (Some(base), Part::ResidualB, role(Part::ResidualA))
        }
        Some(Form::SharedBasis) => {
            let group = slot.group();
            let group = group.ok_or(GradientError::Missing(role(Part::Weight)))?;
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

pub(super) fn required<T: Number>(file: &ModelFile, role: Role) -> Result<Vec<T>, GradientError> {
    vector(file, role)?.ok_or(GradientError::Missing(role))
}

/// Loads a block of the model for windows of `context` tokens.
pub(super) fn block<T: Number>(
    model: &Model,
    layer: usize,
    context: usize,
    pool: &Pool,
) -> Result<Block<T>, GradientError> {
    let norm = Role::AttentionNorm { layer };
    let spec = model.spec().blocks.get(layer);
    let mut program = Program {
        model,
        layer,
        context,
        pool,
        current: [0; Register::ALL.len()],
        values: 1,
    };
    let mut steps = Vec::new();
    for step in &spec.ok_or(GradientError::Missing(norm))?.steps {
        program.step(step, &mut steps)?;
    }
    Ok(Block {
        epsilon: model.hyper().norm_epsilon.into(),
        context,
        steps,
        values: program.values,
        out: program.current(Register::Residual),
    })
}

/// Converts the steps of a block to single-assignment form: a register is its last written value.
struct Program<'a> {
    model: &'a Model,
    layer: usize,
    context: usize,
    pool: &'a Pool,
    /// By [`Register`].
    current: [Value; Register::ALL.len()],
    values: usize,
}

impl Program<'_> {
    fn current(&self, register: Register) -> Value {
        self.current[register as usize]
    }

    fn write(&mut self, register: Register) -> Value {
        self.current[register as usize] = self.values;
        self.values += 1;
        self.values - 1
    }

    fn step<T: Number>(
        &mut self,
        step: &spec::Step,
        steps: &mut Vec<Step<T>>,
    ) -> Result<(), GradientError> {
        match *step {
            spec::Step::Norm {
                weight,
                input,
                output,
            } => steps.push(self.norm(weight, 1, [input, output])?),
            spec::Step::HeadNorm { weight, heads } => {
                steps.push(self.norm(weight, heads.count, [heads.register; 2])?);
            }
            spec::Step::Project(ref step) => steps.push(self.project(step)?),
            spec::Step::Rope { heads, .. } => {
                for heads in heads {
                    let (frequencies, factor) = self.model.rotation(self.layer, self.context);
                    let pairs = self.model.hyper().forward.rope_pairs;
                    steps.push(Step::Rope {
                        heads: HeadRows {
                            count: heads.count,
                            size: heads.size,
                        },
                        rotation: Rotation::new(pairs, self.context, frequencies, factor),
                        x: self.current(heads.register),
                        y: self.write(heads.register),
                    });
                }
            }
            spec::Step::Attention(attention) => {
                let qkv = [Register::Query, Register::Key, Register::Value];
                let heads = |count| HeadRows {
                    count,
                    size: attention.head_size,
                };
                steps.push(Step::Attention {
                    attention: Attention {
                        scale: attention.scale,
                        softcap: attention.softcap,
                        window: attention.window,
                    },
                    queries: heads(attention.heads),
                    shared: heads(attention.kv_heads),
                    qkv: qkv.map(|register| self.current(register)),
                    y: self.write(Register::Attended),
                });
            }
            spec::Step::Activate { activation, .. } => steps.push(Step::Activate {
                activation,
                gate: self.current(Register::Gate),
                up: self.current(Register::Up),
                y: self.write(Register::Gate),
            }),
            spec::Step::Add { .. } => steps.push(Step::Add {
                stream: self.current(Register::Residual),
                delta: self.current(Register::Delta),
                y: self.write(Register::Residual),
            }),
        }
        Ok(())
    }

    fn norm<T: Number>(
        &mut self,
        role: Role,
        per_position: usize,
        [input, output]: [Register; 2],
    ) -> Result<Step<T>, GradientError> {
        Ok(Step::Norm(Norm {
            role,
            weight: required(self.model.file(), role)?,
            per_position,
            x: self.current(input),
            y: self.write(output),
        }))
    }

    fn project<T: Number>(&mut self, step: &spec::Project) -> Result<Step<T>, GradientError> {
        let (file, layer) = (self.model.file(), self.layer);
        let x = self.current(step.input);
        let mut projections = Vec::with_capacity(step.projections.len());
        for projection in &step.projections {
            let (slot, part) = (projection.kind, Part::Bias);
            projections.push(Projection {
                slot,
                matrix: slot_matrix(file, layer, slot, self.pool)?,
                bias: vector(file, Role::Linear { layer, slot, part })?,
                y: self.write(projection.output),
            });
        }
        Ok(Step::Project { x, projections })
    }
}

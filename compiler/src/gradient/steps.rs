//! Steps of a block with their weights, each forwards and backwards.
//!
//! A step reads [values](Values) and writes others. Its backward pass receives the gradients of
//! what it wrote and contributes to those of what it read. `n` is the number of positions.

use htc_formats::model::{Activation, ProjectionKind, Role};
use htc_kernels::{Pool, cpu};

use super::attention::{Attend, Qkv};
use super::elementwise::{
    activate, activate_back, norm_weight_back, rms_norm, rms_norm_back, rows_back,
};
use super::experts::Experts;
use super::heads::{HeadRows, Rotation};
use super::number::{Matrix, Number, TASK_ROWS, linear, linear_back};
use super::values::{Value, ValueGradients, Values};

/// A step with its weights, the values that it reads and those that it writes.
#[derive(Clone, Debug)]
pub(super) enum Step<T> {
    Norm(Norm<T>),
    Project(Project<T>),
    Rope(Rope<T>),
    Attention(Attention),
    Activate(Activate),
    Experts(Experts<T>),
    Add(Add),
}

impl<T: Number> Step<T> {
    pub fn forward(&self, pool: &Pool, values: &mut Values<T>) {
        match self {
            Step::Norm(step) => step.forward(pool, values),
            Step::Project(step) => step.forward(pool, values),
            Step::Rope(step) => step.forward(pool, values),
            Step::Attention(step) => step.forward(pool, values),
            Step::Activate(step) => step.forward(pool, values),
            Step::Experts(step) => step.forward(pool, values),
            Step::Add(step) => step.forward(pool, values),
        }
    }

    pub fn backward(&self, pool: &Pool, values: &Values<T>, gradients: &mut ValueGradients<T>) {
        match self {
            Step::Norm(step) => step.backward(pool, values, gradients),
            Step::Project(step) => step.backward(pool, values, gradients),
            Step::Rope(step) => step.backward(pool, gradients),
            Step::Attention(step) => step.backward(pool, values, gradients),
            Step::Activate(step) => step.backward(pool, values, gradients),
            Step::Experts(step) => step.backward(pool, values, gradients),
            Step::Add(step) => step.backward(gradients),
        }
    }

    /// Returns the projections of each input, in the order of execution.
    pub fn projects(&self) -> Vec<&Project<T>> {
        match self {
            Step::Project(step) => vec![step],
            Step::Experts(step) => step.projects().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the projections of each input, to be changed.
    pub fn projects_mut(&mut self) -> Vec<&mut Project<T>> {
        match self {
            Step::Project(step) => vec![step],
            Step::Experts(step) => step.projects_mut().collect(),
            _ => Vec::new(),
        }
    }
}

/// An RMS norm of rows, or of each of the `per_position` heads of a row.
#[derive(Clone, Debug)]
pub(super) struct Norm<T> {
    pub role: Role,
    pub weight: Vec<T>,
    pub epsilon: f64,
    pub per_position: usize,
    pub x: Value,
    pub y: Value,
    /// `1 / rms` of every normed vector.
    pub inverse: Value,
}

impl<T: Number> Norm<T> {
    fn forward(&self, pool: &Pool, values: &mut Values<T>) {
        let numbers = values.get(self.x).len();
        let numbers = [numbers, numbers / self.weight.len().max(1)];
        values.write([self.y, self.inverse], numbers, |values, [y, inverse]| {
            rms_norm(
                pool,
                values.get(self.x),
                &self.weight,
                self.epsilon,
                y,
                inverse,
            );
        });
    }

    fn backward(&self, pool: &Pool, values: &Values<T>, gradients: &mut ValueGradients<T>) {
        let (x, inverse) = (values.get(self.x), values.get(self.inverse));
        gradients.pass(self.y, |dy, gradients| {
            let dx = gradients.sum(self.x, x.len());
            rms_norm_back(pool, x, &self.weight, inverse, dy, dx);
        });
    }

    /// Adds the gradient with respect to the weight to `sums`, after a backward pass.
    pub fn add_weight_gradient(
        &self,
        pool: &Pool,
        values: &Values<T>,
        gradients: &ValueGradients<T>,
        sums: &mut [f64],
    ) {
        let (x, inverse) = (values.get(self.x), values.get(self.inverse));
        let dy = gradients.get(self.y);
        norm_weight_back(pool, x, inverse, dy, self.per_position, sums);
    }
}

/// Projections of one input.
#[derive(Clone, Debug)]
pub(super) struct Project<T> {
    pub x: Value,
    pub projections: Vec<Projection<T>>,
}

/// `y = W x`, plus a bias if there is one.
#[derive(Clone, Debug)]
pub(super) struct Projection<T> {
    pub kind: ProjectionKind,
    pub matrix: Matrix<T>,
    pub bias: Option<Vec<T>>,
    pub y: Value,
}

impl<T: Number> Project<T> {
    pub(super) fn forward(&self, pool: &Pool, values: &mut Values<T>) {
        let numbers = values.get(self.x).len();
        for Projection {
            matrix, bias, y, ..
        } in &self.projections
        {
            let n = numbers / matrix.cols.max(1);
            values.write([*y], [n * matrix.rows], |values, [y]| {
                linear(pool, matrix, values.get(self.x), y);
                if let Some(bias) = bias {
                    add_bias(pool, bias, y);
                }
            });
        }
    }

    pub(super) fn backward(
        &self,
        pool: &Pool,
        values: &Values<T>,
        gradients: &mut ValueGradients<T>,
    ) {
        let numbers = values.get(self.x).len();
        for projection in &self.projections {
            gradients.pass(projection.y, |dy, gradients| {
                let (dx, accumulate) = gradients.contribution(self.x, numbers);
                linear_back(pool, &projection.matrix, dy, dx, accumulate);
            });
        }
    }
}

impl<T: Number> Projection<T> {
    /// Adds `Σ dy ∘ W x` over the positions to `sums`, for each row of the matrix, after a backward
    /// pass.
    pub fn add_row_gradients(
        &self,
        pool: &Pool,
        values: &Values<T>,
        gradients: &ValueGradients<T>,
        sums: &mut [f64],
    ) {
        let (y, dy) = (values.get(self.y), gradients.get(self.y));
        rows_back(pool, y, self.bias.as_deref(), dy, sums);
    }
}

/// Rotary embedding of heads.
#[derive(Clone, Debug)]
pub(super) struct Rope<T> {
    pub heads: HeadRows,
    pub rotation: Rotation<T>,
    pub x: Value,
    pub y: Value,
}

impl<T: Number> Rope<T> {
    fn forward(&self, pool: &Pool, values: &mut Values<T>) {
        let numbers = values.get(self.x).len();
        values.write([self.y], [numbers], |values, [y]| {
            self.rotation
                .forward(pool, self.heads, values.get(self.x), y);
        });
    }

    fn backward(&self, pool: &Pool, gradients: &mut ValueGradients<T>) {
        gradients.pass(self.y, |dy, gradients| {
            gradients.add([self.x], [dy.len()], |[dx]| {
                self.rotation.back(pool, self.heads, dy, dx);
            });
        });
    }
}

/// Causal attention.
#[derive(Clone, Debug)]
pub(super) struct Attention {
    pub attention: cpu::Attention,
    /// Positions of a window of the text.
    pub context: usize,
    /// Heads of queries, keys and values.
    pub heads: [HeadRows; 3],
    /// Rows of queries, keys and values.
    pub rows: [Value; 3],
    /// Queries, keys and values, `[windows, heads, context, size]`.
    pub qkv: [Value; 3],
    /// Outputs of the heads in the layout of the queries.
    pub attended: Value,
    /// Logarithms of the sums of exponentials of every query.
    pub sums: Value,
    /// Rows of the outputs.
    pub y: Value,
}

impl Attention {
    fn attend(&self) -> Attend<'_> {
        let [queries, keys, _] = self.heads;
        Attend {
            group: queries.count / keys.count.max(1),
            size: queries.size,
            context: self.context,
            attention: &self.attention,
        }
    }

    fn qkv<'a, T: Number>(&self, values: &'a Values<T>) -> Qkv<'a, T> {
        let [q, k, v] = self.qkv.map(|value| values.get(value));
        Qkv { q, k, v }
    }

    fn forward<T: Number>(&self, pool: &Pool, values: &mut Values<T>) {
        for (heads, (rows, to)) in self.heads.iter().zip(self.rows.into_iter().zip(self.qkv)) {
            let numbers = values.get(rows).len();
            values.write([to], [numbers], |values, [to]| {
                heads.split(pool, self.context, values.get(rows), to);
            });
        }
        let queries = self.heads[0];
        let numbers = values.get(self.qkv[0]).len();
        let to = [self.attended, self.sums];
        let of_sums = numbers / queries.size.max(1);
        values.write(to, [numbers, of_sums], |values, [attended, sums]| {
            let qkv = self.qkv(values);
            self.attend().forward(pool, qkv, attended, sums);
        });
        values.write([self.y], [numbers], |values, [y]| {
            queries.merge(pool, self.context, values.get(self.attended), y);
        });
    }

    fn backward<T: Number>(
        &self,
        pool: &Pool,
        values: &Values<T>,
        gradients: &mut ValueGradients<T>,
    ) {
        let (attended, sums) = (values.get(self.attended), values.get(self.sums));
        gradients.pass(self.y, |dy, gradients| {
            gradients.add([self.attended], [dy.len()], |[d]| {
                self.heads[0].split(pool, self.context, dy, d);
            });
        });
        gradients.pass(self.attended, |d_attended, gradients| {
            let numbers = self.qkv.map(|value| values.get(value).len());
            gradients.add(self.qkv, numbers, |d| {
                let of = [attended, sums, d_attended];
                self.attend().back(pool, self.qkv(values), of, d);
            });
        });
        for (heads, (rows, from)) in self.heads.iter().zip(self.rows.into_iter().zip(self.qkv)) {
            gradients.pass(from, |d, gradients| {
                gradients.add([rows], [d.len()], |[to]| {
                    heads.merge(pool, self.context, d, to);
                });
            });
        }
    }
}

/// `y = activation(gate) · up`.
#[derive(Clone, Debug)]
pub(super) struct Activate {
    pub activation: Activation,
    pub gate: Value,
    pub up: Value,
    pub y: Value,
}

impl Activate {
    pub(super) fn forward<T: Number>(&self, pool: &Pool, values: &mut Values<T>) {
        let numbers = values.get(self.up).len();
        values.write([self.y], [numbers], |values, [y]| {
            let (gate, up) = (values.get(self.gate), values.get(self.up));
            activate(pool, self.activation, gate, up, y);
        });
    }

    pub(super) fn backward<T: Number>(
        &self,
        pool: &Pool,
        values: &Values<T>,
        gradients: &mut ValueGradients<T>,
    ) {
        let (gate, up) = (values.get(self.gate), values.get(self.up));
        gradients.pass(self.y, |dy, gradients| {
            gradients.add([self.gate, self.up], [dy.len(); 2], |d| {
                activate_back(pool, self.activation, [gate, up, dy], d);
            });
        });
    }
}

/// `y = stream + delta`.
#[derive(Clone, Debug)]
pub(super) struct Add {
    pub stream: Value,
    pub delta: Value,
    pub y: Value,
}

impl Add {
    fn forward<T: Number>(&self, pool: &Pool, values: &mut Values<T>) {
        let numbers = values.get(self.stream).len();
        values.write([self.y], [numbers], |values, [y]| {
            y.copy_from_slice(values.get(self.stream));
            add(pool, values.get(self.delta), y);
        });
    }

    fn backward<T: Number>(&self, gradients: &mut ValueGradients<T>) {
        gradients.pass(self.y, |dy, gradients| {
            for value in [self.delta, self.stream] {
                gradients.add([value], [dy.len()], |[d]| d.copy_from_slice(dy));
            }
        });
    }
}

/// Adds `bias` to every row of `y`.
fn add_bias<T: Number>(pool: &Pool, bias: &[T], y: &mut [T]) {
    pool.chunks_mut(y, TASK_ROWS * bias.len(), |_, y| {
        for (y, &bias) in y.iter_mut().zip(bias.iter().cycle()) {
            *y += bias;
        }
    });
}

/// `x += y`.
fn add<T: Number>(pool: &Pool, y: &[T], x: &mut [T]) {
    /// Numbers of a task.
    const NUMBERS: usize = 1 << 14;
    pool.chunks_mut(x, NUMBERS, |task, x| {
        for (x, &y) in x.iter_mut().zip(&y[task * NUMBERS..]) {
            *x += y;
        }
    });
}

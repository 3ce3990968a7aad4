//! One block of the transformer, forwards and backwards over its [steps](htc_formats::model::spec::Step).
//!
//! The steps are compiled to a program of single assignments: every step writes values of its own, so that the
//! backward pass finds all inputs and adds gradients value by value, in the reverse order of the steps.

use faer::Accum;
use htc_formats::model::{Activation, ProjectionKind, Role};
use htc_kernels::Pool;
use htc_kernels::cpu::Attention;

use super::attention::{Attend, Qkv};
use super::elementwise::{
    activate, activate_back, norm_weight_back, rms_norm, rms_norm_back, rows_back,
};
use super::heads::{HeadRows, Rotation};
use super::number::{Matrix, Number, TASK_ROWS, linear, linear_back, room};

/// Index of a value of the program. Value 0 is the residual stream before the block.
pub(super) type Value = usize;

/// A block with its weights.
#[derive(Clone, Debug)]
pub(super) struct Block<T> {
    /// Epsilon of the norms.
    pub epsilon: f64,
    /// Positions of a window of the text.
    pub context: usize,
    pub steps: Vec<Step<T>>,
    /// Number of values.
    pub values: usize,
    /// The residual stream after the block.
    pub out: Value,
}

/// A step with its weights, the values that it reads and those that it writes.
#[derive(Clone, Debug)]
pub(super) enum Step<T> {
    Norm(Norm<T>),
    Project {
        x: Value,
        projections: Vec<Projection<T>>,
    },
    Rope {
        heads: HeadRows,
        rotation: Rotation<T>,
        x: Value,
        y: Value,
    },
    Attention {
        attention: Attention,
        queries: HeadRows,
        shared: HeadRows,
        /// Queries, keys and values.
        qkv: [Value; 3],
        y: Value,
    },
    Activate {
        activation: Activation,
        gate: Value,
        up: Value,
        y: Value,
    },
    Add {
        stream: Value,
        delta: Value,
        y: Value,
    },
}

/// An RMS norm of rows, or of each of the `per_position` heads of a row.
#[derive(Clone, Debug)]
pub(super) struct Norm<T> {
    pub role: Role,
    pub weight: Vec<T>,
    pub per_position: usize,
    pub x: Value,
    pub y: Value,
}

/// `y = W x`, plus a bias if there is one.
#[derive(Clone, Debug)]
pub(super) struct Projection<T> {
    pub slot: ProjectionKind,
    pub matrix: Matrix<T>,
    pub bias: Option<Vec<T>>,
    pub y: Value,
}

/// Values of a forward pass, `[n, width]` each, and the intermediate results that the backward pass needs.
#[derive(Debug, Default)]
pub(super) struct Saved<T> {
    values: Vec<Vec<T>>,
    /// By step: `1 / rms` of every row of a norm, the logarithms of the sums of an attention.
    factors: Vec<Vec<T>>,
    /// Queries, keys, values and outputs of the attention, `[windows, heads, context, size]`.
    heads: [Vec<T>; 4],
}

/// Gradients of a backward pass; their memory is kept from one call to the next.
#[derive(Debug, Default)]
pub(super) struct Work<T> {
    /// By value.
    gradients: Vec<Vec<T>>,
    /// Whether a value has received a gradient.
    begun: Vec<bool>,
    heads: [Vec<T>; 4],
    /// Sums of the gradients with respect to the weights of norms, if requested; the backward pass adds to them.
    pub norms: Option<Vec<(Role, Vec<f64>)>>,
}

impl<T> Saved<T> {
    /// Returns the residual stream after `block`.
    pub fn out<'a>(&'a self, block: &Block<T>) -> &'a [T] {
        &self.values[block.out]
    }

    /// Returns the input of a projection.
    #[cfg(test)]
    pub fn input<'a>(&'a self, block: &Block<T>, slot: ProjectionKind) -> &'a [T] {
        let input = block.steps.iter().find_map(|step| match step {
            Step::Project { x, projections } => {
                projections.iter().any(|p| p.slot == slot).then_some(*x)
            }
            _ => None,
        });
        &self.values[input.unwrap()]
    }
}

impl<T> Work<T> {
    /// Returns the gradient with respect to the residual stream before the block.
    pub fn stream(&self) -> &[T] {
        self.gradients.first().map_or(&[], Vec::as_slice)
    }
}

impl<T: Number> Block<T> {
    /// Returns the projections in the order of execution.
    pub fn projections(&self) -> impl Iterator<Item = &Projection<T>> {
        self.steps.iter().flat_map(|step| match step {
            Step::Project { projections, .. } => projections.as_slice(),
            _ => &[],
        })
    }

    /// Returns the matrix of a projection that the block has.
    #[cfg(test)]
    pub fn matrix(&self, slot: ProjectionKind) -> &Matrix<T> {
        let mut projections = self.projections();
        &projections.find(|p| p.slot == slot).unwrap().matrix
    }

    /// Returns the matrix of a projection, to be changed.
    pub fn matrix_mut(&mut self, slot: ProjectionKind) -> Option<&mut Matrix<T>> {
        let projections = self.steps.iter_mut().flat_map(|step| match step {
            Step::Project { projections, .. } => projections.as_mut_slice(),
            _ => &mut [],
        });
        let mut projections = projections.filter(|projection| projection.slot == slot);
        projections.next().map(|projection| &mut projection.matrix)
    }

    /// Returns the weights of the norms with their roles.
    pub fn norms_mut(&mut self) -> impl Iterator<Item = (Role, &mut Vec<T>)> {
        self.steps.iter_mut().filter_map(|step| match step {
            Step::Norm(norm) => Some((norm.role, &mut norm.weight)),
            _ => None,
        })
    }

    /// Returns zeros for [`Work::norms`].
    pub fn zero_norms(&self) -> Vec<(Role, Vec<f64>)> {
        let norms = self.steps.iter().filter_map(|step| match step {
            Step::Norm(norm) => Some((norm.role, vec![0.0; norm.weight.len()])),
            _ => None,
        });
        norms.collect()
    }

    fn attend<'a>(
        &self,
        attention: &'a Attention,
        queries: HeadRows,
        shared: HeadRows,
    ) -> Attend<'a> {
        Attend {
            group: queries.count / shared.count.max(1),
            size: queries.size,
            context: self.context,
            attention,
        }
    }

    /// Executes the block on the residual stream `x [windows · context, width]`.
    pub fn forward(&self, pool: &Pool, x: &[T], saved: &mut Saved<T>) {
        saved.values.resize_with(self.values, Vec::new);
        saved.factors.resize_with(self.steps.len(), Vec::new);
        room(&mut saved.values[0], x.len()).copy_from_slice(x);
        for (index, step) in self.steps.iter().enumerate() {
            self.step(pool, index, step, saved);
        }
    }

    fn step(&self, pool: &Pool, index: usize, step: &Step<T>, saved: &mut Saved<T>) {
        match step {
            Step::Norm(Norm { weight, x, y, .. }) => {
                let mut out = std::mem::take(&mut saved.values[*y]);
                let x = &saved.values[*x];
                let inverse = room(&mut saved.factors[index], x.len() / weight.len().max(1));
                let to = room(&mut out, x.len());
                rms_norm(pool, x, weight, self.epsilon, to, inverse);
                saved.values[*y] = out;
            }
            Step::Project { x, projections } => {
                for Projection {
                    matrix, bias, y, ..
                } in projections
                {
                    let mut out = std::mem::take(&mut saved.values[*y]);
                    let x = &saved.values[*x];
                    let n = x.len() / matrix.cols.max(1);
                    let to = room(&mut out, n * matrix.rows);
                    linear(pool, matrix, x, to);
                    if let Some(bias) = bias {
                        add_bias(pool, bias, to);
                    }
                    saved.values[*y] = out;
                }
            }
            Step::Rope {
                heads,
                rotation,
                x,
                y,
            } => {
                let mut out = std::mem::take(&mut saved.values[*y]);
                let x = &saved.values[*x];
                rotation.forward(pool, *heads, x, room(&mut out, x.len()));
                saved.values[*y] = out;
            }
            Step::Attention {
                attention,
                queries,
                shared,
                qkv,
                y,
            } => {
                let [q, k, v, attended] = &mut saved.heads;
                for (heads, value, to) in [
                    (queries, qkv[0], &mut *q),
                    (shared, qkv[1], &mut *k),
                    (shared, qkv[2], &mut *v),
                ] {
                    let x = &saved.values[value];
                    heads.split(pool, self.context, x, room(to, x.len()));
                }
                let numbers = q.len();
                let sums = room(&mut saved.factors[index], numbers / queries.size.max(1));
                let attended = room(attended, numbers);
                let attend = self.attend(attention, *queries, *shared);
                attend.forward(pool, Qkv { q, k, v }, attended, sums);
                let out = room(&mut saved.values[*y], numbers);
                queries.merge(pool, self.context, attended, out);
            }
            Step::Activate {
                activation,
                gate,
                up,
                y,
            } => {
                let mut out = std::mem::take(&mut saved.values[*y]);
                let [gate, up] = [*gate, *up].map(|value| &saved.values[value]);
                activate(pool, *activation, gate, up, room(&mut out, up.len()));
                saved.values[*y] = out;
            }
            Step::Add { stream, delta, y } => {
                let mut out = std::mem::take(&mut saved.values[*y]);
                let [stream, delta] = [*stream, *delta].map(|value| &saved.values[value]);
                let to = room(&mut out, stream.len());
                to.copy_from_slice(stream);
                add(pool, delta, to);
                saved.values[*y] = out;
            }
        }
    }

    /// Passes the gradient `d_out` with respect to the residual stream after the block back to the stream before
    /// it, [`Work::stream`]. `saved` is that of the forward pass. `observe` receives the gradient with respect to
    /// the output of each projection, `[n, rows]`.
    pub fn back(
        &self,
        pool: &Pool,
        d_out: &[T],
        saved: &Saved<T>,
        work: &mut Work<T>,
        observe: &mut dyn FnMut(ProjectionKind, &[T]),
    ) {
        work.gradients.resize_with(self.values, Vec::new);
        work.begun.clear();
        work.begun.resize(self.values, false);
        work.accumulate(self.out, d_out);
        for (index, step) in self.steps.iter().enumerate().rev() {
            self.step_back(pool, index, step, saved, work, observe);
        }
    }

    fn step_back(
        &self,
        pool: &Pool,
        index: usize,
        step: &Step<T>,
        saved: &Saved<T>,
        work: &mut Work<T>,
        observe: &mut dyn FnMut(ProjectionKind, &[T]),
    ) {
        match step {
            Step::Norm(norm) => {
                let (x, inverse) = (&saved.values[norm.x], &saved.factors[index]);
                let dy = std::mem::take(&mut work.gradients[norm.y]);
                let dx = work.zeroed(norm.x, x.len());
                rms_norm_back(pool, x, &norm.weight, inverse, &dy, dx);
                let norms = work.norms.iter_mut().flatten();
                if let Some((_, sums)) = norms.into_iter().find(|(role, _)| *role == norm.role) {
                    norm_weight_back(pool, x, inverse, &dy, norm.per_position, sums);
                }
                work.gradients[norm.y] = dy;
            }
            Step::Project { x, projections } => {
                for projection in projections {
                    let dy = std::mem::take(&mut work.gradients[projection.y]);
                    let (dx, accumulate) = work.begin(*x, saved.values[*x].len());
                    linear_back(pool, &projection.matrix, &dy, dx, accumulate);
                    observe(projection.slot, &dy);
                    work.gradients[projection.y] = dy;
                }
            }
            Step::Rope {
                heads,
                rotation,
                x,
                y,
            } => {
                let dy = std::mem::take(&mut work.gradients[*y]);
                let (dx, _) = work.begin(*x, dy.len());
                rotation.back(pool, *heads, &dy, dx);
                work.gradients[*y] = dy;
            }
            Step::Attention {
                attention,
                queries,
                shared,
                qkv,
                y,
            } => {
                let attend = self.attend(attention, *queries, *shared);
                let heads = [queries, shared, shared];
                self.attention_back(pool, &attend, heads, saved, &saved.factors[index], *y, work);
                for ((heads, value), index) in heads.into_iter().zip(*qkv).zip(0..) {
                    let d = std::mem::take(&mut work.heads[index]);
                    let (to, _) = work.begin(value, d.len());
                    heads.merge(pool, self.context, &d, to);
                    work.heads[index] = d;
                }
            }
            Step::Activate {
                activation,
                gate,
                up,
                y,
            } => {
                let d = std::mem::take(&mut work.gradients[*y]);
                let numbers = d.len();
                let mut d_up = std::mem::take(work.begin_buffer(*up));
                let (d_gate, _) = work.begin(*gate, numbers);
                let of = [&saved.values[*gate][..], &saved.values[*up], &d];
                let to = [d_gate, room(&mut d_up, numbers)];
                activate_back(pool, *activation, of, to);
                work.gradients[*up] = d_up;
                work.gradients[*y] = d;
            }
            Step::Add { stream, delta, y } => {
                let d = std::mem::take(&mut work.gradients[*y]);
                work.accumulate(*delta, &d);
                work.accumulate(*stream, &d);
                work.gradients[*y] = d;
            }
        }
    }

    /// Leaves the gradients of queries, keys and values in [`Work::heads`].
    #[allow(clippy::too_many_arguments)]
    fn attention_back(
        &self,
        pool: &Pool,
        attend: &Attend<'_>,
        heads: [&HeadRows; 3],
        saved: &Saved<T>,
        sums: &[T],
        y: Value,
        work: &mut Work<T>,
    ) {
        let [q, k, v, attended] = &saved.heads;
        let [dq, dk, dv, d_attended] = &mut work.heads;
        let d_attended = room(d_attended, attended.len());
        heads[0].split(pool, self.context, &work.gradients[y], d_attended);
        let d = [room(dq, q.len()), room(dk, k.len()), room(dv, v.len())];
        attend.back(pool, Qkv { q, k, v }, [attended, sums, d_attended], d);
    }

    /// Adds `Σ dy ∘ W x` over the positions to `sums`, for each row of the matrix of a projection. `saved` is that
    /// of the forward pass.
    pub fn add_rows_back(
        &self,
        pool: &Pool,
        slot: ProjectionKind,
        saved: &Saved<T>,
        dy: &[T],
        sums: &mut [f64],
    ) {
        for projection in self.projections().filter(|p| p.slot == slot) {
            let (y, bias) = (&saved.values[projection.y], projection.bias.as_deref());
            rows_back(pool, y, bias, dy, sums);
        }
    }
}

impl<T: Number> Work<T> {
    fn begin_buffer(&mut self, value: Value) -> &mut Vec<T> {
        self.begun[value] = true;
        &mut self.gradients[value]
    }

    /// Returns the gradient of a value, and whether to replace it or to add to it.
    fn begin(&mut self, value: Value, numbers: usize) -> (&mut [T], Accum) {
        let accumulate = if self.begun[value] {
            Accum::Add
        } else {
            Accum::Replace
        };
        (room(self.begin_buffer(value), numbers), accumulate)
    }

    /// Returns the gradient of a value to add to.
    fn zeroed(&mut self, value: Value, numbers: usize) -> &mut [T] {
        let (gradient, accumulate) = self.begin(value, numbers);
        if accumulate == Accum::Replace {
            gradient.fill(T::default());
        }
        gradient
    }

    /// Adds `d` to the gradient of a value.
    fn accumulate(&mut self, value: Value, d: &[T]) {
        let (gradient, accumulate) = self.begin(value, d.len());
        if accumulate == Accum::Replace {
            gradient.copy_from_slice(d);
        } else {
            gradient.iter_mut().zip(d).for_each(|(to, &d)| *to += d);
        }
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

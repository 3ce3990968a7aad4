//! One block of the transformer, forwards and backwards over its
//! [steps](htc_formats::model::spec::Step).
//!
//! The steps are a program of single assignments: every step writes values of its own, so that the
//! backward pass finds all inputs and adds gradients value by value, in the reverse order of the
//! steps.

use htc_kernels::Pool;

use super::number::Number;
use super::steps::{Norm, Projection, Step};
use super::values::{Value, ValueGradients, Values};

/// A block with its weights.
#[derive(Clone, Debug)]
pub(super) struct Block<T> {
    pub steps: Vec<Step<T>>,
    /// Number of values.
    pub values: usize,
    /// The residual stream after the block.
    pub out: Value,
}

impl<T: Number> Block<T> {
    /// Executes the block on the residual stream `x [windows · context, width]`; returns the stream
    /// after it.
    pub fn forward<'v>(&self, pool: &Pool, x: &[T], values: &'v mut Values<T>) -> &'v [T] {
        values.begin(self.values, x);
        for step in &self.steps {
            step.forward(pool, values);
        }
        values.get(self.out)
    }

    /// Passes the gradient `d_out` with respect to the residual stream after the block back to all
    /// values of the forward pass; returns that of the stream before the block.
    pub fn backward<'g>(
        &self,
        pool: &Pool,
        d_out: &[T],
        values: &Values<T>,
        gradients: &'g mut ValueGradients<T>,
    ) -> &'g [T] {
        gradients.begin(self.values);
        gradients.add([self.out], [d_out.len()], |[d]| d.copy_from_slice(d_out));
        for step in self.steps.iter().rev() {
            step.backward(pool, values, gradients);
        }
        gradients.get(0)
    }

    /// Returns the projections in the order of execution.
    pub fn projections(&self) -> impl Iterator<Item = &Projection<T>> {
        let projects = self.steps.iter().flat_map(Step::projects);
        projects.flat_map(|project| &project.projections)
    }

    /// Returns the projections, to be changed.
    pub fn projections_mut(&mut self) -> impl Iterator<Item = &mut Projection<T>> {
        let projects = self.steps.iter_mut().flat_map(Step::projects_mut);
        projects.flat_map(|project| &mut project.projections)
    }

    /// Returns the norms in the order of execution.
    pub fn norms(&self) -> impl Iterator<Item = &Norm<T>> {
        self.steps.iter().filter_map(|step| match step {
            Step::Norm(norm) => Some(norm),
            _ => None,
        })
    }

    /// Returns the norms, to be changed.
    pub fn norms_mut(&mut self) -> impl Iterator<Item = &mut Norm<T>> {
        self.steps.iter_mut().filter_map(|step| match step {
            Step::Norm(norm) => Some(norm),
            _ => None,
        })
    }
}

//! Tensor names for writers of containers.

use super::{Architecture, Naming};
use crate::architecture::error::Result;
use crate::model::{HyperParameters, Role};

/// A tensor of an architecture as named in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// Name in the container.
    pub name: String,
    /// Roles stacked in the tensor: dense matrices and vectors.
    pub roles: Vec<Role>,
    /// Whether the tensor is required.
    pub required: bool,
}

pub(super) fn architecture(hyper: &HyperParameters) -> Result<&'static Architecture> {
    super::named(&hyper.architecture, hyper.experts() as u64)
}

/// Returns all tensors that a model may have, in the order of execution.
///
/// # Errors
/// [`BindError::Architecture`](super::BindError::Architecture).
pub fn tensor_names(hyper: &HyperParameters, naming: Naming) -> Result<Vec<NamedTensor>> {
    Ok(architecture(hyper)?.tensor_names(hyper.layers, hyper.experts(), naming))
}

impl Architecture {
    fn tensor_names(&self, layers: usize, experts: usize, naming: Naming) -> Vec<NamedTensor> {
        let expected = self.expected(layers, experts, naming);
        let mut tensors: Vec<NamedTensor> = expected
            .map(|tensor| NamedTensor {
                name: tensor.name,
                roles: tensor.holds.into_iter().map(|(role, _)| role).collect(),
                required: tensor.required,
            })
            .collect();
        tensors.sort_by_key(|tensor| tensor.roles.first().map(|role| role.execution_order()));
        tensors
    }
}

#[cfg(test)]
mod tests;

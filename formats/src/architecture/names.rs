//! Tensor names for writers of containers.

use super::{Architecture, Naming, SUPPORTED};
use crate::architecture::BindError;
use crate::escape::escape_truncated;
use crate::model::Role;

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

pub(super) fn architecture(name: &str) -> Result<&'static Architecture, BindError> {
    let mut all = SUPPORTED.iter().copied();
    let found = all.find(|architecture| architecture.name == name);
    found.ok_or_else(|| BindError::NoNames {
        found: escape_truncated(name),
    })
}

/// Returns all tensors that a model of `layers` blocks may have, in the order of execution.
///
/// # Errors
/// [`BindError::NoNames`].
pub fn tensor_names(
    architecture: &str,
    layers: usize,
    naming: Naming,
) -> Result<Vec<NamedTensor>, BindError> {
    let architecture = self::architecture(architecture)?;
    let expected = architecture.expected(layers, naming);
    let mut tensors: Vec<NamedTensor> = expected
        .map(|(name, layer, rule)| NamedTensor {
            name,
            roles: rule.holds.iter().map(|(role, _)| role(layer)).collect(),
            required: rule.required,
        })
        .collect();
    tensors.sort_by_key(|tensor| tensor.roles.first().map(|role| role.execution_order()));
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_names_cover_every_table() {
        for architecture in SUPPORTED {
            for naming in [Naming::Gguf, Naming::HuggingFace] {
                let names = tensor_names(architecture.name, 3, naming).unwrap();
                let forwards: Vec<_> = architecture.names(3, naming).collect();
                let backwards = names.iter().flat_map(|tensor| {
                    let roles = tensor.roles.iter();
                    roles.map(|role| (tensor.name.clone(), *role))
                });
                let backwards: Vec<_> = backwards.collect();
                assert_eq!(backwards.len(), forwards.len());
                assert!(forwards.iter().all(|one| backwards.contains(one)));
            }
        }
        assert!(tensor_names("gpt2", 3, Naming::Gguf).is_err());
    }
}

//! Tensor names for writers of containers.

use super::{Architecture, Naming, SUPPORTED};
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

/// Error returned when a container cannot represent a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Unsupported architecture.
    #[error("architecture {found:?} is not supported")]
    Architecture {
        /// Its name.
        found: String,
    },
    /// A property that the container cannot express.
    #[error(
        "{what} is {found}; of an architecture {architecture:?}, {container} can only say {expected}"
    )]
    Inexpressible {
        /// Property of the model.
        what: &'static str,
        /// Its value in the model.
        found: String,
        /// The container's name for the architecture.
        architecture: &'static str,
        /// Container format.
        container: &'static str,
        /// Values that the container can express.
        expected: String,
    },
}

pub(super) fn architecture(name: &str) -> Result<&'static Architecture, StateError> {
    let mut all = SUPPORTED.iter().copied();
    let found = all.find(|architecture| architecture.name == name);
    found.ok_or_else(|| StateError::Architecture {
        found: escape_truncated(name),
    })
}

/// Returns all tensors that a model of `layers` blocks may have, in the order of execution.
///
/// # Errors
/// [`StateError::Architecture`].
pub fn tensor_names(
    architecture: &str,
    layers: usize,
    naming: Naming,
) -> Result<Vec<NamedTensor>, StateError> {
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

//! The tables from the other side: what a container calls the tensors of a model, for whoever writes one.

use super::{Architecture, Naming, SUPPORTED};
use crate::escape::escape_truncated;
use crate::model::Role;

/// A tensor as a container of an architecture has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// What lies in it, one under the other: the roles of dense matrices and of vectors.
    pub roles: Vec<Role>,
    /// Whether a model without it is incomplete.
    pub required: bool,
}

/// Why a model cannot be stated in a container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// An architecture that has no table.
    #[error("architecture {found:?} is not supported")]
    Architecture {
        /// Its name.
        found: String,
    },
    /// Something that the container has no words for.
    #[error(
        "{what} is {found}; of an architecture {architecture:?}, {container} can only say {expected}"
    )]
    Inexpressible {
        /// What it is of the model.
        what: &'static str,
        /// What the model has.
        found: String,
        /// The architecture, as the container calls it.
        architecture: &'static str,
        /// The container.
        container: &'static str,
        /// What it may be.
        expected: String,
    },
}

/// The architecture of a name.
pub(super) fn architecture(name: &str) -> Result<&'static Architecture, StateError> {
    let mut all = SUPPORTED.iter().copied();
    let found = all.find(|architecture| architecture.name == name);
    found.ok_or_else(|| StateError::Architecture {
        found: escape_truncated(name),
    })
}

/// The tensors of a model of `layers` blocks, in the order of execution: all that it may have.
///
/// # Errors
///
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
    fn every_table_can_be_read_backwards() {
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

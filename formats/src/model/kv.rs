//! Bases of an artifact for the KV cache.

use super::{BlockRole, Role};

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvSide {
    /// Keys, after the rotary embedding.
    Key,
    /// Values.
    Value,
}

crate::names!(KvSide { Key "key", Value "value" });

/// Names of the KV basis roles of a block.
pub(crate) const BLOCK_KV: [(&str, BlockRole); 4] = [
    ("key_basis", |layer| Role::KvBasis {
        layer,
        side: KvSide::Key,
    }),
    ("key_energies", |layer| Role::KvEnergies {
        layer,
        side: KvSide::Key,
    }),
    ("value_basis", |layer| Role::KvBasis {
        layer,
        side: KvSide::Value,
    }),
    ("value_energies", |layer| Role::KvEnergies {
        layer,
        side: KvSide::Value,
    }),
];
